"""Answers that clients do not take, and work beside the loop: both bounded."""

import asyncio
import threading
from contextlib import ExitStack

from bourn.http.aside import Aside
from bourn.http.backlog import Backlog
from bourn.limits import BACKLOG_STALL_SECS


class Crowd:
    """Clients that take nothing, on a clock that the test moves."""

    def __init__(self, bytes_max: int) -> None:
        self.now = 0.0
        self.cut: list[str] = []
        self.backlog = Backlog(lambda: self.now, bytes_max)

    def send(self, stack: ExitStack, name: str, size_bytes: int) -> None:
        stack.enter_context(self.backlog.held(size_bytes, lambda: self.cut.append(name)))


def test_those_that_stalled_the_longest_are_cut_off_first_and_no_more_than_needed():
    crowd = Crowd(bytes_max=100)
    with ExitStack() as stack:
        for name in ("first", "second", "third"):
            crowd.send(stack, name, 40)
            crowd.now += BACKLOG_STALL_SECS
        assert crowd.cut == ["first"]
        crowd.send(stack, "fourth", 20)
        assert crowd.cut == ["first"]
        assert crowd.backlog.bytes_held == 100
    assert crowd.backlog.bytes_held == 0
    assert crowd.backlog.cut_count == 1


def test_nobody_is_cut_off_who_has_only_just_begun():
    crowd = Crowd(bytes_max=100)
    with ExitStack() as stack:
        for number in range(5):
            crowd.send(stack, str(number), 40)
        assert crowd.cut == []
        crowd.now += BACKLOG_STALL_SECS
        crowd.send(stack, "last", 40)
        assert crowd.cut == [str(number) for number in range(4)]


def test_where_too_many_begin_at_once_the_first_of_them_are_cut_off():
    crowd = Crowd(bytes_max=100)
    with ExitStack() as stack:
        for number in range(10):
            crowd.send(stack, str(number), 40)
            assert crowd.backlog.bytes_held <= 200
        assert crowd.cut == [str(number) for number in range(5)]


def test_who_takes_a_part_now_and_then_has_not_stalled():
    crowd = Crowd(bytes_max=100)
    with ExitStack() as stack:
        slow = stack.enter_context(crowd.backlog.held(60, lambda: crowd.cut.append("slow")))
        crowd.send(stack, "deaf", 40)
        crowd.now += BACKLOG_STALL_SECS
        crowd.backlog.took(slow)
        crowd.send(stack, "last", 40)
        assert crowd.cut == ["deaf"]
        crowd.backlog.drop(slow)
        crowd.backlog.took(slow)  # which is over by now
        assert crowd.backlog.bytes_held == 40
    assert crowd.backlog.bytes_held == 0


def test_work_beside_the_loop_goes_one_at_a_time_even_where_the_first_is_cancelled():
    aside_at_once = threading.Semaphore(1)
    release, begun = threading.Event(), threading.Event()

    def work() -> None:
        assert aside_at_once.acquire(blocking=False), "two at once"
        begun.set()
        release.wait(10)
        aside_at_once.release()

    async def scenario() -> None:
        aside = Aside()
        first = asyncio.create_task(aside.run(work))
        await asyncio.to_thread(begun.wait, 10)
        second = asyncio.create_task(aside.run(work))
        first.cancel()
        await asyncio.to_thread(release.set)
        await second
        assert (await asyncio.gather(first, return_exceptions=True))[0].__class__ is (
            asyncio.CancelledError
        )

    asyncio.run(scenario())

"""Memory that a burst has left goes back to the system: at rest, and not over and over."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable

from bourn.clock import ManualClock
from bourn.engine.give_back import GiveBack, Process
from bourn.limits import GIVE_BACK_BYTES_MIN, GIVE_BACK_CPU_SHARE_MAX, GIVE_BACK_LOOK_SECS, MIB
from tests.engine.harness import turns


class FakeProcess:
    """A process whose figures a test sets."""

    def __init__(self) -> None:
        self.cpu_secs = 0.0
        self.unused_bytes = 10 * MIB
        self.left_bytes = 10 * MIB  # behind a trim
        self.trims = 0

    def trim(self) -> None:
        self.trims += 1
        self.unused_bytes = self.left_bytes

    def seen(self) -> Process:
        return Process(lambda: self.cpu_secs, lambda: self.unused_bytes, self.trim)


Look = Callable[[], Awaitable[None]]


def looking(scenario: Callable[[FakeProcess, Look], Awaitable[None]]) -> None:
    async def run() -> None:
        clock, process = ManualClock(), FakeProcess()
        give_back = GiveBack(clock, process.seen())
        give_back.start()

        async def look() -> None:
            clock.advance(GIVE_BACK_LOOK_SECS)
            await turns()
            if give_back._looking is not None:
                await give_back._looking

        await scenario(process, look)
        await give_back.stop()
        trims = process.trims
        process.unused_bytes += 10 * GIVE_BACK_BYTES_MIN
        clock.advance(10 * GIVE_BACK_LOOK_SECS)
        await turns()
        assert process.trims == trims, "it was stopped"

    asyncio.run(run())


def test_what_a_burst_has_left_is_given_back_once_there_is_little_to_do() -> None:
    async def scenario(process: FakeProcess, look: Look) -> None:
        await look()
        process.unused_bytes += GIVE_BACK_BYTES_MIN
        process.cpu_secs += 1.1 * GIVE_BACK_CPU_SHARE_MAX * GIVE_BACK_LOOK_SECS
        await look()
        assert process.trims == 0, "who is busy will need it again"
        await look()
        assert process.trims == 1

    looking(scenario)


def test_little_is_not_worth_the_work() -> None:
    async def scenario(process: FakeProcess, look: Look) -> None:
        process.unused_bytes += GIVE_BACK_BYTES_MIN - 1
        for _ in range(3):
            await look()
        assert process.trims == 0

    looking(scenario)


def test_what_cannot_be_given_back_is_not_tried_again_until_more_has_come() -> None:
    async def scenario(process: FakeProcess, look: Look) -> None:
        process.unused_bytes = process.left_bytes = 500 * MIB
        for _ in range(3):
            await look()
        assert process.trims == 1
        process.unused_bytes += GIVE_BACK_BYTES_MIN
        await look()
        assert process.trims == 2
        process.unused_bytes = 20 * MIB
        await look()
        process.unused_bytes += GIVE_BACK_BYTES_MIN
        await look()
        assert process.trims == 3, "it counts from the least that was seen"

    looking(scenario)


def test_the_system_has_the_memory_back_of_what_is_freed_between_things_that_stay() -> None:
    text = (
        "from bourn.engine.give_back import own_process\n"
        "from bourn.engine.process import tune_process\n"
        "def resident():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "tune_process()\n"
        "process = own_process()\n"
        "before = process.unused_bytes()\n"
        "pieces = [bytes([1]) * 20_000 for _ in range(6000)]\n"
        "assert process.unused_bytes() < before + (30 << 20), 'all of it is in use'\n"
        "stay = pieces[::20]\n"
        "del pieces\n"
        "full = resident()\n"
        "assert process.unused_bytes() > before + (90 << 20)\n"
        "process.trim()\n"
        "assert resident() < full - (80 << 20)\n"
        "assert process.unused_bytes() < before + (30 << 20)\n"
        "assert all(piece == bytes([1]) * 20_000 for piece in stay)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr

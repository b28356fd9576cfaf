"""A node that joins what it has in memory reads as one that fetches all of it, one by one."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.clock import ManualClock
from bourn.engine.batch import ReadBatch
from bourn.engine.node import Node
from bourn.errors import Unwritten
from bourn.limits import READ_JOINED_RUNS_MIN
from bourn.log.cursor import make_request, unary
from bourn.model.record import Record
from bourn.settings import EngineSettings
from tests.engine.harness import bodies, read_one, trim
from tests.engine.test_neighbours import (
    CALM,
    NOW_MS,
    Far,
    append,
    batches_of,
    keep_for,
    sizes,
    texts,
)
from tests.support import BASIN, STREAM, node_on, run, with_stream

CALM_NO_TAIL = EngineSettings(
    housekeeping_secs=1e9, epoch_poll_secs=1e9, history_poll_secs=1e9, tail_cache_bytes=0
)


class Pair:
    """A node that has all in memory, and one that fetches everything; else they are alike."""

    def __init__(self, joining: Node, fetching: Node, clock: ManualClock) -> None:
        self.joining, self.fetching, self.clock = joining, fetching, clock

    async def append(self, *records: Record | str | bytes) -> None:
        for node in (self.joining, self.fetching):
            await append(node, *records)

    async def keep_for(self, secs: int | None) -> None:
        for node in (self.joining, self.fetching):
            await keep_for(node, secs)

    async def compare(self, **query: Any) -> ReadBatch | None:
        """What both read is the same, by every way there is to read."""
        joining, fetching = self.joining, self.fetching
        request = make_request(**query)
        try:
            expected = await read_one(fetching, **query)
        except Unwritten as refused:
            with pytest.raises(Unwritten, match=re.escape(refused.message)):
                await read_one(joining, **query)
            return None
        found = await read_one(joining, **query)
        same(found, expected)
        assert max([0, *sizes(expected)]) <= 3, "nothing is joined there"
        at_once = joining.read_now(BASIN, STREAM, unary(request))
        assert at_once is not None
        same(at_once.batch, expected)
        assert sizes(at_once.batch) == sizes(found)
        if query.get("wait") == 0:
            batches = await batches_of(joining, **query)
            others = await batches_of(fetching, **query)
            for mine, theirs in zip(batches, others, strict=True):
                same(mine, theirs)
        return found


def same(found: ReadBatch, expected: ReadBatch) -> None:
    assert found.records() == expected.records()
    assert found.tail == expected.tail
    assert found.metered_bytes == expected.metered_bytes
    assert found.records_count == expected.records_count
    assert b"".join(found.wire()) == b"".join(expected.wire())


@asynccontextmanager
async def pair_of_nodes() -> AsyncIterator[Pair]:
    clock, bucket = ManualClock(NOW_MS), Far()
    async with (
        node_on(settings=CALM, clock=clock) as joining,
        node_on(bucket, CALM_NO_TAIL, clock=clock) as fetching,
    ):
        for node in (joining, fetching):
            await with_stream(node)
        yield Pair(joining, fetching, clock)


def test_it_expires_record_by_record_as_ever() -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as pair:
            await pair.keep_for(10)
            for number in range(40):
                pair.clock.set_wall(NOW_MS + 100 * number)
                await pair.append(f"{number}")
            for at_ms in (*range(3_900, 14_100, 333), 10_000, 10_099, 10_100, 13_899, 13_900):
                pair.clock.set_wall(NOW_MS + at_ms)
                gone = sum(100 * number + 10_000 <= at_ms for number in range(40))
                found = await pair.compare(seq_num=0)
                assert found is not None
                assert bodies(found.records()) == texts(range(gone, 40))
                if 40 - gone >= 2 * READ_JOINED_RUNS_MIN:
                    assert found.slices[-1].stop > 1
                await pair.compare(timestamp=NOW_MS + 2_000)

    run(scenario())


def test_records_that_are_kept_otherwise_are_another_batch_and_expire_alone() -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as pair:
            for begin, secs in ((0, None), (10, 5), (20, 60), (30, None)):
                await pair.keep_for(secs)
                for number in range(begin, begin + 10):
                    await pair.append(f"{number}")
            for at_ms, kept, slices in (
                (4_999, texts(range(40)), 4),
                (5_000, texts(range(10), range(20, 40)), 3),
                (60_000, texts(range(10), range(30, 40)), 2),
            ):
                pair.clock.set_wall(NOW_MS + at_ms)
                found = await pair.compare(seq_num=0)
                assert found is not None
                assert bodies(found.records()) == kept
                assert sizes(found) == [10] * slices

    run(scenario())


# A stream with a history: trimmed, with batches of several records, timestamps and headers


class Filled(NamedTuple):
    pair: Pair
    runner: asyncio.Runner


async def _fill_both(pair: Pair) -> None:
    for number in range(160):
        pair.clock.set_wall(NOW_MS + 10 * (number // 2))
        headers = ((b"name", b"%d" % number),) * (number % 3)
        record = Record(b"b" * (number * 7 % 50), headers)
        if number % 40 == 30:
            await pair.append(record, "beside", record)
        else:
            await pair.append(record)
        if number == 90:
            await pair.append(trim(21))


@pytest.fixture(scope="module")
def filled() -> Iterator[Filled]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def begin() -> Pair:
            pair = await stack.enter_async_context(pair_of_nodes())
            await _fill_both(pair)
            return pair

        yield Filled(runner.run(begin()), runner)
        runner.run(stack.aclose())


limits = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(0, 175),
        "bytes": st.integers(0, 9000),
        "until": st.integers(NOW_MS - 5, NOW_MS + 850),
        "clamp": st.booleans(),
        "wait": st.just(0),
    },
)
starts = st.one_of(
    st.fixed_dictionaries({"seq_num": st.integers(0, 175)}),
    st.fixed_dictionaries({"tail_offset": st.integers(0, 175)}),
    st.fixed_dictionaries({"timestamp": st.integers(NOW_MS - 5, NOW_MS + 820)}),
)


@settings(max_examples=250)
@given(starts, limits)
def test_whatever_is_asked_for_is_what_a_node_gives_that_keeps_nothing(
    filled: Filled, start: dict[str, int], limit: dict[str, int]
) -> None:
    if start.get("timestamp", 0) < limit.get("until", start.get("timestamp", 0) + 1):
        filled.runner.run(filled.pair.compare(**start, **limit))


def test_every_position_and_time_of_a_trimmed_stream_is_read_alike(filled: Filled) -> None:
    async def scenario() -> None:
        for start in range(0, 175, 4):
            await filled.pair.compare(seq_num=start)
        for stamp in range(NOW_MS, NOW_MS + 800, 35):
            found = await filled.pair.compare(timestamp=stamp)
            assert found is not None
        found = await filled.pair.compare(seq_num=0)
        assert found is not None
        assert found.records()[0].seq_num == 21
        assert max(sizes(found)) > 100

    filled.runner.run(scenario())

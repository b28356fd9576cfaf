"""Conditions on appends: judged by all that was admitted, answered by what is durable."""

import asyncio

import pytest

from bourn.bucket.port import Bucket
from bourn.errors import (
    BucketRefused,
    FencingTokenMismatch,
    Invalid,
    OutcomeUnknown,
    SeqNumMismatch,
    StreamDeletionPending,
)
from bourn.layout.keys import WAL_PREFIX
from bourn.model.config import TimestampMode
from bourn.model.patch import StreamPatch, TimestampingPatch
from bourn.model.record import AppendAck
from tests.engine.harness import (
    Storage,
    append_each,
    bodies,
    fence,
    gated_node,
    keys_of,
    soon,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, with_stream


def test_match_seq_num_is_the_number_that_the_first_record_would_get(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch("a", "b"), match_seq_num=0)
            for wrong in (0, 1, 3):
                with pytest.raises(SeqNumMismatch) as mismatch:
                    await node.append(BASIN, STREAM, batch("x"), match_seq_num=wrong)
                assert mismatch.value.next_seq_num == 2
            await node.append(BASIN, STREAM, batch("c"), match_seq_num=2)
            assert bodies(await read_all(node)) == [b"a", b"b", b"c"]

    storage.run(scenario)


def test_of_two_appends_with_one_match_seq_num_one_wins_and_the_other_sees_its_end(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            outcomes = await asyncio.gather(
                *(
                    node.append(BASIN, STREAM, batch(text, text), match_seq_num=0)
                    for text in ("a", "b")
                ),
                return_exceptions=True,
            )
            assert isinstance(outcomes[0], AppendAck)
            assert isinstance(outcomes[1], SeqNumMismatch)
            assert outcomes[1].next_seq_num == outcomes[0].end.seq_num == 2
            assert bodies(await read_all(node)) == [b"a", b"a"]

    storage.run(scenario)


def test_fencing_is_by_token_and_only_for_those_who_give_one(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)

            async def refused(token: str) -> str:
                with pytest.raises(FencingTokenMismatch) as mismatch:
                    await node.append(BASIN, STREAM, batch("x"), fencing_token=token)
                return mismatch.value.fencing_token

            await node.append(BASIN, STREAM, batch("a"), fencing_token="")
            assert await refused("one") == ""
            await node.append(BASIN, STREAM, batch(fence("one"), "b"), fencing_token="")
            assert await refused("") == "one"
            assert await refused("two") == "one"
            await node.append(BASIN, STREAM, batch("c"), fencing_token="one")
            await node.append(BASIN, STREAM, batch("d"))  # nothing given, nothing checked
            await node.append(BASIN, STREAM, batch(fence("two"), fence("three")))
            assert await refused("two") == "three"
            await node.append(BASIN, STREAM, batch(fence("")), fencing_token="three")
            await node.append(BASIN, STREAM, batch("e"), fencing_token="")
            texts = [r.body for r in await read_all(node) if not r.headers]
            assert texts == [b"a", b"b", b"c", b"d", b"e"]

    storage.run(scenario)


def test_the_fencing_token_survives_a_restart_with_and_without_a_snapshot(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch(fence("mine")))
        for key in await keys_of(bucket, "catalog/"):
            await bucket.delete(key)
        for _ in range(2):  # from the log alone, then from the snapshot of the first
            async with node_on(bucket) as node:
                with pytest.raises(FencingTokenMismatch) as mismatch:
                    await node.append(BASIN, STREAM, batch("x"), fencing_token="other")
                assert mismatch.value.fencing_token == "mine"
                await node.append(BASIN, STREAM, batch("y"), fencing_token="mine")

    storage.run(scenario)


def test_a_batch_that_breaks_several_rules_is_refused_for_the_first_of_them(
    memory: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch(fence("t")))
            mode = TimestampingPatch(mode=TimestampMode.CLIENT_REQUIRE)
            await node.reconfigure_stream(BASIN, STREAM, StreamPatch(timestamping=mode))
            appender = await node.appender(BASIN, STREAM)
            with pytest.raises(FencingTokenMismatch):
                await node.append(BASIN, STREAM, batch("x"), match_seq_num=9, fencing_token="u")
            with pytest.raises(SeqNumMismatch):
                await node.append(BASIN, STREAM, batch("x"), match_seq_num=9, fencing_token="t")
            with pytest.raises(Invalid):
                await node.append(BASIN, STREAM, batch("x"), match_seq_num=1, fencing_token="t")
            await node.delete_stream(BASIN, STREAM)
            with pytest.raises(StreamDeletionPending):
                await appender.append(batch("x"), match_seq_num=9, fencing_token="u")
            appender.close()

    memory.run(scenario)


def test_a_refusal_has_no_effect_at_all(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await append_each(node, "a")
            stored = await keys_of(bucket, WAL_PREFIX)
            tail = await node.check_tail(BASIN, STREAM)
            with pytest.raises(SeqNumMismatch):
                await node.append(BASIN, STREAM, batch(fence("x")), match_seq_num=5)
            with pytest.raises(FencingTokenMismatch):
                await node.append(BASIN, STREAM, batch(fence("x")), fencing_token="y")
            assert await keys_of(bucket, WAL_PREFIX) == stored
            assert await node.check_tail(BASIN, STREAM) == tail
            assert node.term.room.bytes_taken == 0
            await node.append(BASIN, STREAM, batch("b"), match_seq_num=1, fencing_token="")

    storage.run(scenario)


# In flight


def test_conditions_see_what_is_in_flight_and_their_refusals_wait_for_it(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            gated.shut = True
            winner = asyncio.ensure_future(node.append(BASIN, STREAM, batch(fence("t"), "a")))
            (key,) = await gated.until_held(1)
            by_number = asyncio.ensure_future(
                node.append(BASIN, STREAM, batch("x"), match_seq_num=0)
            )
            by_token = asyncio.ensure_future(
                node.append(BASIN, STREAM, batch("x"), fencing_token="")
            )
            await turns()
            assert not winner.done()
            assert not by_number.done()
            assert not by_token.done()
            gated.let(key)
            assert (await soon(winner)).end.seq_num == 2
            with pytest.raises(SeqNumMismatch) as number:
                await soon(by_number)
            assert number.value.next_seq_num == 2
            with pytest.raises(FencingTokenMismatch) as token:
                await soon(by_token)
            assert token.value.fencing_token == "t"

    storage.run(scenario)


def test_a_refusal_fails_with_the_write_that_it_rests_on(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            gated.shut = True
            doubtful = asyncio.ensure_future(node.append(BASIN, STREAM, batch("a")))
            (key,) = await gated.until_held(1)
            refused = asyncio.ensure_future(node.append(BASIN, STREAM, batch("x"), match_seq_num=0))
            await turns()
            gated.let(key, BucketRefused(key, "no"))
            gated.open()
            for append in (doubtful, refused):
                with pytest.raises(OutcomeUnknown):
                    await soon(append)
            # The state that refused it never was: the same condition holds now.
            ack = await soon(node.append(BASIN, STREAM, batch("x"), match_seq_num=0))
            assert ack.start.seq_num == 0

    storage.run(scenario)


def test_a_refusal_waits_for_nothing_but_its_own_stream(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            await with_stream(node, "other-basin", "other")
            gated.shut = True
            other = asyncio.ensure_future(node.append("other-basin", "other", batch("a")))
            await gated.until_held(1)
            with pytest.raises(SeqNumMismatch):
                await soon(node.append(BASIN, STREAM, batch("x"), match_seq_num=7))
            assert not other.done()
            gated.open()
            await soon(other)

    storage.run(scenario)


# Sessions


def test_what_a_session_sent_behind_a_refused_batch_is_never_applied(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            appender = await node.appender(BASIN, STREAM)
            gated.shut = True
            settled: list[int] = []
            futures = []
            for i, match in enumerate((0, 1, 7, 2, None)):
                text = batch(f"{i}")
                await appender.room_for(text)
                future = appender.submit(text, match_seq_num=match)
                future.add_done_callback(lambda _, i=i: settled.append(i))  # type: ignore[misc]
                futures.append(future)
            await gated.until_held(1)
            await turns()
            assert settled == []
            gated.open()
            outcomes = await soon(asyncio.gather(*futures, return_exceptions=True))
            await turns(2)
            assert [type(outcome) for outcome in outcomes[:3]] == [
                AppendAck,
                AppendAck,
                SeqNumMismatch,
            ]
            assert not any(isinstance(outcome, AppendAck) for outcome in outcomes[3:])
            assert settled == [0, 1, 2, 3, 4]
            assert bodies(await read_all(node)) == [b"0", b"1"]
            assert node.term.room.bytes_taken == 0
            # Another session is not concerned.
            assert (await node.append(BASIN, STREAM, batch("z"))).start.seq_num == 2
            appender.close()

    storage.run(scenario)

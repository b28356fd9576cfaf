"""Basins and streams: every verb, what survives a restart, and answers that never come undone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bourn.bucket.port import Bucket
from bourn.catalog.changes import Provision, PutStream, decode_change
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.errors import (
    BasinDeletionPending,
    BasinNotFound,
    BucketRefused,
    Invalid,
    OutcomeUnknown,
    ResourceAlreadyExists,
    StreamDeletionPending,
    StreamNotFound,
)
from bourn.log.cursor import make_request
from bourn.model.config import (
    Age,
    BasinConfig,
    Cipher,
    DeleteOnEmpty,
    Infinite,
    ResolvedStreamConfig,
    StreamConfig,
    Timestamping,
    TimestampMode,
)
from bourn.model.patch import BasinPatch, StreamPatch, TimestampingPatch
from bourn.model.resource import CreateBasin, CreateStream, EnsureBasin
from tests.engine.harness import (
    Storage,
    append_each,
    commits_of,
    crash,
    eventually,
    gated_node,
    read_one,
    soon,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, with_stream

NOW_MS = 1_700_000_000_000
DAY = StreamConfig(retention_policy=Age(86_400))
FOREVER = StreamConfig(retention_policy=Infinite())
AUTO = BasinConfig(create_stream_on_append=True, create_stream_on_read=True)


# Create


def test_a_basin_and_a_stream_are_created_once(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            basin = await node.create_basin(CreateBasin(BASIN, AUTO))
            assert basin.provision is Provision.CREATED
            assert (basin.row.created_at_ms, basin.row.location) == (NOW_MS, "local")
            stream = await node.create_stream(BASIN, CreateStream(STREAM, DAY))
            assert stream.provision is Provision.CREATED
            assert stream.row.config == ResolvedStreamConfig(retention_policy=Age(86_400))
            clock.advance(5)
            with pytest.raises(ResourceAlreadyExists):
                await node.create_basin(CreateBasin(BASIN, AUTO))
            with pytest.raises(ResourceAlreadyExists):
                await node.create_stream(BASIN, CreateStream(STREAM, DAY))
            with pytest.raises(BasinNotFound):
                await node.create_stream("no-such-basin", CreateStream(STREAM))
            with pytest.raises(Invalid):
                await node.create_basin(CreateBasin("elsewhere", location="mars"))
            assert await node.basin_config(BASIN) == AUTO
            assert await node.stream_config(BASIN, STREAM) == stream.row.config

    storage.run(scenario)


@pytest.mark.parametrize("ending", ["none", "close", "crash"])
def test_a_create_is_known_again_by_its_token_and_its_config(storage: Storage, ending: str) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        node = await Node.open(bucket, clock=clock)
        made = await node.create_basin(CreateBasin(BASIN, AUTO), "basin-token")
        stream = await node.create_stream(BASIN, CreateStream(STREAM, DAY), "stream-token")
        await node.create_stream(BASIN, CreateStream("tokenless"))
        clock.advance(60)
        forever = StreamPatch(retention_policy=Infinite())
        await node.reconfigure_stream(BASIN, STREAM, forever)
        if ending != "none":
            await (node.close() if ending == "close" else crash(node))
            node = await Node.open(bucket, clock=clock)
        again = await node.create_basin(CreateBasin(BASIN, AUTO), "basin-token")
        assert (again.provision, again.row) == (Provision.NOOP, made.row)
        known = await node.create_stream(BASIN, CreateStream(STREAM, DAY), "stream-token")
        assert known.provision is Provision.NOOP
        assert known.row.created_at_ms == stream.row.created_at_ms
        assert known.row.config.retention_policy == Infinite(), "the stream as it is by now"
        for request, token in (
            (CreateStream(STREAM, DAY), None),
            (CreateStream(STREAM, DAY), "other-token"),
            (CreateStream(STREAM, FOREVER), "stream-token"),
            (CreateStream("tokenless"), "stream-token"),
            (CreateStream("tokenless"), None),
        ):
            with pytest.raises(ResourceAlreadyExists):
                await node.create_stream(BASIN, request, token)
        with pytest.raises(ResourceAlreadyExists):
            await node.create_basin(CreateBasin(BASIN), "basin-token")
        await node.close()

    storage.run(scenario)


def test_of_many_creates_at_once_exactly_one_creates(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN))
            outcomes = await asyncio.gather(
                *(node.create_stream(BASIN, CreateStream(STREAM)) for _ in range(10)),
                return_exceptions=True,
            )
            assert sum(isinstance(o, ResourceAlreadyExists) for o in outcomes) == 9
            with_token = await asyncio.gather(
                *(node.create_stream(BASIN, CreateStream("other"), "token") for _ in range(10))
            )
            provisions = [decision.provision for decision in with_token]
            assert sorted(provisions) == [Provision.CREATED] + [Provision.NOOP] * 9
            assert len({decision.row.id for decision in with_token}) == 1

    storage.run(scenario)


# Ensure


def test_ensure_creates_updates_or_leaves(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            default = BasinConfig(default_stream_config=DAY)
            steps = [
                (await node.ensure_basin(BASIN, EnsureBasin(default))).provision,
                (await node.ensure_basin(BASIN, EnsureBasin(default))).provision,
                (await node.ensure_basin(BASIN)).provision,
                (await node.ensure_basin(BASIN, EnsureBasin(location="local"))).provision,
            ]
            created, updated, noop = Provision.CREATED, Provision.UPDATED, Provision.NOOP
            assert steps == [created, noop, updated, noop]
            assert await node.basin_config(BASIN) == BasinConfig()
            with pytest.raises(Invalid):
                await node.ensure_basin(BASIN, EnsureBasin(location="mars"))
            token = await node.create_stream(BASIN, CreateStream(STREAM, FOREVER), "t")
            clock.advance(10)
            assert (await node.ensure_stream(BASIN, STREAM, FOREVER)).provision is noop
            reset = await node.ensure_stream(BASIN, STREAM)
            assert reset.provision is updated
            assert reset.row.config == ResolvedStreamConfig()
            assert reset.row.created_at_ms == token.row.created_at_ms == NOW_MS
            known = await node.create_stream(BASIN, CreateStream(STREAM, FOREVER), "t")
            assert known.provision is noop
            assert (await node.ensure_stream(BASIN, "new", DAY)).provision is created
            with pytest.raises(BasinNotFound):
                await node.ensure_stream("no-such-basin", STREAM)

    storage.run(scenario)


# Configs


def test_streams_take_their_basins_defaults_when_they_are_made_and_not_later(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            default = StreamConfig(
                retention_policy=Age(100),
                timestamping=Timestamping(mode=TimestampMode.ARRIVAL),
                delete_on_empty=DeleteOnEmpty(7),
            )
            config = BasinConfig(default_stream_config=default, stream_cipher=Cipher.AEGIS_256)
            await node.create_basin(CreateBasin(BASIN, config))
            own = StreamConfig(timestamping=Timestamping(uncapped=True))
            made = await node.create_stream(BASIN, CreateStream(STREAM, own))
            assert made.row.cipher is Cipher.AEGIS_256
            assert made.row.config.retention_policy == Age(100)
            assert made.row.config.timestamping.mode is TimestampMode.ARRIVAL
            assert made.row.config.timestamping.uncapped
            assert made.row.config.delete_on_empty == DeleteOnEmpty(7)
            patch = BasinPatch(
                default_stream_config=StreamPatch(retention_policy=Age(999)), stream_cipher=None
            )
            changed = await node.reconfigure_basin(BASIN, patch)
            assert changed.default_stream_config.retention_policy == Age(999)
            assert changed.default_stream_config.delete_on_empty == DeleteOnEmpty(7)
            assert await node.stream_config(BASIN, STREAM) == made.row.config
            cleared = StreamPatch(retention_policy=None)
            after = await node.reconfigure_stream(BASIN, STREAM, cleared)
            assert after.retention_policy == Age(999)
            ensured = await node.ensure_stream(BASIN, STREAM)
            assert ensured.row.cipher is Cipher.AEGIS_256, "for the stream's life"
            assert not ensured.row.config.timestamping.uncapped

    storage.run(scenario)


def test_a_patch_changes_what_it_names_and_survives_a_restart(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            before = await node.stream_config(BASIN, STREAM)
            assert await node.reconfigure_stream(BASIN, STREAM, StreamPatch()) == before
            mode = TimestampingPatch(mode=TimestampMode.ARRIVAL, uncapped=True)
            await node.reconfigure_stream(BASIN, STREAM, StreamPatch(timestamping=mode))
            only_cap = TimestampingPatch(uncapped=None)
            await node.reconfigure_stream(BASIN, STREAM, StreamPatch(timestamping=only_cap))
            await node.reconfigure_basin(BASIN, BasinPatch(create_stream_on_read=True))
            await crash(node)
        async with node_on(bucket) as node:
            config = await node.stream_config(BASIN, STREAM)
            assert config.timestamping.mode is TimestampMode.ARRIVAL
            assert not config.timestamping.uncapped
            assert config.retention_policy == before.retention_policy
            assert (await node.basin_config(BASIN)).create_stream_on_read
            cleared = await node.reconfigure_stream(BASIN, STREAM, StreamPatch(timestamping=None))
            assert cleared == before

    storage.run(scenario)


def test_what_is_not_there_cannot_be_shown_changed_or_deleted(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN))
            no_basin: list[Awaitable[Any]] = [
                node.basin_config("no-such-basin"),
                node.reconfigure_basin("no-such-basin", BasinPatch()),
                node.delete_basin("no-such-basin"),
                node.list_streams("no-such-basin"),
                node.reconfigure_stream("no-such-basin", STREAM, StreamPatch()),
                node.append("no-such-basin", STREAM, batch("x")),
                node.check_tail("no-such-basin", STREAM),
                read_one(node, basin="no-such-basin", seq_num=0),
            ]
            for work in no_basin:
                with pytest.raises(BasinNotFound):
                    await work
            no_stream: list[Awaitable[Any]] = [
                node.stream_config(BASIN, STREAM),
                node.stream_config("no-such-basin", STREAM),
                node.reconfigure_stream(BASIN, STREAM, StreamPatch()),
                node.delete_stream(BASIN, STREAM),
                node.delete_stream("no-such-basin", STREAM),
                node.append(BASIN, STREAM, batch("x")),
                node.appender(BASIN, STREAM),
                node.check_tail(BASIN, STREAM),
                read_one(node, seq_num=0),
            ]
            for work in no_stream:
                with pytest.raises(StreamNotFound):
                    await work
            assert node.term.room.bytes_taken == 0
            assert (await node.list_streams(BASIN)).rows == []

    storage.run(scenario)


# Auto-creation


@pytest.mark.parametrize("call", ["append", "appender", "read", "tail"])
def test_the_first_data_call_makes_the_stream_where_the_basin_says_so(
    storage: Storage, call: str
) -> None:
    calls: dict[str, Callable[[Node], Awaitable[Any]]] = {
        "append": lambda node: node.append(BASIN, STREAM, batch("x"), config=FOREVER),
        "appender": lambda node: node.appender(BASIN, STREAM, FOREVER),
        "read": lambda node: soon(
            node.read_session(BASIN, STREAM, make_request(seq_num=0), FOREVER).__aenter__()
        ),
        "tail": lambda node: node.check_tail(BASIN, STREAM),
    }
    by_append = call.startswith("append")

    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            on = BasinConfig(create_stream_on_append=by_append, create_stream_on_read=not by_append)
            off = BasinConfig(
                create_stream_on_append=not by_append, create_stream_on_read=by_append
            )
            await node.create_basin(CreateBasin(BASIN, off))
            with pytest.raises(StreamNotFound):
                await calls[call](node)
            await node.ensure_basin(BASIN, EnsureBasin(on))
            await calls[call](node)
            config = await node.stream_config(BASIN, STREAM)
            wanted = Age(604_800) if call == "tail" else Infinite()
            assert config.retention_policy == wanted

    storage.run(scenario)


def test_concurrent_first_requests_all_succeed_on_one_stream(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await node.create_basin(CreateBasin(BASIN, AUTO))
            gated.shut = True
            appends = [
                asyncio.ensure_future(node.append(BASIN, STREAM, batch(f"{i}"))) for i in range(8)
            ]
            tails = [asyncio.ensure_future(node.check_tail(BASIN, STREAM)) for _ in range(4)]
            await gated.until_held(1)
            await turns()
            assert not any(work.done() for work in [*appends, *tails]), "it may still vanish"
            gated.open()
            acks = await soon(asyncio.gather(*appends))
            assert sorted(ack.start.seq_num for ack in acks) == list(range(8))
            assert {tail.seq_num for tail in await soon(asyncio.gather(*tails))} <= {0, 8}
            created = [
                change
                for commit in (await commits_of(bucket)).values()
                for change in map(decode_change, commit.changes)
                if isinstance(change, PutStream)
            ]
            assert len(created) == 1

    storage.run(scenario)


def test_a_stream_and_its_first_records_are_one_commit(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN, AUTO))
            before = set(await commits_of(bucket))
            await node.append(BASIN, STREAM, batch("first"))
            added = {k: c for k, c in (await commits_of(bucket)).items() if k not in before}
            (commit,) = added.values()
            assert len(commit.changes) == 1
            ((location, entries),) = commit.runs
            assert entries[0].count == 1
            assert location.stream_id == (await node.list_streams(BASIN)).rows[0].id
            await crash(node)
        async with node_on(bucket) as node:
            assert (await node.check_tail(BASIN, STREAM)).seq_num == 1

    storage.run(scenario)


# Durable answers


def test_answers_about_the_catalog_wait_until_what_they_say_is_durable(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await node.create_basin(CreateBasin(BASIN))
            gated.shut = True
            works: list[Awaitable[Any]] = [
                node.create_stream(BASIN, CreateStream(STREAM)),
                node.create_stream(BASIN, CreateStream(STREAM)),
                node.list_streams(BASIN),
                node.list_basins(),
                node.stream_config(BASIN, STREAM),
                node.basin_config(BASIN),
                node.check_tail(BASIN, STREAM),
                node.reconfigure_stream(BASIN, STREAM, StreamPatch()),
                node.append(BASIN, STREAM, batch("x")),
                node.delete_stream(BASIN, "absent"),
            ]
            answers = []
            for work in works:
                answers.append(asyncio.ensure_future(work))
                await turns(2)
            await gated.until_held(1)
            await turns()
            assert [answer.done() for answer in answers] == [False] * len(answers)
            gated.open()
            outcomes: list[Any] = await soon(asyncio.gather(*answers, return_exceptions=True))
            assert isinstance(outcomes[1], ResourceAlreadyExists)
            assert [row.name for row in outcomes[2].rows] == [STREAM]
            assert isinstance(outcomes[-1], StreamNotFound)

    storage.run(scenario)


@pytest.mark.parametrize("question", ["list_streams", "list_basins", "stream_config", "basin"])
def test_an_answer_never_shows_what_came_after_the_question_and_may_still_vanish(
    storage: Storage, question: str
) -> None:
    questions: dict[str, Callable[[Node], Awaitable[Any]]] = {
        "list_streams": lambda node: node.list_streams(BASIN),
        "list_basins": lambda node: node.list_basins(),
        "stream_config": lambda node: node.stream_config(BASIN, STREAM),
        "basin": lambda node: node.basin_config(BASIN),
    }

    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            expected = await questions[question](node)
            gated.shut = True
            first = asyncio.ensure_future(node.create_stream("other-basin", CreateStream("x")))
            with pytest.raises(BasinNotFound):
                await first
            other = asyncio.ensure_future(node.ensure_stream(BASIN, STREAM))
            await soon(other)  # changes nothing, so there is nothing to wait for
            change = asyncio.ensure_future(node.append(BASIN, STREAM, batch("x")))
            pending = asyncio.ensure_future(
                node.reconfigure_basin(BASIN, BasinPatch(create_stream_on_append=True))
            )
            (key,) = await gated.until_held(1)
            seen = asyncio.ensure_future(questions[question](node))
            await turns(2)
            later: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(node.create_stream(BASIN, CreateStream("later"))),
                asyncio.ensure_future(node.create_basin(CreateBasin("later-basin"))),
                asyncio.ensure_future(
                    node.reconfigure_stream(BASIN, STREAM, StreamPatch(retention_policy=Age(5)))
                ),
                asyncio.ensure_future(
                    node.reconfigure_basin(BASIN, BasinPatch(create_stream_on_read=True))
                ),
            ]
            await turns(2)
            gated.let(key)
            answer = await soon(seen)
            assert not any(work.done() for work in later)
            if question == "list_basins":
                assert [row.name for row in answer.rows] == [BASIN]
                assert not answer.rows[0].config.create_stream_on_read
            elif question == "basin":
                assert answer == BasinConfig(create_stream_on_append=True)
            else:
                assert answer == expected
            gated.open()
            await soon(asyncio.gather(change, pending, *later))

    storage.run(scenario)


def test_an_answer_that_rests_on_a_failed_write_fails_with_it(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await node.create_basin(CreateBasin(BASIN))
            gated.shut = True
            works = [
                asyncio.ensure_future(node.create_stream(BASIN, CreateStream(STREAM))),
                asyncio.ensure_future(node.create_stream(BASIN, CreateStream(STREAM))),
                asyncio.ensure_future(node.list_streams(BASIN)),
            ]
            (key,) = await gated.until_held(1)
            await turns()
            gated.let(key, BucketRefused(key, "no"))
            gated.open()
            for work in works:
                with pytest.raises(OutcomeUnknown):
                    await soon(work)
            assert (await node.list_streams(BASIN)).rows == []
            await node.create_stream(BASIN, CreateStream(STREAM))

    storage.run(scenario)


# Deleting


def test_while_a_stream_goes_every_call_to_it_says_so(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await node.create_basin(CreateBasin(BASIN, AUTO))
            await node.create_stream(BASIN, CreateStream(STREAM))
            appender = await node.appender(BASIN, STREAM)
            gated.shut = True
            delete = asyncio.ensure_future(node.delete_stream(BASIN, STREAM))
            await gated.until_held(1)
            again = asyncio.ensure_future(node.delete_stream(BASIN, STREAM))
            listing = asyncio.ensure_future(node.list_streams(BASIN))
            calls: list[Awaitable[Any]] = [
                node.append(BASIN, STREAM, batch("x")),
                appender.append(batch("x")),
                node.appender(BASIN, STREAM),
                read_one(node, seq_num=0),
                node.check_tail(BASIN, STREAM),
                node.stream_config(BASIN, STREAM),
                node.reconfigure_stream(BASIN, STREAM, StreamPatch()),
                node.create_stream(BASIN, CreateStream(STREAM)),
                node.ensure_stream(BASIN, STREAM),
            ]
            answers = [asyncio.ensure_future(call) for call in calls]
            await turns()
            assert not any(answer.done() for answer in [delete, again, listing, *answers])
            gated.open()
            await soon(asyncio.gather(delete, again))
            for answer in answers:
                with pytest.raises(StreamDeletionPending):
                    await soon(answer)
            (row,) = (await soon(listing)).rows
            assert row.deleted_at_ms is not None
            appender.close()

    storage.run(scenario)


def test_while_a_basin_goes_its_streams_still_work_and_nothing_new_is_made(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await node.create_basin(CreateBasin(BASIN, AUTO))
            await node.create_stream(BASIN, CreateStream(STREAM))
            gated.shut = True
            delete = asyncio.ensure_future(node.delete_basin(BASIN))
            await gated.until_held(1)
            again = asyncio.ensure_future(node.delete_basin(BASIN))
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("x")))
            config = asyncio.ensure_future(node.basin_config(BASIN))
            calls: list[Awaitable[Any]] = [
                node.create_basin(CreateBasin(BASIN)),
                node.ensure_basin(BASIN),
                node.reconfigure_basin(BASIN, BasinPatch()),
                node.create_stream(BASIN, CreateStream("new")),
                node.ensure_stream(BASIN, "new"),
                node.reconfigure_stream(BASIN, STREAM, StreamPatch()),
                node.append(BASIN, "new", batch("x")),
                node.check_tail(BASIN, "new"),
            ]
            answers = [asyncio.ensure_future(call) for call in calls]
            await turns()
            gated.open()
            await soon(asyncio.gather(delete, again, config))
            assert (await soon(append)).end.seq_num == 1
            for answer in answers:
                with pytest.raises(BasinDeletionPending):
                    await soon(answer)
            await eventually(lambda: node.term.state.basins.get(BASIN) is None)
            assert (await node.list_basins()).rows == []
            await append_each_missing(node)

    storage.run(scenario)


async def append_each_missing(node: Node) -> None:
    with pytest.raises(BasinNotFound):
        await append_each(node, "x")

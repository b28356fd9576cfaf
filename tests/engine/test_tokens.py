"""Access tokens on a node: durable before they are known, and there again behind every start."""

import asyncio

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.catalog.tokens import TokenRow, digest_of
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.errors import AccessTokenNotFound, BucketRefused, Fenced, ResourceAlreadyExists
from bourn.model.access import ALL, Op, Scope
from bourn.model.access_json import IssueToken
from tests.engine.harness import GatedBucket, Storage, eventually, soon, turns
from tests.support import BASIN, STREAM, batch, node_on, run, with_stream

SCOPE = Scope(basins=ALL, streams=ALL, ops=(Op.READ,))


async def issue(node: Node, token_id: str, expires_at_ns: int | None = None) -> TokenRow:
    request = IssueToken(token_id, SCOPE, expires_at_ns=expires_at_ns)
    return await node.issue_token(request, digest_of(token_id.encode()))


async def ids(node: Node) -> list[str]:
    return [row.id for row in (await node.list_tokens()).rows]


async def knows(node: Node, secret: str) -> bool:
    return await node.token_of(digest_of(secret.encode())) is not None


def test_a_token_is_durable_before_it_is_issued_and_gone_for_good_once_revoked() -> None:
    async def scenario() -> None:
        bucket = GatedBucket(MemoryBucket())
        async with node_on(bucket) as node:
            bucket.shut = True
            issuing = asyncio.ensure_future(issue(node, "t"))
            await bucket.until_held(1)
            await turns()
            assert not issuing.done()
            bucket.open()
            await soon(issuing)
            assert await knows(node, "t")

            bucket.shut = True
            revoking = asyncio.ensure_future(node.revoke_token("t"))
            await bucket.until_held(1)
            await turns()
            assert not revoking.done()
            assert not await knows(node, "t"), "refused from the moment on"
            with pytest.raises((AccessTokenNotFound, asyncio.TimeoutError)):
                await asyncio.wait_for(node.revoke_token("t"), 0.05)
            bucket.open()
            await soon(revoking)

    run(scenario())


@pytest.mark.parametrize("with_snapshot", [False, True], ids=["log", "snapshot"])
def test_tokens_are_there_again_behind_a_restart(storage: Storage, with_snapshot: bool) -> None:
    async def scenario(bucket: object) -> None:
        async with node_on(bucket) as node:  # type: ignore[arg-type]  # any bucket will do
            await node.set_root_token(digest_of(b"root secret"))
            kept = await issue(node, "kept", 2**62)
            await issue(node, "gone")
            await node.revoke_token("gone")
            if with_snapshot:
                await node.housekeeping.snapshots.take()
                await issue(node, "late")
        async with node_on(bucket) as node:  # type: ignore[arg-type]  # as above
            assert await ids(node) == ["kept", *(["late"] if with_snapshot else []), "root"]
            assert await node.token_of(kept.digest) == kept
            assert await knows(node, "root secret")
            assert not await knows(node, "gone")
            with pytest.raises(ResourceAlreadyExists):
                await issue(node, "kept")

    storage.run(scenario)


def test_a_log_that_fails_takes_with_it_what_nobody_was_told() -> None:
    async def scenario() -> None:
        bucket = GatedBucket(MemoryBucket())
        async with node_on(bucket) as node:
            await issue(node, "kept")
            bucket.shut = True
            issuing = asyncio.ensure_future(issue(node, "lost"))
            (key,) = await bucket.until_held(1)
            bucket.let(key, BucketRefused(key, "no"))
            with pytest.raises(Exception, match="no"):
                await soon(issuing)
            bucket.open()
            await eventually(lambda: node._term is not None)
            assert await knows(node, "kept")
            assert await ids(node) == ["kept"]

    run(scenario())


def test_expired_tokens_are_refused_at_once_and_dropped_in_passing() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with node_on(clock=clock) as node:
            end = (clock.now_ms() + 1000) * 1_000_000
            rows = [await issue(node, f"t-{index:02}", end) for index in range(20)]
            assert node.is_in_force(rows[0])
            clock.advance(1.0)
            assert not node.is_in_force(rows[0])
            assert not await knows(node, "t-00")
            assert await ids(node) == []
            for index in range(3):
                await issue(node, f"new-{index}")
            assert len(node.term.state.tokens) == 3

    run(scenario())


def test_the_root_token_is_replaced_only_by_another_one() -> None:
    async def scenario() -> None:
        async with node_on() as node:
            assert await node.root_token() is None
            await node.set_root_token(b"")
            assert not await knows(node, "")
            await node.set_root_token(digest_of(b"one"))
            before = node.term.last_change
            await node.set_root_token(digest_of(b"one"))
            assert node.term.last_change == before
            await node.set_root_token(digest_of(b"two"))
            assert not await knows(node, "one")
            assert await knows(node, "two")
            assert await ids(node) == ["root"]

    run(scenario())


def test_a_node_that_was_replaced_does_not_say_that_a_token_is_unknown() -> None:
    async def scenario() -> None:
        bucket, clock = MemoryBucket(), ManualClock()
        async with node_on(bucket, clock=clock) as older, node_on(bucket) as newer:
            await issue(newer, "t")
            clock.advance(100)
            with pytest.raises(Fenced):
                await soon(older.token_of(digest_of(b"t")))

    run(scenario())


def test_tokens_and_records_share_a_log() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket) as node:
            await with_stream(node)
            await asyncio.gather(
                *(node.append(BASIN, STREAM, batch(f"{index}")) for index in range(5)),
                *(issue(node, f"t-{index}") for index in range(5)),
            )
        async with node_on(bucket) as node:
            assert await ids(node) == [f"t-{index}" for index in range(5)]
            assert (await node.check_tail(BASIN, STREAM)).seq_num == 5

    run(scenario())

"""A node on a remote bucket whose newest commits are on this machine's disk too."""

import os
from pathlib import Path

import msgspec

from bourn.bucket.spool import SpooledBucket
from bourn.limits import MIB
from bourn.settings import EngineSettings
from tests.bucket.test_spool import Far, ring, written
from tests.engine.harness import append_each, seq_nums
from tests.support import node_on, read_all, run, with_stream

RING_BYTES = 1 << 20
NO_TAIL = EngineSettings(tail_cache_bytes=0, flush_interval_ms=0)


def test_what_memory_does_not_hold_is_read_without_a_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        far = Far()
        bucket = SpooledBucket(far, ring(tmp_path, RING_BYTES))
        async with node_on(bucket, NO_TAIL) as node:
            await with_stream(node)
            await append_each(node, *(f"{number}" for number in range(20)))
            await written(bucket)
            before = far.reads
            assert seq_nums(await read_all(node)) == list(range(20))
            assert far.reads == before
            assert bucket.hits == 20
        await bucket.close()

    run(scenario())


def test_a_copy_that_is_damaged_harms_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket = SpooledBucket(Far(), ring(tmp_path, RING_BYTES))
        async with node_on(bucket, NO_TAIL) as node:
            await with_stream(node)
            await append_each(node, *(f"{number}" for number in range(20)))
            await written(bucket)
            os.pwrite(bucket._spool._descriptor, b"\xff" * RING_BYTES, 0)
            found = await read_all(node)
            assert [record.body for record in found] == [b"%d" % number for number in range(20)]
        await bucket.close()

    run(scenario())


def test_a_restart_finds_everything_in_the_bucket(tmp_path: Path) -> None:
    async def scenario() -> None:
        far = Far()
        for first in (0, 20):
            bucket = SpooledBucket(far, ring(tmp_path, RING_BYTES))
            async with node_on(bucket, NO_TAIL) as node:
                if not first:
                    await with_stream(node)
                await append_each(node, *(f"{first + number}" for number in range(20)))
                await written(bucket)
                assert seq_nums(await read_all(node)) == list(range(first + 20))
            await bucket.close()

    run(scenario())


def test_with_a_spool_less_is_kept_in_memory() -> None:
    unset = EngineSettings()
    assert unset.resolved(remote=True).tail_cache_bytes == 256 * MIB
    assert unset.resolved(remote=True, spooled=True).tail_cache_bytes == 96 * MIB
    asked = msgspec.structs.replace(unset, tail_cache_bytes=7)
    assert asked.resolved(remote=True, spooled=True).tail_cache_bytes == 7

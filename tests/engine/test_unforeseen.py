"""What nobody has foreseen, on the way of an append: it fails, and nobody waits for ever."""

import asyncio

import pytest

from bourn.bucket.port import Bucket
from bourn.engine.stream import Stream
from bourn.errors import OutcomeUnknown
from tests.engine.harness import Storage, append_each, bodies, eventually, soon
from tests.engine.test_committer import Told
from tests.support import BASIN, STREAM, batch, node_on, read_all, with_stream


@pytest.mark.parametrize("step", ["index_run", "publish"])
def test_a_fault_while_a_commit_is_made_or_released_ends_the_term_and_holds_nobody(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await append_each(node, "before")

            plain = getattr(Stream, step)
            faults = [BufferError("Existing exports of data: object cannot be re-sized")]

            def faulty(*facts: object) -> object:
                if faults:
                    raise faults.pop()
                return plain(*facts)

            with monkeypatch.context() as patch:
                patch.setattr(Stream, step, faulty)
                told = Told()
                appends = [
                    asyncio.ensure_future(node.append(BASIN, STREAM, batch("doubtful")))
                    for _ in range(3)
                ]
                assert node.append_now(BASIN, STREAM, batch("doubtful"), None, None, told) is True
                for append in appends:
                    with pytest.raises(OutcomeUnknown):
                        await soon(append)
                await eventually(lambda: len(told.errors) == 1)
            await append_each(node, "after")
            found = bodies(await read_all(node))
            assert found[0] == b"before"
            assert found[-1] == b"after"
            assert set(found[1:-1]) <= {b"doubtful"}
            assert not told.acks

    storage.run(scenario)

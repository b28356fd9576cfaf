from bourn.bucket.memory import MemoryBucket
from bourn.model.record import StreamPosition
from tests.support import BASIN, STREAM, batch, node_on, read_all, run, with_stream


def test_what_was_appended_is_read_back_in_order():
    async def scenario():
        async with node_on() as node:
            await with_stream(node)
            first = await node.append(BASIN, STREAM, batch("a", "b"))
            second = await node.append(BASIN, STREAM, batch("c"))
            assert (first.start.seq_num, first.end.seq_num) == (0, 2)
            assert (second.start.seq_num, second.end.seq_num) == (2, 3)
            assert second.tail == second.end
            assert await node.check_tail(BASIN, STREAM) == second.end
            assert [r.body for r in await read_all(node)] == [b"a", b"b", b"c"]

    run(scenario())


def test_everything_is_there_again_after_a_restart():
    async def scenario():
        bucket = MemoryBucket()
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch("a", "b"))
        for _ in range(3):
            async with node_on(bucket) as node:
                assert [r.body for r in await read_all(node)] == [b"a", b"b"]
        async with node_on(bucket) as node:
            ack = await node.append(BASIN, STREAM, batch("c"))
            assert ack.start.seq_num == 2
            assert [r.body for r in await read_all(node)] == [b"a", b"b", b"c"]

    run(scenario())


def test_a_new_stream_has_its_tail_at_zero():
    async def scenario():
        async with node_on() as node:
            await with_stream(node)
            assert await node.check_tail(BASIN, STREAM) == StreamPosition(0, 0)

    run(scenario())

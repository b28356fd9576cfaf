"""What the cycle collector would have to find: nothing, for what happens often."""

import gc

import pytest

from bourn.errors import BournError
from bourn.model.record import AppendAck
from tests.support import BASIN, STREAM, batch, node_on, run, with_stream

REFUSALS = 20


class Waiter:
    def acked(self, ack: AppendAck) -> None:
        raise AssertionError(ack)

    def failed(self, error: BournError) -> None:
        raise AssertionError(error)


def test_a_refused_append_leaves_nothing_for_the_collector() -> None:
    async def found() -> int:
        async with node_on() as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch(b"x"))
            gc.collect()
            for _ in range(REFUSALS):
                taken = node.append_now(BASIN, STREAM, batch(b"x"), 0, None, Waiter())
                assert not isinstance(taken, bool)
                assert node.refusal_now(taken) is not None
                with pytest.raises(BournError):
                    await node.append(BASIN, STREAM, batch(b"x"), match_seq_num=0)
            del taken
            return gc.collect()

    gc.disable()
    try:
        assert run(found()) < REFUSALS
    finally:
        gc.enable()

"""An idle node's ack against the bare put of an object of the same size, turn by turn."""

import time
from typing import Final

import uvloop

from bench.engine.case import Budget, Case, Figures, latency_figures
from bench.engine.target import BASIN, Target, append_message, opened_node
from bourn.clock import SystemClock
from bourn.layout.codec import decode_append_input
from bourn.model.resource import CreateStream

PAUSE_SECS: Final = 0.005
TURNS: Final = 150
WARM_TURNS: Final = 20
STREAM: Final = "idle"
MORE: Final = Budget("ack_minus_put_p50_ms", 1.0, "ms")


def cases(targets: tuple[str, ...]) -> list[Case]:
    """A small and a full batch on every bucket; the budget is that of a local disk."""
    return [
        Case(
            "idle",
            f"{target}, {name}",
            measure,
            {"target": target, "records": records, "body_bytes": body_bytes},
            (MORE,) if target != "s3" else (),
        )
        for target in targets
        for name, records, body_bytes in (("1 x 1 KiB", 1, 1024), ("1 MiB", 1000, 1040))
    ]


def measure(target: Target, records: int, body_bytes: int, spawned_at: float) -> Figures:
    """Alternate puts and acks, each after a pause, in this process."""
    del spawned_at
    return uvloop.run(_measure(target, records, body_bytes))


async def _measure(target: Target, records: int, body_bytes: int) -> Figures:
    clock = SystemClock()
    batch = decode_append_input(append_message(records, body_bytes)).batch
    puts: list[float] = []
    acks: list[float] = []
    async with opened_node(target) as node:
        bucket = node.term.bucket
        await node.create_stream(BASIN, CreateStream(STREAM))
        committed = node.term.committer.bytes_committed
        await node.append(BASIN, STREAM, batch)
        data = bytes(node.term.committer.bytes_committed - committed)
        for turn in range(WARM_TURNS + TURNS):
            await clock.sleep(PAUSE_SECS)
            began = time.perf_counter()
            await bucket.put_if_absent(f"bench/{turn:012d}", data)
            puts.append(time.perf_counter() - began)
            await clock.sleep(PAUSE_SECS)
            began = time.perf_counter()
            await node.append(BASIN, STREAM, batch)
            acks.append(time.perf_counter() - began)
    put = latency_figures(puts[WARM_TURNS:], "put_")
    ack = latency_figures(acks[WARM_TURNS:], "ack_")
    figures: Figures = {**put, **ack, "object_bytes": float(len(data))}
    for which in ("p50_ms", "p99_ms"):
        figures[f"ack_minus_put_{which}"] = float(ack[f"ack_{which}"]) - float(put[f"put_{which}"])
    return figures

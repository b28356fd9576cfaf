"""Exports while the server appends, trims and cleans up, and tier, merge and retain run.

Nothing waits here before it is deleted, neither in the server nor in the pipeline, so that exports
lose the ground under their feet as often as can be.
"""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from bourn.bucket.local import LocalBucket
from bourn.engine.node import Node
from bourn.errors import BournError
from bourn.model.record import Record, trim_record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.export_plan import Wanted
from bourn.pipeline.job import TaskFailed
from bourn.pipeline.place import Place
from bourn.settings import EngineSettings, PipelineSettings
from tests.pipeline.harness import CLOCK, InProcessTier, merge_on, quiet, retain_on
from tests.pipeline.transfer_world import BASIN, KEPT, Row, exported, rows_in
from tests.support import batch, node_on, run

HASTY = EngineSettings(
    housekeeping_secs=0.02, snapshot_interval_secs=0.1, collect_grace_secs=0, history_poll_secs=0.02
)
AT_ONCE = PipelineSettings(grace_secs=0, merge_files=2)
STREAMS = ("a", "b", "c")
EXPORTS = 6


class Ledger:
    """What was appended, and how far each stream was trimmed, in the order of the acks."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {stream: [] for stream in STREAMS}
        self.trims = dict.fromkeys(STREAMS, 0)

    def moment(self) -> dict[str, tuple[int, int]]:
        return {name: (self.trims[name], len(self.rows[name])) for name in STREAMS}


async def write(node: Node, ledger: Ledger, rng: random.Random, stop: asyncio.Event) -> None:
    while not stop.is_set():
        stream = rng.choice(STREAMS)
        rows = ledger.rows[stream]
        stamp = len(rows)
        if rows and rng.random() < 0.1:
            point = rng.randint(ledger.trims[stream], len(rows))
            record = trim_record(point)._replace(timestamp=stamp)
            records, trim = [record], point
        else:
            bodies = [rng.randbytes(rng.choice([0, 10, 3000])) for _ in range(rng.randint(1, 9))]
            records, trim = [Record(body, (), stamp) for body in bodies], 0
        await node.append(BASIN, stream, batch(*records))
        rows += [
            (len(rows) + n, stamp, record.headers, record.body) for n, record in enumerate(records)
        ]
        ledger.trims[stream] = max(ledger.trims[stream], trim)
        await CLOCK.sleep(rng.uniform(0, 0.004))


async def tidy(bucket: LocalBucket, rng: random.Random, stop: asyncio.Event) -> None:
    jobs = (
        InProcessTier(bucket, rng.getrandbits(32)),
        merge_on(bucket, rng.getrandbits(32), settings=AT_ONCE),
        retain_on(bucket, rng.getrandbits(32), settings=AT_ONCE),
    )
    while not stop.is_set():
        for job in jobs:
            with suppress(BournError):  # something may be gone; the next run does it
                await job.run(quiet())
            await CLOCK.sleep(rng.uniform(0, 0.1))


def check(
    found: dict[str, list[Row]],
    ledger: Ledger,
    before: dict[str, tuple[int, int]],
    after: dict[str, tuple[int, int]],
) -> None:
    for name in STREAMS:
        rows = found.get(name, [])
        first, end = (rows[0][0], rows[-1][0] + 1) if rows else (before[name][1], before[name][1])
        assert rows == ledger.rows[name][first:end], name
        assert before[name][0] <= first <= max(after[name][0], before[name][1]), name
        assert before[name][1] <= end <= after[name][1], name


@pytest.mark.parametrize("seed", range(2))
def test_an_export_is_of_one_moment_whatever_moves_meanwhile(seed, tmp_path):
    async def main():
        rng = random.Random(seed)
        root: Path = tmp_path / "bucket"
        bucket = LocalBucket(root)
        place = Place("file", str(root), "", "", "")
        ledger, stop, done = Ledger(), asyncio.Event(), 0
        async with node_on(bucket, HASTY) as node:
            await node.create_basin(CreateBasin(BASIN, KEPT))
            for stream in STREAMS:
                await node.create_stream(BASIN, CreateStream(stream))
            async with asyncio.TaskGroup() as group:
                group.create_task(write(node, ledger, rng, stop))
                group.create_task(tidy(bucket, rng, stop))
                for number in range(EXPORTS):
                    await CLOCK.sleep(rng.uniform(0.05, 0.3))
                    before = ledger.moment()
                    to = tmp_path / f"out-{number}"
                    where = Place("file", str(to), "", "", "")
                    try:
                        await exported(bucket, place, where, "parquet", Wanted(BASIN))
                    except TaskFailed as error:
                        if "changes faster" not in error.message or to.exists():
                            raise
                        continue
                    # What was on its way when the export began may be in it before its ack is.
                    await CLOCK.sleep(0.05)
                    check(rows_in(to, "parquet"), ledger, before, ledger.moment())
                    done += 1
                stop.set()
        await bucket.close()
        assert done, "no export came to its end"

    run(main())

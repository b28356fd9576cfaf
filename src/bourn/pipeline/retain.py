"""retain: what has died leaves the table, and the bucket.

    dead wholly            the file is taken out, unread
    of a stream that went  the file is written again without it, at once
    expired or trimmed     written again once so much is dead that it counts, or after a day
    too small              neighbours become one

What is dead is found in the sidecars, without a look at rows: merge puts rows that expire together
into one file, so that most files die whole. Behind it all comes vacuum.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from bourn.errors import BournError, Damaged
from bourn.layout.history.delta import Add
from bourn.layout.history.index import SegmentIndex
from bourn.layout.reports import JobReport
from bourn.limits import (
    HISTORY_ROW_BYTES,
    RETAIN_DEAD_SHARE_AIM,
    RETAIN_DEAD_SHARE_MAX,
    RETAIN_ROUND_BYTES,
    RETAIN_SETTLED_SECS,
)
from bourn.model.instants import parse_ns
from bourn.pipeline.files import Files
from bourn.pipeline.generations import compactions, generations_of, weight_of
from bourn.pipeline.job import TaskFailed, Tools
from bourn.pipeline.living import Living
from bourn.pipeline.progress import Progress
from bourn.pipeline.vacuum import Vacuum
from bourn.settings import PipelineSettings

NS_PER_SEC: Final = 10**9
UNKNOWN_SHARE: Final = 0.5  # of rows in which something is dead; written again, they say it


class Verdict(NamedTuple):
    """What is dead of a file, in bytes of rows; estimated unless it is all of it."""

    add: Add
    dead: float
    is_all_dead: bool
    has_gone: bool  # a stream whose last bytes these may be
    is_settled: bool  # it has dead blocks, and has had them for long

    @property
    def weight(self) -> int:
        """All of its bytes."""
        return weight_of(self.add)


class Plan(NamedTuple):
    """What to do with which files."""

    drops: list[Add]
    rewrites: list[Add]


def judge(add: Add, index: SegmentIndex, living: Living, now_ms: int) -> Verdict:
    """Say what of a file is dead."""
    spread_s = _spread_s(add)
    shares = living.shares(index, spread_s)
    dead = shares.dead
    if add.tag("expires_from_s") <= living.expired_s < int(index.expires_s.min()) - spread_s:
        # Some rows have expired, and no block tells which: a stream's retention was changed.
        dead = np.maximum(dead, UNKNOWN_SHARE)
    weights = index.column("metered_bytes") + HISTORY_ROW_BYTES * index.column("count") * 1.0
    is_old = now_ms - add.modification_time >= RETAIN_SETTLED_SECS * 1000
    return Verdict(
        add,
        float(weights @ dead),
        bool(shares.whole.all()),
        bool(shares.gone.any()),
        is_old and bool(shares.whole.any()),
    )


def plan(verdicts: Iterable[Verdict]) -> Plan:
    """Decide what is dropped, and what is written again: little, so that little is dead."""
    verdicts = list(verdicts)
    drops = [found.add for found in verdicts if found.is_all_dead]
    rest = [found for found in verdicts if not found.is_all_dead]
    forced = [found for found in rest if found.has_gone or found.is_settled]
    others = [found for found in rest if not (found.has_gone or found.is_settled)]
    others.sort(key=lambda found: found.dead / max(found.weight, 1), reverse=True)
    dead = sum(found.dead for found in others)
    live = sum(found.weight - found.dead for found in rest)
    if dead > RETAIN_DEAD_SHARE_MAX * live:
        for found in others:
            if dead <= RETAIN_DEAD_SHARE_AIM * live or not found.dead:
                break
            forced.append(found)
            dead -= found.dead
    return Plan(drops, [found.add for found in forced])


def _spread_s(add: Add) -> int:
    """Return the time between the first and the last arrival in a file, as its add says it."""
    try:
        stats: Any = json.loads(add.stats or "{}")
        first, last = (parse_ns(stats[of]["arrival"]) for of in ("minValues", "maxValues"))
    except (ValueError, KeyError, TypeError):
        return 0  # then its rows are thought to expire together
    return -(-(last - first) // NS_PER_SEC)


class Retain:
    """The job, on one bucket."""

    name: Final = "retain"

    def __init__(self, tools: Tools, files: Files | None = None) -> None:
        self._tools = tools
        self.files = files or Files(tools)
        self._vacuum = Vacuum(tools, self.files.table)
        self._looked_at: float | None = None
        self._failed: dict[str, BournError] = {}  # files, by path

    async def is_due(self, settings: PipelineSettings) -> bool:
        """Whether it is time to look again."""
        if (await self.files.table.refresh()).version < 0:
            return False
        now = self._tools.clock.monotonic()
        return self._looked_at is None or now - self._looked_at >= settings.retain_secs

    async def run(self, progress: Progress) -> JobReport:
        """Take out what has died, join what is small, delete what nobody needs.

        What is damaged stays as it is, and is told in the end.
        """
        report = JobReport(name=self.name)
        table = self.files.table
        self._looked_at = self._tools.clock.monotonic()
        self._failed.clear()
        try:
            progress.enter("looking at the table")
            if (await table.refresh()).version < 0:
                return report
            while not await self._take_out(report, progress):
                progress.enter("looking at the table")
                await table.refresh()
            await self._join_small(report, progress)
            progress.enter("vacuuming")
            await self._vacuum.run(report)
            if self._failed:
                raise next(iter(self._failed.values()))
        finally:
            progress.leave()
            report.end_ordinal = table.state.end_ordinal
            report.table_version = table.state.version
            report.secs = {stage: round(secs, 3) for stage, secs in progress.secs.items()}
        return report

    async def _take_out(self, report: JobReport, progress: Progress) -> bool:
        """Take the dead out, a round at a time; False where others have changed something."""
        living = await self.files.living()
        now_ms = self._tools.clock.now_ms()
        adds = [add for add in self.files.table.state.live.values() if add.path not in self._failed]
        found = await asyncio.gather(*(self._judge(add, living, now_ms) for add in adds))
        drops, rewrites = plan(verdict for verdict in found if verdict is not None)
        if drops and not await self.files.drop(drops, report, progress):
            return False
        while rewrites:
            taken = _round_of(rewrites)
            try:
                if not await self.files.rewrite(taken, living, report, progress):
                    return False
            except TaskFailed as error:
                if len(taken) == 1:
                    self._failed[taken[0].path] = error
                else:  # one of them is damaged: each for itself, then
                    for add in taken:
                        await self._rewrite_alone(add, living, report, progress)
        return True

    async def _rewrite_alone(
        self, add: Add, living: Living, report: JobReport, progress: Progress
    ) -> None:
        try:
            await self.files.rewrite([add], living, report, progress)
        except TaskFailed as error:
            self._failed[add.path] = error

    async def _judge(self, add: Add, living: Living, now_ms: int) -> Verdict | None:
        try:
            return judge(add, await self.files.index(add), living, now_ms)
        except Damaged as error:
            self._failed[add.path] = error
            return None

    async def _join_small(self, report: JobReport, progress: Progress) -> None:
        state = await self.files.table.refresh()
        planned = compactions(generations_of(state.live.values()))
        if not planned:
            return
        living = await self.files.living()
        for generation in planned:
            if not self._failed.keys().isdisjoint(add.path for add in generation.files):
                continue
            try:
                await self.files.merge(generation, living, report, progress)
            except (Damaged, TaskFailed) as error:
                self._failed[generation.files[0].path] = error


def _round_of(rewrites: list[Add]) -> list[Add]:
    """Take as many files off the list as one version should rewrite, one at least."""
    taken: list[Add] = []
    weight = 0
    while rewrites and (not taken or weight + weight_of(rewrites[0]) <= RETAIN_ROUND_BYTES):
        taken.append(rewrites.pop(0))
        weight += weight_of(taken[-1])
    return taken

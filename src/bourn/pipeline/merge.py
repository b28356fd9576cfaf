"""merge: the many small files that tier leaves become few large ones, sorted and sharded.

Shards are ranges of streams, cut by weight, so that readers pass files over by the bounds that the
table's log has of them; a stream larger than a shard is cut by sequence number. Within a shard rows
that expire at about the same time share a file. What to merge is decided in `generations`.
"""

from typing import Final

from bourn.errors import BournError, Damaged
from bourn.layout.reports import JobReport
from bourn.pipeline.files import Files
from bourn.pipeline.generations import generations_of, merges
from bourn.pipeline.job import TaskFailed, Tools
from bourn.pipeline.progress import Progress
from bourn.settings import PipelineSettings


class Merge:
    """The job, on one bucket."""

    name: Final = "merge"

    def __init__(self, tools: Tools, files: Files | None = None) -> None:
        self._settings = tools.settings
        self.files = files or Files(tools)

    async def is_due(self, settings: PipelineSettings) -> bool:
        """Whether enough neighbours wait to be merged."""
        state = await self.files.table.refresh()
        return bool(merges(generations_of(state.live.values()), settings.merge_files))

    async def run(self, progress: Progress) -> JobReport:
        """Merge until there is nothing more to merge; what cannot be is told in the end."""
        report = JobReport(name=self.name)
        table = self.files.table
        failed: dict[int, BournError] = {}  # by where it begins
        try:
            while True:
                progress.enter("looking at the table")
                state = await table.refresh()
                planned = merges(generations_of(state.live.values()), self._settings.merge_files)
                wanted = [one for one in planned if one.first_ordinal not in failed]
                if not wanted:
                    break
                living = await self.files.living()
                try:
                    await self.files.merge(wanted[0], living, report, progress)
                except (Damaged, TaskFailed) as error:  # other files need not suffer from it
                    failed[wanted[0].first_ordinal] = error
            if failed:
                raise next(iter(failed.values()))
        finally:
            progress.leave()
            report.end_ordinal = table.state.end_ordinal
            report.table_version = table.state.version
            report.secs = {stage: round(secs, 3) for stage, secs in progress.secs.items()}
        return report

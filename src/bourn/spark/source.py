"""The source as Spark sees it: the driver plans ranges of sequence numbers, tasks read them.

A batch read takes one look at all tails, and reads up to there. A query keeps how far each stream
has been read; what lies between two such offsets is the same whenever it is read, so that a
micro-batch that is run again has the same rows.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bourn.client import Client, ReadStart, Refused, Unwritten
from bourn.spark.options_source import SourceOptions
from bourn.spark.schema import Shape
from bourn.spark.source_look import GONE, Looker, Seen, check_named, check_within
from bourn.spark.source_plan import (
    Offset,
    Range,
    TaskRanges,
    offset_of,
    ranges_between,
    share,
    tasks_of,
)

log = logging.getLogger(__name__)


class DataLost(Exception):
    """Records that were to be read are not there any more; the text says which, and what to do."""


def lost(options: SourceOptions, what: str) -> None:
    """Raise DataLost, or go on where the options say so."""
    if options.fails_on_data_loss:
        raise DataLost(
            f"{what}. Set the option failOnDataLoss to false to go on with what is there"
        )
    log.warning("%s: going on with what is there", what)


class _Tasks:
    """What runs in tasks; holds nothing but options, and can be pickled."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        self._options = options
        self._shape = shape

    def rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task's ranges."""
        if not isinstance(partition, TaskRanges):
            return  # Spark's own, where nothing was planned
        with Client(self._options.settings) as client:
            for found in partition.ranges:
                yield from self._range(client, found)

    def _range(self, client: Client, found: Range) -> Iterator[pa.RecordBatch]:
        options, stream = self._options, found.stream
        session = client.read_session(
            stream,
            ReadStart(seq_num=found.start),
            end_seq_num=found.end,
            columns=self._shape.columns,
        )
        is_told = False
        with closing(session):
            try:
                for batch in session:
                    if session.gap is not None and not is_told:
                        start, end = session.gap
                        is_told = True
                        lost(options, f"records {start} to {end - 1} of {stream!r} are gone")
                    yield self._shape.batch(batch, options.settings.basin, stream)
            except Unwritten as error:
                is_told = True
                lost(
                    options,
                    f"{stream!r} ends at {error.tail_seq_num}, before record "
                    f"{found.start}: it was made anew",
                )
            except Refused as error:
                if error.code not in GONE:
                    raise
                is_told = True
                lost(options, f"{stream!r} is gone: {error.text}")
        reached = session.next_seq_num or 0
        if reached < found.end and not is_told:
            lost(options, f"records {reached} to {found.end - 1} of {stream!r} are gone")


class BatchReader(DataSourceReader):
    """Reads what is there when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._tasks = _Tasks(options, Shape(schema))

    def partitions(self) -> list[InputPartition]:
        """Look at all streams once, and cut what is to be read into ranges."""
        options = self._options
        with closing(Looker(options.settings, options.selection)) as looker:
            streams = looker.streams()
            check_named(options.selection, streams, options.settings.basin)
            starts = looker.resolve(options.start, streams)
            ends = looker.resolve(options.end, streams)
        check_within("startingOffsets", options.start, starts, streams)
        check_within("endingOffsets", options.end, ends, streams)
        ranges = [Range(name, starts[name], ends[name]) for name in sorted(streams)]
        return tasks_of([found for found in ranges if found.records > 0], options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range."""
        return self._tasks.rows(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes, a micro-batch after the other; lives on the driver as long as the query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._tasks = _Tasks(options, Shape(schema))
        self._looker: Looker | None = None
        self._last: dict[str, Seen] = {}  # for all that is to be read now, and no more
        self._seen: dict[str, Seen] = {}  # at the last look
        self._is_bounded = False
        self._turn = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_looker": None, "_last": {}, "_seen": {}}

    def _look(self) -> Looker:
        if self._looker is None:
            self._looker = Looker(self._options.settings, self._options.selection)
        return self._looker

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's own
        """Return where a query starts that has no checkpoint."""
        options = self._options
        streams = self._last if self._is_bounded else self._look().streams()
        check_named(options.selection, streams, options.settings.basin)
        starts = self._look().resolve(options.start, streams)
        check_within("startingOffsets", options.start, starts, streams)
        if self._is_bounded and any(at > streams[name].tail for name, at in starts.items()):
            self._last = self._look().streams()  # what was found there has come in between
        return Offset(starts, _created(streams)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's own
        """Note how far the streams go now: nothing behind that is read."""
        self._last = self._look().streams()
        self._is_bounded = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's own
        """Return the limit of the options; of two, the other one holds as well."""
        options = self._options
        if options.records_max is not None:
            return ReadMaxRows(options.records_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802  Spark's own
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends, within the limits; its start where nothing is."""
        before = offset_of(start)
        streams = self._seen = self._last if self._is_bounded else self._look().streams()
        known = self._known(before, streams)
        new = {name: seen for name, seen in streams.items() if name not in known.offsets}
        begun = self._look().earliest(new)
        starts = {**known.offsets, **begun}
        ends = {
            name: max(at, streams[name].tail) if name in streams else at
            for name, at in starts.items()
        }
        if not isinstance(limit, ReadAllAvailable):
            ends = self._admitted(starts, ends, limit)
        created = {**known.created, **_created(new)}
        # One that was made anew may end where the old one did.
        is_same = ends == before.offsets and not begun
        return start if is_same else Offset(ends, created, begun).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's own
        """Return the tails, for the query's progress; those of the last look, where it was new."""
        is_new = self._seen and not self._is_bounded
        streams = self._seen if is_new else self._look().streams()
        return Offset({name: seen.tail for name, seen in streams.items()}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut what lies between two offsets into ranges."""
        ranges = ranges_between(offset_of(start), offset_of(end))
        return tasks_of(ranges, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range."""
        return self._tasks.rows(partition)

    def stop(self) -> None:
        """Let go of all connections."""
        if self._looker is not None:
            self._looker.close()
            self._looker = None

    def _known(self, before: Offset, streams: Mapping[str, Seen]) -> Offset:
        """Return the part of an offset that holds: without streams that are not what they were."""
        offsets: dict[str, int] = {}
        created: dict[str, str] = {}
        for name, at in before.offsets.items():
            seen = streams.get(name)
            then = before.created.get(name, "")
            if seen is None:
                is_chosen = self._options.selection.takes(name)
                if is_chosen and not self._is_bounded:
                    lost(self._options, f"the stream {name!r} is gone")
                    continue
                # It is not chosen any more, and may be again; or came behind the look that counts.
                offsets[name] = at
                if then:
                    created[name] = then
                continue
            if seen.tail < at or (then and seen.created and then != seen.created):
                lost(self._options, f"the stream {name!r} was deleted and made anew")
                continue
            offsets[name] = at
            if then or seen.created:
                created[name] = then or seen.created
        return Offset(offsets, created)

    def _admitted(
        self, starts: Mapping[str, int], ends: Mapping[str, int], limit: ReadLimit
    ) -> dict[str, int]:
        """Return ends that keep Spark's limit and those of the options, fair to all streams."""
        options = self._options
        records_max, bytes_max = options.records_max, options.bytes_max
        if isinstance(limit, ReadMaxRows):
            records_max = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            bytes_max = limit.max_bytes
        names = sorted(ends)
        self._turn += 1
        turn = self._turn % max(1, len(names))
        names = names[turn:] + names[:turn]
        admitted = dict(ends)
        if records_max is not None:
            shares = share({name: ends[name] - starts[name] for name in names}, records_max)
            admitted = {name: starts[name] + shares[name] for name in names}
        if bytes_max is not None:
            admitted = self._fitting(names, starts, admitted, bytes_max)
        return admitted

    def _fitting(
        self,
        names: Sequence[str],
        starts: Mapping[str, int],
        ends: Mapping[str, int],
        bytes_max: int,
    ) -> dict[str, int]:
        """Cut to so many bytes; a record that is larger by itself comes alone."""
        found = dict(starts)
        waiting = [name for name in names if ends[name] > starts[name]]
        left = bytes_max
        for index, name in enumerate(waiting):
            budget = left // (len(waiting) - index)
            found[name], weight = self._look().fitting(name, starts[name], ends[name], budget)
            left -= weight
        if waiting and all(found[name] == starts[name] for name in waiting):
            found[waiting[0]] = starts[waiting[0]] + 1
        return found


def _created(streams: Mapping[str, Seen]) -> dict[str, str]:
    return {name: seen.created for name, seen in streams.items() if seen.created}

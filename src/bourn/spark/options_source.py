"""The options of a source, as people write them; an error names the option.

endpoint              where the API is; S2_BASIN_ENDPOINT otherwise
basin                 whose streams are read
accessToken           S2_ACCESS_TOKEN otherwise
encryptionKey         of encrypted streams, base64; S2_ENCRYPTION_KEY otherwise
compression           none (default), zstd or gzip: of what is received
retryTimeout          about so many seconds of attempts without success before a read fails: 60
stream                a name, names with commas between, or a prefix with * behind it
startingOffsets       earliest, latest, or JSON such as {"events": 17, "other": "latest"}; a stream
                      that the JSON does not name starts at its earliest record. A batch read starts
                      at earliest by default, a query at latest. Streams that appear while a query
                      runs start at their earliest record
startingTimestamp     in its place: the first records at or behind it; milliseconds, or ISO 8601
endingOffsets         of a batch read: latest (default) or JSON; the first record not to be read
endingTimestamp       in its place: no record at or behind it
maxRecordsPerTrigger  at most so many records in one micro-batch
maxBytesPerTrigger    at most so many metered bytes in one, but one record at least
minPartitions         at least so many tasks, where there are as many records; by default one for
                      each 250,000 records of a stream
failOnDataLoss        true (default): fail where records were trimmed, or streams deleted, before
                      they were read; false: go on behind them
includeHeaders        true (default): with the column headers
includeMetered        false (default): without the column metered_bytes
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from bourn.client import Settings
from bourn.errors import BadName
from bourn.limits import SOURCE_PARTITIONS_MAX, U64_MAX
from bourn.model.names import stream_name, stream_prefix
from bourn.spark.options import CONNECTION_OPTIONS, OptionError, Options

SOURCE_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    "stream",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "includeMetered",
)
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")
_QUERY_ONLY: Final = ("maxRecordsPerTrigger", "maxBytesPerTrigger")
_DIGITS: Final = re.compile(r"[0-9]{1,20}")
_SHOWN_MAX: Final = 200  # characters of a value, in an error
_I64_MAX: Final = 2**63 - 1

Bound = int | str  # a sequence number, earliest or latest


class Selection(NamedTuple):
    """Which streams: some names, or all with a prefix."""

    names: tuple[str, ...]
    prefix: str | None = None

    def takes(self, name: str) -> bool:
        """Whether a stream is one of them."""
        return name in self.names if self.prefix is None else name.startswith(self.prefix)


class Position(NamedTuple):
    """Where streams start or end: each by itself, all by a word, or all by a timestamp."""

    default: Bound
    by_stream: Mapping[str, Bound] = {}
    timestamp: int | None = None

    def of(self, stream: str) -> Bound:
        """Return where a stream starts or ends, where no timestamp says so."""
        return self.by_stream.get(stream, self.default)

    def is_number(self, stream: str) -> bool:
        """Whether it is a sequence number that was given, not one that was found."""
        return self.timestamp is None and isinstance(self.of(stream), int)


class SourceOptions(NamedTuple):
    """The options, checked; they can be pickled."""

    settings: Settings
    selection: Selection
    start: Position
    end: Position
    records_max: int | None
    bytes_max: int | None
    min_partitions: int
    fails_on_data_loss: bool
    has_headers: bool
    has_metered: bool


def parse_source_options(
    given: Mapping[str, str], *, is_streaming: bool | None = None
) -> SourceOptions:
    """Check all options of a source; None for `is_streaming` where that is not known yet."""
    options = Options(given)
    options.refuse_unknown(SOURCE_OPTIONS)
    if is_streaming is not None:
        for option in _BATCH_ONLY if is_streaming else _QUERY_ONLY:
            if options.text(option) is not None:
                kind = "batch reads (spark.read)" if is_streaming else "queries (spark.readStream)"
                raise OptionError(option, f"is for {kind} alone: leave it out")
    selection = _selection(options)
    return SourceOptions(
        options.connection(),
        selection,
        _position(options, "starting", LATEST if is_streaming else EARLIEST, selection),
        _position(options, "ending", LATEST, selection),
        options.count("maxRecordsPerTrigger", _I64_MAX),
        options.count("maxBytesPerTrigger", _I64_MAX),
        options.count("minPartitions", SOURCE_PARTITIONS_MAX) or 0,
        options.boolean("failOnDataLoss", default=True),
        options.boolean("includeHeaders", default=True),
        options.boolean("includeMetered", default=False),
    )


def _selection(options: Options) -> Selection:
    text = options.text("stream")
    if text is None:
        raise OptionError("stream", "is required: write a name, names with commas, or a prefix*")
    if text.endswith("*"):
        try:
            return Selection((), stream_prefix(text[:-1]))
        except BadName as error:
            raise OptionError("stream", f"{text!r}: {error.message}") from None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        try:
            stream_name(name)
        except BadName as error:
            raise OptionError("stream", f"{name!r} names no stream: {error.message}") from None
    return Selection(names)


def _position(options: Options, which: str, default: str, selection: Selection) -> Position:
    """Read startingOffsets and startingTimestamp, or those of the end."""
    by_offset, by_time = f"{which}Offsets", f"{which}Timestamp"
    offsets, moment = options.text(by_offset), options.text(by_time)
    if offsets is not None and moment is not None:
        raise OptionError(by_time, f"says the same as {by_offset}: leave one of them out")
    if moment is not None:
        return Position(default, {}, _milliseconds(by_time, moment))
    if offsets is None:
        return Position(default)
    words = (EARLIEST, LATEST) if which == "starting" else (LATEST,)
    if offsets.lower() in words:
        return Position(offsets.lower())
    return Position(
        EARLIEST if which == "starting" else LATEST,
        _by_stream(by_offset, offsets, words, selection),
    )


def _by_stream(
    option: str, text: str, words: tuple[str, ...], selection: Selection
) -> dict[str, Bound]:
    example = f'takes {" or ".join(words)}, or JSON such as {{"my-stream": 17}}'
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(option, f"{example}, not {text[:_SHOWN_MAX]!r}") from None
    if not isinstance(found, dict) or not found:
        raise OptionError(option, f"{example}, not {text[:_SHOWN_MAX]!r}")
    for stream, bound in found.items():
        if not selection.takes(stream):
            raise OptionError(option, f"names {stream!r}, which the option stream does not")
        is_number = isinstance(bound, int) and not isinstance(bound, bool) and 0 <= bound <= U64_MAX
        if not is_number and bound not in words:
            raise OptionError(
                option, f"takes a sequence number or {' or '.join(words)} for {stream!r}"
            )
    return found


def _milliseconds(option: str, text: str) -> int:
    if _DIGITS.fullmatch(text) and int(text) <= U64_MAX:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        found = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        raise OptionError(
            option, f"takes milliseconds since 1970, or such as 2026-01-31T12:00:00Z, not {text!r}"
        )
    return found

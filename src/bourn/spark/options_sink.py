"""The options of a sink, as people write them; an error names the option.

endpoint            where the API is; S2_ACCOUNT_ENDPOINT and S2_BASIN_ENDPOINT otherwise
basin               whose streams are written
accessToken         S2_ACCESS_TOKEN otherwise
encryptionKey       of encrypted streams, base64; S2_ENCRYPTION_KEY otherwise
stream              for all rows, where there is no column `stream`
delivery            exactly-once (default) or at-least-once
stagingLocation     a path or s3://…, gs://…, az://… that driver and executors share; by default
                    `bourn` below the checkpoint, or a temporary directory for a batch write
marker              header (default) or record: where the marker of each append stands
markerName          the name of its header: bourn-sink
exclusive           true: fence the streams for this query alone; false by default
failOnDataLoss      false: go on where markers were trimmed away; true by default
writeId             names a batch write, so that it can be run again
retryTimeout        seconds without progress before a batch fails: 60
compression         none (default), zstd or gzip: of what is sent
"""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from bourn.bucket.location import parse_bucket
from bourn.client import Settings
from bourn.errors import BadName, BucketRefused
from bourn.limits import (
    SINK_MARKER_NAME_BYTES_MAX,
    SINK_RETRY_SECS,
    SINK_RETRY_SECS_MAX,
    SINK_WRITER_CHARS_MAX,
)
from bourn.model.names import stream_name
from bourn.spark.options import CONNECTION_OPTIONS, OptionError, Options
from bourn.spark.sink_parts import Marking

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
SINK_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    "stream",
    "delivery",
    "stagingLocation",
    "marker",
    "markerName",
    "exclusive",
    "failOnDataLoss",
    "writeId",
)
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{SINK_WRITER_CHARS_MAX - 1}}}")
_MARKER_NAME: Final = re.compile(rf"[!-~]{{1,{SINK_MARKER_NAME_BYTES_MAX}}}")
_FILE: Final = re.compile(r"file:(?://(?:localhost)?)?(/.*)", re.DOTALL)
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})


class SinkOptions(NamedTuple):
    """The options, checked; they can be pickled."""

    settings: Settings
    stream: str
    is_exactly_once: bool
    staging: str  # "" where none is given and none can be guessed
    marking: Marking
    is_exclusive: bool
    fails_on_data_loss: bool
    write_id: str
    retry_secs: float


def parse_sink_options(
    given: Mapping[str, str], *, is_streaming: bool, environ: Mapping[str, str] = os.environ
) -> SinkOptions:
    """Check all options of a sink; OptionError names the one that is wrong."""
    options = Options(given)
    options.refuse_unknown(SINK_OPTIONS, _SPARKS_OWN)
    delivery = options.choice("delivery", (EXACTLY_ONCE, AT_LEAST_ONCE), EXACTLY_ONCE)
    is_exactly_once = delivery == EXACTLY_ONCE
    is_exclusive = options.boolean("exclusive", default=False)
    write_id = options.text("writeId") or ""
    for option, is_set in (("exclusive", is_exclusive), ("writeId", write_id)):
        if is_set and not is_exactly_once:
            raise OptionError(option, f"is for delivery {EXACTLY_ONCE} alone")
    if write_id:
        _check_write_id(options, write_id, is_streaming=is_streaming)
    return SinkOptions(
        options.connection(environ),
        _stream(options),
        is_exactly_once,
        _staging(options, is_streaming=is_streaming) if is_exactly_once else "",
        _marking(options),
        is_exclusive,
        options.boolean("failOnDataLoss", default=True),
        write_id,
        options.seconds("retryTimeout", SINK_RETRY_SECS, SINK_RETRY_SECS_MAX),
    )


def _marking(options: Options) -> Marking:
    name = options.text("markerName") or Marking().name.decode()
    if not _MARKER_NAME.fullmatch(name):
        raise OptionError(
            "markerName", f"takes 1 to {SINK_MARKER_NAME_BYTES_MAX} visible ASCII characters"
        )
    place = options.choice("marker", ("header", "record"), "header")
    return Marking(name.encode(), is_record=place == "record")


def _stream(options: Options) -> str:
    stream = options.text("stream")
    if stream is None:
        return ""
    try:
        return stream_name(stream)
    except BadName as error:
        raise OptionError("stream", error.message) from None


def _check_write_id(options: Options, write_id: str, *, is_streaming: bool) -> None:
    if is_streaming:
        raise OptionError("writeId", "is for batch writes: a query is known by its checkpoint")
    if not _NAME.fullmatch(write_id):
        raise OptionError(
            "writeId",
            f"takes 1 to {SINK_WRITER_CHARS_MAX} letters, digits, '.', '_' and '-', and starts "
            "with a letter or digit",
        )
    if options.text("stagingLocation") is None:
        raise OptionError(
            "stagingLocation", "is required beside writeId: there a write finds what it did before"
        )


def _staging(options: Options, *, is_streaming: bool) -> str:
    location = options.text("stagingLocation")
    if location is not None:
        return _checked_staging(location)
    if not is_streaming:
        return str(Path(tempfile.gettempdir(), f"bourn-sink-{os.getuid()}"))
    checkpoint = options.text("checkpointLocation")
    if checkpoint is None:
        raise OptionError(
            "stagingLocation",
            "is required where the option checkpointLocation does not say where the checkpoint is",
        )
    try:
        return _checked_staging(f"{checkpoint.rstrip('/')}/bourn")
    except OptionError:
        raise OptionError(
            "stagingLocation",
            f"is required beside a checkpoint in {checkpoint.partition(':')[0]}: a path, s3://…, "
            "gs://… or az://… that the driver and all executors share",
        ) from None


def _checked_staging(location: str) -> str:
    """Return the location as buckets are written; a path becomes absolute."""
    found = _FILE.fullmatch(location)
    if found is not None:
        location = unquote(found[1])
    elif location.startswith("s3a://"):
        location = f"s3://{location.removeprefix('s3a://')}"
    try:
        parsed = parse_bucket(location)
    except BucketRefused as error:
        raise OptionError("stagingLocation", error.message) from None
    if parsed.scheme == "memory":
        raise OptionError("stagingLocation", "must outlive this process: memory: does not")
    return str(Path(parsed.place).absolute()) if parsed.scheme == "file" else location

"""Parameters in paths, queries and headers."""

from typing import Final

from bourn.http.openapi.schemas import (
    BASIN_NAME,
    BASIN_PREFIX,
    STREAM_NAME,
    STREAM_PREFIX,
    TOKEN_ID,
    TOKEN_PREFIX,
    U64,
    Schema,
)
from bourn.http.query import U32_MAX
from bourn.limits import ENCRYPTION_KEY_CHARS_MAX, REQUEST_TOKEN_BYTES_MAX

U32: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": U32_MAX}
_FLAG: Final[Schema] = {"type": "string", "enum": ["true", "false"]}
_FORMATS: Final = ["raw", "json", "utf8", "utf-8", "base64", "json-binsafe"]


def parameter(where: str, name: str, schema: Schema, *, required: bool = False) -> Schema:
    """One parameter."""
    return {"name": name, "in": where, "required": required or where == "path", "schema": schema}


def listing(prefix: Schema) -> list[Schema]:
    """The query of a listing: by byte order, from behind `start_after`."""
    return [
        parameter("query", "prefix", prefix),
        parameter("query", "start_after", prefix),
        parameter("query", "limit", U64),
    ]


def usage(sets: str, intervals: str) -> list[Schema]:
    """The query of a usage series: one window, at most 30 days."""
    return [
        parameter("query", "set", {"type": "string", "enum": sets.split()}, required=True),
        parameter("query", "start", U32, required=True),
        parameter("query", "end", U32, required=True),
        parameter("query", "interval", {"type": "string", "enum": intervals.split()}),
    ]


BASIN: Final = parameter("header", "s2-basin", BASIN_NAME, required=True)
REQUEST_TOKEN: Final = parameter(
    "header",
    "s2-request-token",
    {"type": "string", "maxLength": REQUEST_TOKEN_BYTES_MAX, "pattern": "^[\\t\\x20-\\x7e]*$"},
)
FORMAT: Final = parameter("header", "s2-format", {"type": "string", "enum": _FORMATS})
ENCRYPTION_KEY: Final = parameter(
    "header",
    "s2-encryption-key",
    {
        "type": "string",
        "minLength": 1,
        "maxLength": ENCRYPTION_KEY_CHARS_MAX,
        "pattern": "^[A-Za-z0-9+/=]+$",
    },
)
BASIN_PATH: Final = parameter("path", "basin", BASIN_NAME)
STREAM_PATH: Final = parameter("path", "stream", STREAM_NAME)
TOKEN_PATH: Final = parameter("path", "id", TOKEN_ID)
BASINS_LISTING: Final = listing(BASIN_PREFIX)
STREAMS_LISTING: Final = listing(STREAM_PREFIX)
TOKENS_LISTING: Final = listing(TOKEN_PREFIX)
READ: Final = [
    parameter("query", "seq_num", U64),
    parameter("query", "timestamp", U64),
    parameter("query", "tail_offset", U64),
    parameter("query", "clamp", _FLAG),
    parameter("query", "count", U64),
    parameter("query", "bytes", U64),
    parameter("query", "until", U64),
    parameter("query", "wait", U32),
]

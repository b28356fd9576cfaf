"""Records, positions and command records: what a client appends and reads."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, cast

from bourn.errors import Invalid
from bourn.limits import FENCING_TOKEN_BYTES_MAX, RECORD_METERED_BYTES_MAX, TRIM_BODY_BYTES

FENCE_OP: Final = b"fence"
TRIM_OP: Final = b"trim"

Headers = tuple[tuple[bytes, bytes], ...]


class StreamPosition(NamedTuple):
    """Where a record stands, or would stand: its sequence number and its timestamp."""

    seq_num: int
    timestamp: int


class AppendAck(NamedTuple):
    """First position of a batch, the position behind its last record, and the durable tail."""

    start: StreamPosition
    end: StreamPosition
    tail: StreamPosition


# A NamedTuple's own constructor is a Python function; these are not, and take half the time.
new_position: Final = cast(
    "Callable[[tuple[int, int]], StreamPosition]", partial(tuple.__new__, StreamPosition)
)
new_ack: Final = cast(
    "Callable[[tuple[StreamPosition, StreamPosition, StreamPosition]], AppendAck]",
    partial(tuple.__new__, AppendAck),
)


class Record(NamedTuple):
    """A record as a client appends it; `timestamp` is None where the client gave none."""

    body: bytes = b""
    headers: Headers = ()
    timestamp: int | None = None


class SequencedRecord(NamedTuple):
    """A record as a reader gets it."""

    seq_num: int
    timestamp: int
    body: bytes
    headers: Headers = ()


class Fence(NamedTuple):
    """A command that sets the stream's fencing token; empty clears it."""

    token: str


class Trim(NamedTuple):
    """A command that asks for `seq_num` to be the earliest record."""

    seq_num: int


Command = Fence | Trim


def metered_bytes(headers: Headers, body: bytes) -> int:
    """What a record weighs against limits and in usage."""
    return 8 + 2 * len(headers) + sum(len(n) + len(v) for n, v in headers) + len(body)


def command_of(headers: Headers, body: bytes) -> Command | None:
    """Return the command that a record is, or None for an ordinary record.

    Raises Invalid for an unknown or malformed command and for an empty header name elsewhere.
    """
    if len(headers) == 1 and not headers[0][0]:
        return _parse_command(headers[0][1], body)
    if any(not name for name, _ in headers):
        raise Invalid("invalid header: empty name")
    return None


def _parse_command(op: bytes, body: bytes) -> Command:
    if op == FENCE_OP:
        return Fence(parse_fencing_token(body))
    if op == TRIM_OP:
        if len(body) != TRIM_BODY_BYTES:
            raise Invalid(
                "invalid `trim` command: earliest sequence number to trim to was "
                f"{len(body)} bytes, must be {TRIM_BODY_BYTES}"
            )
        return Trim(int.from_bytes(body, "big"))
    raise Invalid("unknown command")


def parse_fencing_token(body: bytes) -> str:
    """Return the token that a fence command's body holds."""
    if len(body) > FENCING_TOKEN_BYTES_MAX:
        raise Invalid(
            "invalid `fence` command: fencing token must not exceed "
            f"{FENCING_TOKEN_BYTES_MAX} bytes in length"
        )
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise Invalid("invalid `fence` command: fencing token must be valid UTF-8") from None


def check_record_size(metered: int) -> None:
    """Refuse a record that weighs too much."""
    if metered > RECORD_METERED_BYTES_MAX:
        raise Invalid("record must have metered size less than 1 MiB")


def fence_record(token: str, timestamp: int | None = None) -> Record:
    """Make the command record that sets the fencing token."""
    return Record(token.encode(), ((b"", FENCE_OP),), timestamp)


def trim_record(seq_num: int, timestamp: int | None = None) -> Record:
    """Make the command record that asks for `seq_num` to be the earliest record."""
    return Record(seq_num.to_bytes(TRIM_BODY_BYTES, "big"), ((b"", TRIM_OP),), timestamp)

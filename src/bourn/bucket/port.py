"""What every bucket does, and the grammar of keys.

    key      segment ("/" segment)*
    segment  1 to 255 of A-Z a-z 0-9 . _ -   but not "." or ".."
    prefix   "" or key "/"                   a directory; never half a segment

All of it is ASCII, so the order of strings is the order of bytes is the order of listings.
No key may be the directory of another ("a" beside "a/b"): a disk cannot hold both, and refuses.
"""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from bourn.errors import BucketMisuse
from bourn.limits import OBJECT_KEY_BYTES_MAX, OBJECT_KEY_SEGMENT_BYTES_MAX

Data = bytes | bytearray | memoryview

_SEGMENT_PATTERN: Final = (
    rf"(?!\.{{1,2}}(?:/|\Z))[A-Za-z0-9._-]{{1,{OBJECT_KEY_SEGMENT_BYTES_MAX}}}"
)
_SEGMENT: Final = re.compile(_SEGMENT_PATTERN)
_KEY: Final = re.compile(rf"{_SEGMENT_PATTERN}(?:/{_SEGMENT_PATTERN})*")
_SHOWN_BYTES_MAX: Final = 80
_OFFSET_MAX: Final = 2**63 - 1


class ObjectInfo(NamedTuple):
    """An object as a listing shows it."""

    key: str
    size_bytes: int


class Bucket(Protocol):
    """Objects by key. Every error is a `BucketError`; its class says what the caller must do.

    `BucketUnavailable` may pass: the same call may be made again, but a put that ended so may or
    may not have taken effect. `BucketRefused` will not pass. `BucketMisuse` is a bug in the caller.
    A cancelled call leaks nothing; a cancelled put may still take effect later, so the caller
    leaves `data` unchanged for good once it has been handed in.
    """

    @property
    def name(self) -> str:
        """Where it is, for people and logs; never holds a credential."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether each request costs a network round trip."""
        ...

    async def put_if_absent(self, key: str, data: Data) -> None:
        """Create the object, durably and all at once, or raise `ObjectExists`.

        Of any number of callers, in any number of processes, exactly one creates it. The loser
        may read the winner's object, and that object is durable too.
        """
        ...

    async def put(self, key: str, data: Data) -> None:
        """Create or replace the object; a reader sees the old bytes or the new, never a mix."""
        ...

    async def get(self, key: str) -> bytes:
        """Return the whole object, or raise `ObjectMissing`."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return the object's bytes in [start, start + length): fewer where the object ends."""
        ...

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield the objects under `prefix` in ascending order, those strictly behind `after` only.

        It reads a page at a time: objects that come or go meanwhile may or may not be seen, all
        others are seen once.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove the object if it is there; on a disk it may be back after a loss of power."""
        ...

    async def close(self) -> None:
        """Wait for what runs and let go of every thread, file and socket; call nothing after it."""
        ...


class Range(NamedTuple):
    """The bytes [start, start + length) of an object."""

    key: str
    start: int
    length: int


@runtime_checkable
class ReadsMany(Protocol):
    """A bucket that reads many small ranges for little more than one."""

    async def get_ranges(self, ranges: Sequence[Range]) -> list[bytes | None]:
        """Return each range; None for one that cannot be had: who asks for it alone is told why."""
        ...


@runtime_checkable
class ReadsNow(Protocol):
    """A bucket some of whose bytes are so near that nobody has to wait for them."""

    def range_now(self, key: str, start: int, length: int) -> bytes | memoryview | None:
        """Return the range, whole, if that takes no wait; None says nothing, not even that it is.

        Key and range are the caller's own: they are not checked.
        """
        ...


def check_key(key: str) -> None:
    """Raise `BucketMisuse` unless `key` is legal."""
    if _KEY.fullmatch(key) is None or len(key) > OBJECT_KEY_BYTES_MAX:
        raise BucketMisuse(_shown(key), "not a legal object key")


def check_listing(prefix: str, after: str) -> None:
    """Raise `BucketMisuse` unless `prefix` is a directory or empty, and `after` a key or empty."""
    if prefix and not prefix.endswith("/"):
        raise BucketMisuse(_shown(prefix), "a prefix to list ends with a slash")
    if prefix:
        check_key(prefix[:-1])
    if after:
        check_key(after)


def check_range(key: str, start: int, length: int) -> None:
    """Raise `BucketMisuse` unless the key is legal and the range is one."""
    check_key(key)
    if start < 0 or length < 0 or start + length > _OFFSET_MAX:
        raise BucketMisuse(key, f"no range starts at {start} and is {length} bytes long")


def is_key(text: str) -> bool:
    """Tell whether `text` could be the key of an object."""
    return _KEY.fullmatch(text) is not None and len(text) <= OBJECT_KEY_BYTES_MAX


def is_segment(text: str) -> bool:
    """Tell whether `text` could be one segment of a key."""
    return _SEGMENT.fullmatch(text) is not None


def _shown(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _SHOWN_BYTES_MAX else f"{shown[:_SHOWN_BYTES_MAX]}…"

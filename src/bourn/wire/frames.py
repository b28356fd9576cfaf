"""Session frames (S2S): what an append or read session carries in its body, either way.

    +----------------+-----------+-----------------------+
    | length: 3 B BE | flag: 1 B | payload: length - 1 B |
    +----------------+-----------+-----------------------+
    flag  0x80  terminal: the last frame, an error
          0x60  compression of the payload: 0 none, 1 zstd, 2 gzip, 3 invalid
          0x10  reconnect advised; only from the server, only on regular frames
          0x0f  reserved: sent as 0, ignored on receipt

    regular payload    one protobuf message
    terminal payload   +----------------+-----------------+
                       | status: 2 B BE | body: JSON text |   never compressed
                       +----------------+-----------------+

`length` counts the flag and the payload: 1 to 2 MiB. A payload is at most 2 MiB - 1, and so is
the message that it decompresses to. Frames and chunks of the body do not line up in any way.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from bourn.errors import BadCompression, BadFrame
from bourn.limits import (
    FRAME_COMPRESSION_THRESHOLD_BYTES,
    FRAME_LENGTH_MAX,
    FRAME_PAYLOAD_BYTES_MAX,
)
from bourn.wire.compression import Compression, Octets, compress, decompress

_LENGTH_BYTES: Final = 3
_HEAD_BYTES: Final = 4
_HEAD: Final = struct.Struct(">I")  # length << 8 | flag
_STATUS: Final = struct.Struct(">H")
_PIECE_BYTES_MIN: Final = 1 << 16  # below this a copy costs less than one more write
_VIEW_BYTES_MIN: Final = 1 << 16  # of a chunk: below this a copy costs less than a view
_PART_BYTES_MIN: Final = 4096  # a smaller chunk joins its neighbours, or tiny ones would blow up

_TERMINAL: Final = 0x80
_COMPRESSION: Final = 0x60
_COMPRESSION_SHIFT: Final = 5
_RECONNECT: Final = 0x10


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame as received; `payload` is still compressed."""

    payload: bytes | memoryview
    terminal: bool = False
    compression: Compression = Compression.NONE
    reconnect: bool = False

    def message(self) -> bytes | memoryview:
        """Return the payload, decompressed; BadFrame if it cannot be, or is too large."""
        if self.compression is Compression.NONE:
            return self.payload
        try:
            return decompress(self.payload, self.compression, FRAME_PAYLOAD_BYTES_MAX)
        except BadCompression as error:
            raise BadFrame(error.message) from None


class Terminal(NamedTuple):
    """What a terminal frame says: an HTTP status and the JSON body that belongs to it."""

    status: int
    body: bytes


# Flag byte to (terminal, compression, reconnect); None where the compression is invalid.
_FLAGS: Final = tuple(
    None
    if flag & _COMPRESSION == _COMPRESSION
    else (
        bool(flag & _TERMINAL),
        Compression((flag & _COMPRESSION) >> _COMPRESSION_SHIFT),
        bool(flag & _RECONNECT),
    )
    for flag in range(256)
)


_PLAIN: Final = (False, Compression.NONE, False)


class FrameParser:
    """Cuts a body into frames, fed with its chunks as they come.

    It holds at most one incomplete frame, as the chunks that it came in, so that its payload is
    copied once. When a frame is malformed, `feed` still returns the complete frames before it; the
    error then stands in `error` and is raised by the next call.
    """

    def __init__(self, limit: int = FRAME_LENGTH_MAX) -> None:
        self._limit = limit
        self._head = bytearray()  # of a frame whose head is not complete
        self._lacking = 0  # bytes of the payload still to come; 0 outside of one
        self._flags = _PLAIN
        self._parts: list[bytes | memoryview] = []
        self._small = bytearray()  # behind the parts: chunks too small to be kept one by one
        self.error: BadFrame | None = None

    def feed(self, data: Octets) -> list[Frame]:
        """Take the next chunk and return every frame that it completes."""
        self.check()
        frames: list[Frame] = []
        try:
            size = len(data)
            if size > _HEAD_BYTES and not self._lacking and not self._head:
                (head,) = _HEAD.unpack_from(data)
                if head == (size - _LENGTH_BYTES) << 8 and size - _LENGTH_BYTES <= self._limit:
                    return [Frame(_part(data, _HEAD_BYTES, size))]  # most often, a chunk is one
            position = 0
            if self._lacking:
                position = self._fill(data, 0, frames)
            elif self._head:
                position = self._complete_head(data, frames)
            self._parse(data, position, frames)
        except BadFrame as error:
            self._fail(error)
        return frames

    def lone(self, data: Octets) -> bytes | memoryview | None:
        """Take a chunk that is one plain frame, as most are, and return its payload.

        None where it is anything else, and then nothing was taken.
        """
        size = len(data)
        if size <= _HEAD_BYTES or self._lacking or self._head or self.error is not None:
            return None
        (head,) = _HEAD.unpack_from(data)
        if head != (size - _LENGTH_BYTES) << 8 or size - _LENGTH_BYTES > self._limit:
            return None
        return _part(data, _HEAD_BYTES, size)

    def check(self) -> None:
        """Raise the error that stands, if any."""
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        """Say that the body has ended; BadFrame if it was malformed or ended inside a frame."""
        if self.error is None and (self._head or self._lacking):
            self._fail(BadFrame("body ended inside a frame"))
        self.check()

    def _fail(self, error: BadFrame) -> None:
        self.error = error
        self._head, self._lacking, self._parts, self._small = bytearray(), 0, [], bytearray()

    def _parse(self, data: Octets, position: int, frames: list[Frame]) -> None:
        size = len(data)
        while size - position >= _HEAD_BYTES:
            (head,) = _HEAD.unpack_from(data, position)
            payload_bytes = self._payload_bytes(head >> 8)
            flags = _flag_parts(head & 0xFF)
            position += _HEAD_BYTES
            end = position + payload_bytes
            if end > size:
                self._lacking, self._flags = payload_bytes, flags
                self._fill(data, position, frames)
                return
            frames.append(Frame(_part(data, position, end), *flags))
            position = end
        if position < size:
            self._head += data[position:]
            self._check_length()

    def _complete_head(self, data: Octets, frames: list[Frame]) -> int:
        """Move what the head lacks from the front of `data`, and what its frame lacks behind it."""
        taken = min(_HEAD_BYTES - len(self._head), len(data))
        self._head += data[:taken]
        if len(self._head) < _HEAD_BYTES:
            self._check_length()
            return taken
        (head,) = _HEAD.unpack(self._head)
        self._head = bytearray()
        self._lacking = self._payload_bytes(head >> 8)
        self._flags = _flag_parts(head & 0xFF)
        return self._fill(data, taken, frames)

    def _fill(self, data: Octets, position: int, frames: list[Frame]) -> int:
        """Move what the payload lacks from `data`; return the position behind it."""
        end = min(len(data), position + self._lacking)
        self._lacking -= end - position
        if end - position < _PART_BYTES_MIN:
            self._small += data[position:end]
        else:
            if self._small:
                self._parts.append(bytes(self._small))
                self._small = bytearray()
            self._parts.append(_part(data, position, end))
        if not self._lacking:
            if self._small or len(self._parts) > 1:
                payload: bytes | memoryview = b"".join((*self._parts, self._small))
            else:
                payload = self._parts[0] if self._parts else b""
            self._parts, self._small = [], bytearray()
            frames.append(Frame(payload, *self._flags))
        return end

    def _check_length(self) -> None:
        """Refuse a bad length before its flag has come."""
        if len(self._head) == _LENGTH_BYTES:
            self._payload_bytes(int.from_bytes(self._head, "big"))

    def _payload_bytes(self, length: int) -> int:
        if length == 0:
            raise BadFrame("empty frame payload")
        if length > self._limit:
            raise BadFrame(f"frame length {length} exceeds {self._limit} bytes")
        return length - 1


def _part(data: Octets, start: int, end: int) -> bytes | memoryview:
    """Return bytes of a chunk: small ones, or those of a buffer that may change, as a copy."""
    if end - start < _VIEW_BYTES_MIN or not isinstance(data, bytes):
        return bytes(data[start:end])
    return memoryview(data)[start:end]


def _flag_parts(flag: int) -> tuple[bool, Compression, bool]:
    parts = _FLAGS[flag]
    if parts is None:
        raise BadFrame("unknown frame compression")
    return parts


def frame_head(
    payload_bytes: int,
    compression: Compression = Compression.NONE,
    *,
    reconnect: bool = False,
) -> bytes:
    """Return the four bytes that go before a regular payload of that size.

    For a sender that writes the payload's buffers as they are; `encode_frame` is for the others.
    """
    if payload_bytes > FRAME_PAYLOAD_BYTES_MAX:
        raise ValueError(f"a frame cannot carry a payload of {payload_bytes} bytes")
    flag = compression << _COMPRESSION_SHIFT | (_RECONNECT if reconnect else 0)
    return _HEAD.pack((payload_bytes + 1) << 8 | flag)


def encode_frame(
    payload: Octets | Sequence[Octets],
    compression: Compression = Compression.NONE,
    *,
    reconnect: bool = False,
) -> bytes:
    """Return a regular frame around a message, given whole or as the buffers that make it up.

    A message below the threshold, or one that would outgrow the frame by being compressed, goes
    out uncompressed.
    """
    if isinstance(payload, Octets):
        buffers: Sequence[Octets] = (payload,)
        size = len(payload)
    else:
        buffers = payload
        size = sum(map(len, payload))
    if size > FRAME_PAYLOAD_BYTES_MAX:
        raise ValueError(f"a frame cannot carry a message of {size} bytes")
    if compression is not Compression.NONE and size >= FRAME_COMPRESSION_THRESHOLD_BYTES:
        compressed = compress(b"".join(buffers), compression)
        if len(compressed) <= FRAME_PAYLOAD_BYTES_MAX:
            return frame_head(len(compressed), compression, reconnect=reconnect) + compressed
    return b"".join((frame_head(size, reconnect=reconnect), *buffers))


def frame_pieces(
    buffers: Sequence[bytes],
    compression: Compression = Compression.NONE,
    *,
    reconnect: bool = False,
) -> list[bytes]:
    """Return a regular frame in pieces to be sent one after the other.

    Joined they are what `encode_frame` returns; but a large buffer is a piece as it is, not copied.
    """
    if compression is not Compression.NONE:
        return [encode_frame(buffers, compression, reconnect=reconnect)]
    small = [frame_head(sum(map(len, buffers)), reconnect=reconnect)]
    pieces: list[bytes] = []
    for buffer in buffers:
        if len(buffer) < _PIECE_BYTES_MIN:
            small.append(buffer)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(buffer)
    if small:
        pieces.append(b"".join(small))
    return pieces


def encode_terminal(status: int, body: bytes) -> bytes:
    """Return the terminal frame of an HTTP status and its JSON body."""
    length = 1 + _STATUS.size + len(body)
    if length > FRAME_LENGTH_MAX:
        raise ValueError(f"a terminal frame cannot carry {len(body)} bytes")
    return _HEAD.pack(length << 8 | _TERMINAL) + _STATUS.pack(status) + body


def decode_terminal(frame: Frame) -> Terminal:
    """Return what a terminal frame says, for a client."""
    if frame.compression is not Compression.NONE:
        raise BadFrame("a terminal frame must not be compressed")
    if len(frame.payload) < _STATUS.size:
        raise BadFrame("a terminal frame must carry a status")
    (status,) = _STATUS.unpack_from(frame.payload)
    return Terminal(status, bytes(frame.payload[_STATUS.size :]))

"""Session frames, taken apart by hand: independent of the code under test."""

import gzip
import json
from dataclasses import dataclass
from typing import Any

import zstandard

from tests.http.clients import Call
from tests.wire.schema import AppendAck, AppendInput, ReadBatch

TERMINAL, ZSTD, GZIP, RECONNECT = 0x80, 0x20, 0x40, 0x10


def frame(payload: bytes, flag: int = 0) -> bytes:
    return (len(payload) + 1).to_bytes(3, "big") + bytes([flag]) + payload


def message(*bodies: bytes, **conditions: Any) -> bytes:
    """An AppendInput, one record a body."""
    wanted = AppendInput(records=[{"body": body} for body in bodies], **conditions)
    encoded: bytes = wanted.SerializeToString()
    return encoded


def append(*bodies: bytes, **conditions: Any) -> bytes:
    return frame(message(*bodies, **conditions))


@dataclass(frozen=True)
class Frame:
    flag: int
    payload: bytes

    @property
    def content(self) -> bytes:
        """The message of a regular frame, decompressed."""
        assert not self.flag & TERMINAL, self.error
        if self.flag & ZSTD:
            return zstandard.ZstdDecompressor().decompressobj().decompress(self.payload)
        if self.flag & GZIP:
            return gzip.decompress(self.payload)
        return self.payload

    @property
    def ack(self) -> Any:
        found = AppendAck.FromString(self.content)
        assert all(found.HasField(name) for name in ("start", "end", "tail"))
        return found

    @property
    def batch(self) -> Any:
        return ReadBatch.FromString(self.content)

    @property
    def status(self) -> int:
        assert self.flag == TERMINAL, self
        return int.from_bytes(self.payload[:2], "big")

    @property
    def error(self) -> tuple[int, Any]:
        """The status and the document of a terminal frame."""
        return self.status, json.loads(self.payload[2:])

    @property
    def code(self) -> tuple[int, str]:
        status, document = self.error
        assert document.keys() == {"code", "message"}
        return status, document["code"]


class Frames:
    """The frames of a response, as they come."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._buffer = b""

    def next(self) -> Frame | None:
        """The next frame; None at the proper end."""
        while len(self._buffer) < 4 or len(self._buffer) < 3 + self._length():
            data = self.call.receive()
            if not data:
                assert not self._buffer, "the body ends inside a frame"
                return None
            self._buffer += data
        end = 3 + self._length()
        found = Frame(self._buffer[3], self._buffer[4:end])
        self._buffer = self._buffer[end:]
        return found

    def take(self) -> Frame:
        found = self.next()
        assert found is not None, "the body has ended"
        return found

    def rest(self) -> list[Frame]:
        frames = []
        while (found := self.next()) is not None:
            frames.append(found)
        return frames

    def _length(self) -> int:
        return int.from_bytes(self._buffer[:3], "big")

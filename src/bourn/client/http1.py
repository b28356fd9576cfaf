"""HTTP/1.1 as a client sees it, without sockets: bytes of a request out, of a response in.

request    METHOD target HTTP/1.1 CRLF { name: value CRLF } CRLF body
response   HTTP/1.x status reason CRLF { name: value CRLF } CRLF body
body       content-length bytes; or chunks; or all until the connection ends
chunk      size in hex [; extension] CRLF data CRLF; the last one has size 0 and may have trailers
"""

import re
from collections.abc import Mapping
from typing import Final

from bourn.client.failures import NotS2
from bourn.limits import HEAD_BYTES_MAX

LAST_CHUNK: Final = b"0\r\n\r\n"
_END: Final = b"\r\n\r\n"
_LINE_BYTES_MAX: Final = 4096
_CHUNK_SIZE: Final = re.compile(rb"[0-9a-fA-F]{1,15}")
_HEAD_PARTS_MIN: Final = 2
_NO_BODY: Final = frozenset({204, 304})
_INTERIM_MAX: Final = 199


def encode_request(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return the head of a request."""
    lines = [
        f"{method} {target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a line break in a header")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunk_head(size: int) -> bytes:
    """Return what goes before the data of a chunk; CRLF goes behind it."""
    return b"%x\r\n" % size


class Head:
    """Status and headers of a response; names are in lower case, and the first of a name counts."""

    def __init__(self, data: bytes) -> None:
        first, *lines = data.decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        if len(parts) < _HEAD_PARTS_MIN or not parts[0].startswith("HTTP/1."):
            raise NotS2("the server does not speak HTTP/1.1: does the URL need https:// ?")
        try:
            self.status = int(parts[1])
        except ValueError:
            raise NotS2("the server does not speak HTTP/1.1") from None
        self.headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            self.headers.setdefault(name.strip().lower(), value.strip())
        is_old = parts[0] == "HTTP/1.0"
        wishes = self.headers.get("connection", "").lower()
        self.will_close = "close" in wishes or (is_old and "keep-alive" not in wishes)

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return self.headers.get("transfer-encoding", "").lower().endswith("chunked")

    @property
    def length(self) -> int | None:
        """How long the body is, where that is known."""
        if self.status in _NO_BODY:
            return 0
        text = self.headers.get("content-length")
        if text is None or self.is_chunked:
            return None
        if not (text.isascii() and text.isdigit()):
            raise NotS2("the server sends a content-length that is no number")
        return int(text)


class ResponseParser:
    """Takes what comes in; `head` once it is there, then pieces of the body, until `is_ended`."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.is_ended = False
        self._rest = bytearray()  # of a head, or of the line of a chunk
        self._left: int | None = 0  # bytes of the body or of the chunk; None: until the end
        self._in_chunk_end = False  # CRLF behind the data of a chunk is to come
        self._in_trailers = False

    def feed(self, data: memoryview) -> list[memoryview]:
        """Take what came in; return the pieces of the body in it, which are views of `data`."""
        if self.head is not None:
            return self._body(data)
        self._rest += data
        end = self._rest.find(_END)
        if end < 0:
            if len(self._rest) > HEAD_BYTES_MAX:
                raise NotS2("the head of the answer is too large")
            return []
        head = Head(bytes(self._rest[:end]))
        after = bytes(self._rest[end + len(_END) :])
        self._rest = bytearray()
        if head.status <= _INTERIM_MAX:
            return self.feed(memoryview(after))
        self.head = head
        self._left = 0 if head.is_chunked else head.length
        self.is_ended = self._left == 0 and not head.is_chunked
        return self._body(memoryview(after))

    def finish(self) -> None:
        """Say that the connection has ended; a body may end so, too."""
        if self.head is not None and self._left is None:
            self.is_ended = True

    def _body(self, data: memoryview) -> list[memoryview]:
        assert self.head is not None
        pieces: list[memoryview] = []
        at, size = 0, len(data)
        while at < size and not self.is_ended:
            if self._left is None:
                pieces.append(data[at:])
                break
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._in_chunk_end = self.head.is_chunked
                    self.is_ended = not self.head.is_chunked
                continue
            at = self._line(data, at)
        return pieces

    def _line(self, data: memoryview, at: int) -> int:
        """Take from the line of a chunk, or of a trailer; return the position behind it."""
        part = bytes(data[at : at + _LINE_BYTES_MAX])
        end = part.find(b"\n")
        taken = len(part) if end < 0 else end + 1
        self._rest += part[:taken]
        if len(self._rest) > _LINE_BYTES_MAX:
            raise NotS2("the server sends chunks that are none")
        if end >= 0:
            line = bytes(self._rest).rstrip(b"\r\n")
            self._rest = bytearray()
            self._understand(line)
        return at + taken

    def _understand(self, line: bytes) -> None:
        if self._in_trailers:
            self.is_ended = not line
            return
        if self._in_chunk_end:
            if line:
                raise NotS2("the server sends chunks that are none")
            self._in_chunk_end = False
            return
        digits = line.partition(b";")[0].strip()
        if _CHUNK_SIZE.fullmatch(digits) is None:
            raise NotS2("the server sends chunks that are none")
        self._left = int(digits, 16)
        self._in_trailers = not self._left

"""Secrets that a server is told, all that it says and stores, and the search for the ones there.

Secrets are searched for in every usual spelling and in parts: 23 bytes on end of one are found
wherever they stand.
"""

import base64
import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bourn.layout.ciphers import AEADS
from bourn.layout.sealed import SealedStream
from bourn.model.config import Cipher
from tests.cli.process import SECS_MAX, Ended, Serving, bourn
from tests.http.access import TOKENS, TokenApi
from tests.http.clients import H1Client, HeadersInput, Reply, reply_of

CIPHERS = ["aegis-256", "aes-256-gcm"]
STREAM = "stream"
PART_BYTES, STRIDE_BYTES = 16, 8


# What is searched for


def spellings(part: bytes) -> set[bytes]:
    """How bytes may stand in a text, or inside a longer one that was encoded."""
    text = part.decode("latin-1")
    found = {part, part.hex().encode(), part.hex().upper().encode(), quote(part).encode()}
    found |= {part.hex(" ").encode(), part.hex(":").encode()}
    found |= {text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be")}
    found |= {repr(part)[2:-1].encode(), json.dumps(text)[1:-1].encode(), part[::-1]}
    found.add(json.dumps(list(part))[1:-1].encode())
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + part)
        first, last = (0, 2, 3)[shift], (shift + len(part)) // 3 * 4
        found |= {encoded[first:last], encoded[first:last].translate(bytes.maketrans(b"+/", b"-_"))}
    return found


def parts(secret: bytes) -> list[bytes]:
    last = len(secret) - PART_BYTES
    assert last >= 0, "it is too short to be told from chance"
    return [secret[at : at + PART_BYTES] for at in {*range(0, last, STRIDE_BYTES), last}]


def leaks(evidence: dict[str, bytes], hidden: dict[str, bytes]) -> list[str]:
    """Which secret stands where."""
    needles = {
        name: {spelt for part in parts(secret) for spelt in spellings(part)}
        for name, secret in hidden.items()
    }
    return [
        f"{name} in {place}: {next(spelt for spelt in spelt_all if spelt in data)!r}"
        for place, data in evidence.items()
        for name, spelt_all in needles.items()
        if any(spelt in data for spelt in spelt_all)
    ]


class Case:
    """The secrets of a run, and everything that may hold none of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: dict[str, bytearray] = {}
        self.stream_ids: set[int] = set()
        self.shown = bytearray()  # to those who may know
        self.secrets: dict[str, str] = {
            "root token": f"root-{secrets.token_urlsafe(32)}",
            "later root token": f"root-{secrets.token_urlsafe(32)}",
            "unknown token": f"bourn_{secrets.token_urlsafe(32)}",
            "body": f"body-{secrets.token_urlsafe(24)}",
            "header": f"head-{secrets.token_urlsafe(24)}",
        }
        self.keys = {name: secrets.token_bytes(32) for name in ("key", "wrong key")}

    def note(self, place: str, data: bytes | str) -> None:
        known = self.said.setdefault(place, bytearray())
        known += (data if isinstance(data, bytes) else data.encode()) + b"\n"

    def key(self, name: str = "key") -> str:
        return base64.b64encode(self.keys[name]).decode()

    def with_key(self, name: str = "key", more: HeadersInput = ()) -> dict[str, Any]:
        return dict(more) | {"s2-encryption-key": self.key(name)}

    def hidden(self) -> dict[str, bytes]:
        """Every secret, and every key that is made of a key."""
        found = {name: text.encode() for name, text in self.secrets.items()}
        for name, key in self.keys.items():
            found |= {name: key, f"text of {name}": base64.b64encode(key)}
            for cipher, stream_id in product(CIPHERS, self.stream_ids):
                stream = SealedStream(Cipher(cipher), basin_of(cipher), STREAM, stream_id)
                found[f"{name} of {cipher} {stream_id}"] = derived_key(stream, key)
        return found

    def flags(self, root: str) -> list[str]:
        audit = str(self.path / "audit.log")
        bucket = str(self.path / "data")
        levels = ["--log-level", "debug", "--audit-log", audit]
        return ["--bucket", bucket, "--root-token", self.secrets[root], *levels]

    def objects(self) -> list[Path]:
        return sorted(path for path in (self.path / "data").rglob("*") if path.is_file())

    def note_objects(self) -> None:
        for path in self.objects():
            for data in content(path):
                self.note("objects", data)
            if path.suffix == ".parquet":
                self.stream_ids |= {row["id"] for row in pq.read_table(path).to_pylist()}

    def note_output(self, server: Serving) -> None:
        """What a server has said, once it has ended."""
        assert server.child.stdout is not None
        printed = "\n".join(server.printed) + server.child.stdout.read()
        self.note("standard output", printed)
        self.note("standard error", server.errors())


def basin_of(cipher: str) -> str:
    return f"{cipher}-basin"


def derived_key(stream: SealedStream, key: bytes) -> bytes:
    """The key under which records are really encrypted, as the cipher is told."""
    seen: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AEADS, stream.cipher, seen.append)
        stream.aead(key)
    (found,) = seen
    return found


# What it stores


def content(path: Path) -> Iterator[bytes]:
    """An object as it lies there, and what it holds when it is decompressed."""
    yield path.read_bytes()
    if path.suffix == ".parquet":
        with pq.ParquetFile(pa.BufferReader(path.read_bytes())) as file:
            table = file.read()
            for text in (file.metadata.metadata or {}).values():
                yield text
                yield base64.b64decode(text, validate=False)
        for column in table.columns:
            for chunk in column.chunks:
                yield from (buffer.to_pybytes() for buffer in chunk.buffers() if buffer)


# Who asks


class Tap(socket.socket):
    """A connection that keeps what it hears, heads and frames and all."""

    case: Case
    is_known = False

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(size, flags)
        if not self.is_known:
            self.case.note("what connections heard", data)
        return data


class Heard(H1Client):
    """A client whose every answer is kept."""

    def __init__(self, port: int, case: Case) -> None:
        super().__init__(port)
        self._case = case
        self.is_known = False

    def connect(self) -> socket.socket:
        plain = super().connect()
        self._sockets.remove(plain)
        tap = Tap(fileno=plain.detach())
        tap.settimeout(SECS_MAX)
        tap.case, tap.is_known = self._case, self.is_known
        self._sockets.append(tap)
        return tap


class User(TokenApi):
    """Requests whose answers are evidence, but for those that show a secret to its owner."""

    def __init__(self, port: int, case: Case, basin: str | None, token: str) -> None:
        super().__init__(Heard(port, case), basin, token)
        self.port = port
        self.case = case

    def of(self, basin: str | None) -> "User":
        return User(self.port, self.case, basin, self.token)

    def with_token(self, token: str) -> "User":
        return User(self.port, self.case, self.basin, token)

    def request(
        self, method: str, path: str, headers: HeadersInput = (), body: bytes | None = b""
    ) -> Reply:
        reply = self.owned(method, path, headers, body, is_known=False)
        self.case.note("answers", reply.body)
        return reply

    def owned(
        self,
        method: str,
        path: str,
        headers: HeadersInput = (),
        body: bytes | None = b"",
        *,
        is_known: bool = True,
    ) -> Reply:
        """Ask for what holds a secret: its body may show one, its head may not."""
        client = Heard(self.port, self.case)
        client.is_known = is_known
        try:
            reply = reply_of(
                TokenApi(client, self.basin, self.token).begin(method, path, headers, body=body)
            )
        finally:
            client.close()
        self.case.note("heads of answers", f"{reply.status} {reply.fields}")
        if is_known:
            self.case.shown += reply.body
        return reply

    def issued(self, token_id: str, scope: dict[str, Any], **more: Any) -> str:
        body = json.dumps({"id": token_id, "scope": scope, **more}).encode()
        reply = self.owned("POST", TOKENS, {"content-type": "application/json"}, body)
        assert reply.status == 201, reply
        secret: str = reply.json["access_token"]
        self.case.secrets[f"token {token_id}"] = secret
        return secret

    def lies(self, *heads: bytes) -> None:
        """Send what is no proper request, each on a connection of its own."""
        for head in heads:
            client = Heard(self.port, self.case)
            connection = client.connect()
            with suppress(OSError):  # it may be refused before its end
                connection.sendall(head)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while connection.recv(1 << 16):
                    pass
            client.close()


def run(case: Case, server: Serving, token: str, *words: str, is_known: bool = False) -> Ended:
    """Run a command of the client; what it prints is evidence, unless it is the secret itself."""
    variables = {
        "S2_ACCOUNT_ENDPOINT": server.url,
        "S2_BASIN_ENDPOINT": server.url,
        "S2_ACCESS_TOKEN": token,
    }
    stdin = case.secrets["body"].encode() + b"\n"
    ended = bourn(*words, stdin=stdin, variables=variables)
    case.note("what commands said", ended.err)
    if is_known:
        case.shown += ended.out
    else:
        case.note("what commands printed", ended.out)
    return ended

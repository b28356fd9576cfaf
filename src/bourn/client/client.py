"""Unary calls of the S2 API, and the way into sessions.

Calls that change nothing, or that may be made twice, are repeated by themselves; an append is only
where the caller says so. A client belongs to one thread at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from bourn.client.appending import AppendSession
from bourn.client.failures import ClientError, NotS2, Refused, refusal
from bourn.client.link import Link
from bourn.client.reading import ReadSession, ReadStart
from bourn.client.retries import AppendRetry, Attempts, may_repeat
from bourn.client.settings import Settings
from bourn.clock import SystemClock
from bourn.errors import BadProto
from bourn.layout.arrow import Columns
from bourn.limits import (
    CLIENT_CALL_SECS_MAX,
    CLIENT_IDLE_SECS_MAX,
    CLIENT_SILENCE_SECS_MAX,
    LIST_LIMIT_MAX,
)
from bourn.model.endpoint import Endpoint
from bourn.model.record import AppendAck, Record, SequencedRecord, StreamPosition
from bourn.wire.compression import Compression
from bourn.wire.protobuf import decode_append_ack, decode_read_batch, encode_append_input

USER_AGENT: Final = "bourn"
_PROTOBUF: Final = "application/protobuf"
_SESSION: Final = "s2s/proto"
_JSON: Final = "application/json"
_OK: Final = 200
_ERRORS_FROM: Final = 400
_CONFLICT: Final = "resource_already_exists"

T = TypeVar("T")


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream of a list."""

    name: str
    created_at: str
    deleted_at: str | None = None
    cipher: str | None = None


class BasinInfo(msgspec.Struct, frozen=True):
    """A basin of a list."""

    name: str
    created_at: str = ""
    deleted_at: str | None = None


class _Position(msgspec.Struct, frozen=True):
    seq_num: int
    timestamp: int

    @property
    def position(self) -> StreamPosition:
        return StreamPosition(self.seq_num, self.timestamp)


class _Tail(msgspec.Struct, frozen=True):
    tail: _Position


class _Streams(msgspec.Struct, frozen=True):
    streams: list[StreamInfo]
    has_more: bool


class _Basins(msgspec.Struct, frozen=True):
    basins: list[BasinInfo]
    has_more: bool


class Client:
    """Calls to the endpoints of some settings, until the block ends."""

    def __init__(self, settings: Settings, rng: Random | None = None) -> None:
        self.settings = settings
        self._rng = rng or Random()  # noqa: S311  for pauses
        self._clock = SystemClock()
        self._link: Link | None = None
        self._used_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the connection go; the next call opens another one."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def check_tail(self, stream: str) -> StreamPosition:
        """Return the position that the next record will get, and the last one's timestamp."""
        return self._call("GET", f"{_path(stream)}/records/tail", _Tail).tail.position

    def list_streams(self, prefix: str = "", start_after: str = "") -> Iterator[StreamInfo]:
        """Yield the streams of the basin, by name, those that are being deleted too."""
        while True:
            page = self._call("GET", _list("/streams", prefix, start_after), _Streams)
            yield from page.streams
            if not page.has_more or not page.streams:
                return
            start_after = page.streams[-1].name

    def list_basins(self, prefix: str = "", start_after: str = "") -> Iterator[BasinInfo]:
        """Yield the basins, by name, those that are being deleted too."""
        while True:
            page = self._call("GET", _list("/basins", prefix, start_after), _Basins)
            yield from page.basins
            if not page.has_more or not page.basins:
                return
            start_after = page.basins[-1].name

    def create_basin(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        """Make a basin; Refused where there is one already."""
        self._make("/basins", {"basin": name, "config": config})

    def ensure_basin(self, name: str) -> None:
        """Make a basin where there is none; one that is there stays as it is."""
        self._unless_there(lambda: self.create_basin(name))

    def create_stream(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        """Make a stream; Refused where there is one already."""
        self._make("/streams", {"stream": name, "config": config})

    def ensure_stream(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        """Make a stream where there is none; one that is there stays as it is."""
        self._unless_there(lambda: self.create_stream(name, config))

    def stream_config(self, name: str) -> Mapping[str, Any]:
        """Return the config of a stream, as the API shows it."""
        return self._call("GET", _path(name), dict[str, Any])

    def read(
        self, stream: str, start: ReadStart, count: int, until: int | None = None
    ) -> list[SequencedRecord]:
        """Return a few records in one call, at most 1,000; none where the stream ends there.

        Raises Unwritten for a start behind the tail.
        """
        query = start.query | {"count": str(count)}
        if until is not None:
            query["until"] = str(until)
        target = f"{_path(stream)}/records?{urlencode(query)}"
        headers = self._headers(accept=_PROTOBUF) | self._key_header()

        def once() -> list[SequencedRecord]:
            try:
                return decode_read_batch(self._ask("GET", target, headers)).records
            except BadProto as error:
                raise NotS2(error.message) from None

        try:
            return self._repeated(once)
        except Refused as error:
            if start.is_tail(error):
                return []
            raise

    def append(
        self,
        stream: str,
        records: list[Record] | bytes,
        *,
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
        retry: AppendRetry = AppendRetry.NEVER,
    ) -> AppendAck:
        """Append one batch: records, or an AppendInput message that lacks only its conditions."""
        if isinstance(records, bytes):
            message = records + encode_append_input((), match_seq_num, fencing_token)
        else:
            message = encode_append_input(records, match_seq_num, fencing_token)
        headers = self._headers(accept=_PROTOBUF) | self._key_header()
        headers |= {"content-type": _PROTOBUF, "content-length": str(len(message))}
        attempts = Attempts(self.settings.retries, self._rng)
        while True:
            try:
                body = self._ask("POST", f"{_path(stream)}/records", headers, message)
                return decode_append_ack(body)
            except ClientError as error:
                if not may_repeat(retry, error):
                    raise
                attempts.fail(error)
            except BadProto as error:
                raise NotS2(error.message) from None

    def read_session(
        self,
        stream: str,
        start: ReadStart,
        *,
        columns: Columns = Columns(),  # noqa: B008  a frozen value
        end_seq_num: int | None = None,
        until: int | None = None,
        count: int | None = None,
        wait_secs: int | None = 0,
    ) -> ReadSession:
        """Return an iterator over Arrow batches of the stream; see `reading`."""
        return ReadSession(
            self._opener("GET", stream),
            Attempts(self.settings.retries, self._rng),
            start,
            columns=columns,
            end_seq_num=end_seq_num,
            until=until,
            count=count,
            wait_secs=wait_secs,
        )

    def append_session(
        self, stream: str, *, retry: AppendRetry = AppendRetry.NEVER, inflight_bytes_max: int = 0
    ) -> AppendSession:
        """Return a pipelined session of appends; see `appending`."""
        return AppendSession(
            self._opener("POST", stream),
            Attempts(self.settings.retries, self._rng),
            self.settings.compression,
            retry,
            inflight_bytes_max,
        )

    def _opener(self, method: str, stream: str) -> Callable[[Mapping[str, str]], Link]:
        """Return what opens a session on a connection of its own; it takes the query."""
        headers = self._headers(accept=_SESSION) | self._key_header()
        headers["content-type"] = _SESSION
        if method == "POST":
            headers["transfer-encoding"] = "chunked"
        if self.settings.compression is not Compression.NONE:
            headers["accept-encoding"] = self.settings.compression.name.lower()

        def open_session(query: Mapping[str, str]) -> Link:
            link = self._connect(self.settings.streams)
            try:
                target = f"{_path(stream)}/records" + (f"?{urlencode(query)}" if query else "")
                head = link.open(method, target, headers, CLIENT_SILENCE_SECS_MAX)
                if head.status == _OK:
                    return link
                body = b"".join(map(bytes, link.pieces()))
            except BaseException:
                link.close()
                raise
            link.close()
            raise refusal(head.status, body, head.headers.get("retry-after-ms", ""))

        return open_session

    def _connect(self, endpoint: Endpoint) -> Link:
        return Link(endpoint, is_verified=self.settings.is_verified)

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"accept": accept, "user-agent": USER_AGENT}
        if self.settings.token:
            headers["authorization"] = f"Bearer {self.settings.token}"
        if self.settings.basin and not self.settings.streams.names_basin:
            headers["s2-basin"] = self.settings.basin
        return headers

    def _key_header(self) -> dict[str, str]:
        key = self.settings.encryption_key
        return {"s2-encryption-key": key} if key else {}

    def _unless_there(self, create: Callable[[], None]) -> None:
        try:
            create()
        except Refused as error:
            if error.code != _CONFLICT:
                raise

    def _call(self, method: str, target: str, kind: type[T]) -> T:
        """Make a call that changes nothing, repeated where it fails, and read its answer."""
        headers = self._headers(accept=_JSON)

        def once() -> T:
            try:
                return msgspec.json.decode(self._ask(method, target, headers), type=kind)
            except msgspec.DecodeError as error:
                url = self.settings.streams.url
                raise NotS2(f"{url} does not answer like an S2 endpoint: {error}") from None

        return self._repeated(once)

    def _make(self, target: str, value: Mapping[str, Any]) -> None:
        """Make something, once however often that is asked for."""
        body = msgspec.json.encode(value)
        headers = self._headers(accept=_JSON)
        headers |= {"content-type": _JSON, "content-length": str(len(body))}
        headers["s2-request-token"] = f"{self._rng.getrandbits(128):032x}"
        self._repeated(lambda: self._ask("POST", target, headers, body))

    def _repeated(self, once: Callable[[], T]) -> T:
        attempts = Attempts(self.settings.retries, self._rng)
        while True:
            try:
                return once()
            except ClientError as error:
                attempts.fail(error)

    def _ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> bytes:
        """Make one request on the kept connection; what is no success is raised."""
        endpoint = self.settings.account if target.startswith("/basins") else self.settings.streams
        link = self._link
        if link is not None and (
            link.endpoint != endpoint
            or link.is_stale
            or self._clock.monotonic() - self._used_at > CLIENT_IDLE_SECS_MAX
        ):
            self.close()
            link = None
        if link is None:
            link = self._link = self._connect(endpoint)
        try:
            answer = link.ask(method, target, headers, body, CLIENT_CALL_SECS_MAX)
        except BaseException:
            self.close()
            raise
        self._used_at = self._clock.monotonic()
        if answer.head.will_close:
            self.close()
        if answer.head.status >= _ERRORS_FROM:
            wait = answer.head.headers.get("retry-after-ms", "")
            raise refusal(answer.head.status, answer.body, wait)
        return answer.body


def _path(stream: str) -> str:
    return f"/streams/{quote(stream, safe='')}"


def _list(path: str, prefix: str, start_after: str) -> str:
    query = {"prefix": prefix, "start_after": start_after, "limit": str(LIST_LIMIT_MAX)}
    return f"{path}?{urlencode(query)}"

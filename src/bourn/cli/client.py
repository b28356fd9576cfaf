"""A small client of the S2 API over HTTP/1.1: one request at a time on one connection.

Nothing is repeated by itself: whether a lost append took effect is for the person to find out.
"""

import asyncio
import http.client
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode

import orjson

from bourn.cli.address import account_endpoint, basin_endpoint
from bourn.cli.failures import CommandError, Failed, Refused
from bourn.clock import SystemClock
from bourn.model.endpoint import Endpoint

TOKEN_VARIABLE: Final = "S2_ACCESS_TOKEN"  # noqa: S105  its name, not its value
NO_VERIFY_VARIABLE: Final = "S2_SSL_NO_VERIFY"
CALL_SECS_MAX: Final = 30.0
SILENCE_SECS_MAX: Final = 25.0  # of a session, which says something every 15 s at the latest
IDLE_SECS_MAX: Final = 5.0  # a server may close a connection that has been idle for longer
CHUNK_BYTES: Final = 1 << 17
PAGE: Final = 1000
# What a list's items stand under, and what they are named by.
LIST_NAMES: Final = {
    "/basins": ("basins", "name"),
    "/streams": ("streams", "name"),
    "/access-tokens": ("access_tokens", "id"),
}
SERVER_FAULT: Final = 500
HINTS: Final = {
    "authn": "set S2_ACCESS_TOKEN, or --token, to a token of this server",
    "permission_denied": "use a token that may do this",
    "basin_not_found": "make it with `bourn basin create`, or look with `bourn basin list`",
    "stream_not_found": "make it with `bourn stream create`, or look with `bourn stream list`",
    "access_token_not_found": "look with `bourn token list`",
    "rate_limited": "try again later",
}


class ConnectionLost(Failed):
    """The connection broke before the answer was whole; a session can be taken up again."""


class Unreachable(ConnectionLost):
    """There was no connection at all, so nothing was asked for."""


class Unwritten(Refused):
    """The read starts where nothing is written yet; `tail_seq_num` is where it would be."""

    def __init__(self, tail_seq_num: int) -> None:
        super().__init__(f"nothing is written there yet: the stream ends before {tail_seq_num}")
        self.tail_seq_num = tail_seq_num


class Answer(NamedTuple):
    """A whole response that is no error."""

    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: Any  # parsed JSON; None where there is none


class Client:
    """Requests to one endpoint, until the block ends. An error says what to do."""

    def __init__(self, endpoint: Endpoint, basin: str, environ: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._headers = {"accept": "application/json", "user-agent": "bourn"}
        token = environ.get(TOKEN_VARIABLE)
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        if basin and not endpoint.names_basin:
            self._headers["s2-basin"] = basin
        self._tls = None
        if endpoint.is_encrypted:
            self._tls = ssl.create_default_context()
            if environ.get(NO_VERIFY_VARIABLE, "").lower() in {"1", "true", "yes"}:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
        self._clock = SystemClock()
        self._connection: http.client.HTTPConnection | None = None
        self._used_at = 0.0

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Make a unary request; `path` is what follows the API's version, with its query."""
        all_headers = self._headers | dict(headers or {})
        if body is not None:
            all_headers["content-type"] = "application/json"
        try:
            response = self._open(method, path, body, all_headers, CALL_SECS_MAX)
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._lost(error) from None
        self._used_at = self._clock.monotonic()
        if response.will_close:
            self.close()
        if response.status >= http.client.BAD_REQUEST:
            raise self._refusal(response.status, data)
        return Answer(
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            self._parsed(data) if data else None,
        )

    def events(self, path: str, headers: Mapping[str, str]) -> Iterator[bytes]:
        """Open a read session and yield its chunks; ConnectionLost where it breaks off."""
        try:
            response = self._open(
                "GET",
                path,
                None,
                self._headers | {"accept": "text/event-stream"} | dict(headers),
                SILENCE_SECS_MAX,
            )
            if response.status != http.client.OK:
                raise self._refusal(response.status, response.read())
            while chunk := response.read1(CHUNK_BYTES):
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None
        finally:
            self.close()

    def listed(self, path: str, query: Mapping[str, str], limit: int | None) -> Iterator[Any]:
        """Yield the items of a list, page by page."""
        start_after = query.get("start_after", "")
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = {**query, "start_after": start_after, "limit": str(size)}
            body = self.call("GET", f"{path}?{urlencode(page)}").body
            members, name = LIST_NAMES[path]
            items = body[members]
            yield from items
            if not body["has_more"] or not items:
                return
            left = None if left is None else left - len(items)
            start_after = items[-1][name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pause(self, seconds: float) -> None:
        """Wait."""
        asyncio.run(self._clock.sleep(seconds))

    def close(self) -> None:
        """Let the connection go; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_secs: float,
    ) -> http.client.HTTPResponse:
        if self._clock.monotonic() - self._used_at > IDLE_SECS_MAX:
            self.close()
        host, port = self._endpoint.host, self._endpoint.port
        if self._connection is None:
            self._connection = (
                http.client.HTTPConnection(host, port, timeout=timeout_secs)
                if self._tls is None
                else http.client.HTTPSConnection(
                    host, port, timeout=timeout_secs, context=self._tls
                )
            )
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.request(method, self._endpoint.path + path, body, dict(headers))
        return self._connection.getresponse()

    def _parsed(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except ValueError:
            raise Failed(
                f"{self._endpoint.url} does not answer like an S2 API: name another endpoint"
            ) from None

    def _lost(self, error: Exception) -> CommandError:
        url = self._endpoint.url
        match error:
            case ssl.SSLCertVerificationError():
                return Failed(
                    f"the certificate of {url} is not trusted: set {NO_VERIFY_VARIABLE}=true for a "
                    "self-signed one, or SSL_CERT_FILE to who signed it"
                )
            case ssl.SSLError():
                return Failed(f"{url} does not speak TLS: try http:// in its place")
            case ConnectionRefusedError() | socket.gaierror():
                return Unreachable(
                    f"cannot reach {url}: start a server with `bourn serve`, or name another one "
                    "by --endpoint, S2_ACCOUNT_ENDPOINT and S2_BASIN_ENDPOINT"
                )
            case TimeoutError():
                return ConnectionLost(f"{url} does not answer: try again, or look at its log")
            case http.client.BadStatusLine() if not isinstance(
                error, http.client.RemoteDisconnected
            ):
                return Failed(f"{url} does not speak plain HTTP: try https:// in its place")
        return ConnectionLost(f"{url} broke the connection off: try again, or look at its log")

    def _refusal(self, status: int, data: bytes) -> CommandError:
        try:
            body = orjson.loads(data)
        except ValueError:
            body = None
        match status, body:
            case 416, {"tail": {"seq_num": int(tail)}}:
                return Unwritten(tail)
            case 412, {"fencing_token_mismatch": str(token)}:
                return Refused(f"the stream's fencing token is {token!r}: append with that one")
            case 412, {"seq_num_mismatch": int(expected)}:
                return Refused(f"the next sequence number is {expected}: look what was appended")
            case _, {"code": str(code), "message": str(message)}:
                hint = HINTS.get(code)
                text = f"{message}: {hint}" if hint else message
                if status >= SERVER_FAULT and code != "not_implemented":
                    return Failed(f"the server could not do it: {text}: try again")
                return Refused(text)
        return Failed(
            f"{self._endpoint.url} answers {status}, not like an S2 API: name another endpoint"
        )


def account_client(endpoint: str | None) -> Client:
    """Return a client for basins."""
    return Client(account_endpoint(endpoint, os.environ), "", os.environ)


def basin_client(endpoint: str | None, basin: str) -> Client:
    """Return a client for the streams of a basin."""
    return Client(basin_endpoint(endpoint, os.environ, basin), basin, os.environ)

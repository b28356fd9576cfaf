"""One connection to an endpoint, and S2S sessions over it; what goes wrong says what to do.

Over TLS the server chooses the version of HTTP; without it HTTP/2 is spoken by prior knowledge, as
the official clients do, or HTTP/1.1 where that is asked for.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import orjson
from httpunk import HTTPunkError
from httpunk.asyncio import AutoClientProtocol, H1ClientProtocol, H2ClientProtocol

from bourn.cli.address import basin_endpoint
from bourn.cli.client import HINTS, NO_VERIFY_VARIABLE, TOKEN_VARIABLE
from bourn.cli.failures import CommandError, Failed, Refused
from bourn.errors import BadFrame
from bourn.model.endpoint import Endpoint
from bourn.wire.compression import Compression
from bourn.wire.frames import Frame, FrameParser, decode_terminal

HTTP_VERSIONS: Final = ("2", "1.1")
CONNECT_SECS_MAX: Final = 5.0
OK: Final = 200
SERVER_FAULT: Final = 500
MEDIA: Final = "s2s/proto"


class Way(NamedTuple):
    """How to reach a basin's streams."""

    endpoint: Endpoint
    headers: dict[str, str]
    http: str
    compression: Compression


def make_way(url: str | None, basin: str, http: str, compression: Compression) -> Way:
    """Return the way to a basin, from the command line and the environment."""
    endpoint = basin_endpoint(url, os.environ, basin)
    headers = {"content-type": MEDIA, "accept": MEDIA, "user-agent": "bourn"}
    if token := os.environ.get(TOKEN_VARIABLE):
        headers["authorization"] = f"Bearer {token}"
    if not endpoint.names_basin:
        headers["s2-basin"] = basin
    if compression is not Compression.NONE:
        headers["accept-encoding"] = compression.name.lower()
    return Way(endpoint, headers, http, compression)


@asynccontextmanager
async def linked(way: Way) -> AsyncIterator["Link"]:
    """A connection, until the block ends."""
    endpoint = way.endpoint
    authority = endpoint.url.partition("://")[2]
    tls = _tls(os.environ, way.http) if endpoint.is_encrypted else None

    def protocol() -> Any:
        if tls is not None:
            return AutoClientProtocol(authority=authority, scheme="https")
        return (H1ClientProtocol if way.http == "1.1" else H2ClientProtocol)(authority=authority)

    found: Any = None
    try:
        async with asyncio.timeout(CONNECT_SECS_MAX):
            transport, found = await asyncio.get_running_loop().create_connection(
                protocol, endpoint.host, endpoint.port, ssl=tls
            )
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = await found.ready()
        yield Link(connection, way)
    except TimeoutError:
        raise Failed(f"{endpoint.url} does not answer: try again, or look at its log") from None
    except (OSError, HTTPunkError) as error:
        raise _lost(error, way) from None
    finally:
        if found is not None:
            await found.aclose()


class Link:
    """Sessions over one connection."""

    def __init__(self, connection: Any, way: Way) -> None:
        self._connection = connection
        self._way = way

    async def frames(
        self, method: str, path: str, body: AsyncIterator[bytes] | None = None
    ) -> AsyncIterator[list[Frame]]:
        """Open a session and yield the frames that come, as many as there are at once."""
        way = self._way
        try:
            async for frames in self._frames(method, way.endpoint.path + path, body):
                yield frames
        except BadFrame as error:
            raise Failed(f"{way.endpoint.url} sends no proper frames: {error.message}") from None
        except (OSError, HTTPunkError) as error:
            raise _lost(error, way) from None

    async def _frames(
        self, method: str, target: str, body: AsyncIterator[bytes] | None
    ) -> AsyncIterator[list[Frame]]:
        way = self._way
        headers = dict(way.headers)
        if way.http == "1.1":
            headers["host"] = way.endpoint.url.partition("://")[2]
        response = await self._connection.request(method, target, headers=headers, body=body)
        async with response:
            if response.status != OK:
                raise _refusal(way, response.status, await response.read())
            parser = FrameParser()
            chunks = response.aiter_bytes()
            try:
                async for chunk in chunks:
                    frames = parser.feed(chunk)
                    if frames and frames[-1].terminal:
                        terminal = decode_terminal(frames[-1])
                        raise _refusal(way, terminal.status, terminal.body)
                    if frames:
                        yield frames
                parser.finish()
            finally:
                await chunks.aclose()


def _tls(environ: Mapping[str, str], http: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"] if http == "2" else ["http/1.1"])
    if environ.get(NO_VERIFY_VARIABLE, "").lower() in {"1", "true", "yes"}:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _lost(error: Exception, way: Way) -> CommandError:
    url = way.endpoint.url
    match error:
        case ssl.SSLCertVerificationError():
            return Failed(
                f"the certificate of {url} is not trusted: set {NO_VERIFY_VARIABLE}=true for a "
                "self-signed one, or SSL_CERT_FILE to who signed it"
            )
        case ssl.SSLError():
            return Failed(f"{url} does not speak TLS: try http:// in its place")
        case ConnectionRefusedError() | socket.gaierror():
            return Failed(f"cannot reach {url}: start a server with `bourn serve`, or name another")
    other = "1.1" if way.http == "2" else "2"
    return Failed(
        f"{url} broke the connection off ({error}): look at its log, or try --http {other}"
    )


def _refusal(way: Way, status: int, data: bytes) -> CommandError:
    try:
        body = orjson.loads(data)
        code, message = str(body["code"]), str(body["message"])
    except (ValueError, TypeError, KeyError):
        said = data[:200].decode(errors="replace")
        return Failed(f"{way.endpoint.url} answers {status} {said}: name another endpoint")
    hint = HINTS.get(code)
    text = f"{message}: {hint}" if hint else message
    if status >= SERVER_FAULT:
        return Failed(f"the server could not do it: {text}: try again")
    return Refused(text)

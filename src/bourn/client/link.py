"""One connection to an endpoint: requests one after the other, or one session both ways at once.

Everything is done by the thread that calls. In a session the socket never blocks: `pump` sends and
receives what is possible, so that neither side waits for the other while both want to be heard.
"""

import select
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from bourn.client.failures import ClientError, ConnectionLost, NotS2, Unreachable, Untrusted
from bourn.client.http1 import Head, ResponseParser, encode_request
from bourn.limits import (
    CLIENT_ANSWER_BYTES_MAX,
    CLIENT_CONNECT_SECS_MAX,
    CLIENT_RECEIVE_BYTES,
)
from bourn.model.endpoint import Endpoint

NO_VERIFY_VARIABLE: Final = "S2_SSL_NO_VERIFY"
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Answer(NamedTuple):
    """A whole response."""

    head: Head
    body: bytes


class Link:
    """A connection; ClientError says what is wrong with it."""

    def __init__(self, endpoint: Endpoint, *, is_verified: bool = True) -> None:
        self.endpoint = endpoint
        self._parser = ResponseParser()
        self._buffer = memoryview(bytearray(CLIENT_RECEIVE_BYTES))
        self._early: list[bytes] = []  # of the body, come with the head
        self._outgoing: deque[memoryview] = deque()
        try:
            self._socket = self._connect(is_verified=is_verified)
        except OSError as error:
            raise _unconnected(error, endpoint) from None

    def _connect(self, *, is_verified: bool) -> socket.socket:
        endpoint = self.endpoint
        found = socket.create_connection((endpoint.host, endpoint.port), CLIENT_CONNECT_SECS_MAX)
        try:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.is_encrypted:
                context = ssl.create_default_context()
                context.set_alpn_protocols(["http/1.1"])
                if not is_verified:
                    context.check_hostname = False
                    context.verify_mode = ssl.CERT_NONE
                return context.wrap_socket(found, server_hostname=endpoint.host)
        except BaseException:
            found.close()
            raise
        return found

    def close(self) -> None:
        """Let go of the connection, whatever is under way."""
        self._socket.close()

    @property
    def is_stale(self) -> bool:
        """Whether the server has closed a connection on which nothing is under way."""
        return self._wait(0)

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, secs_max: float
    ) -> Answer:
        """Make a request and take its whole answer; each silence lasts at most `secs_max`."""
        self._begin(method, target, headers, body, secs_max)
        found = bytearray()
        for piece in self._pieces():
            found += piece
            if len(found) > CLIENT_ANSWER_BYTES_MAX:
                raise NotS2(f"{self.endpoint.url} answers with more than any S2 endpoint does")
        head = self._parser.head
        assert head is not None
        return Answer(head, bytes(found))

    def open(self, method: str, target: str, headers: Mapping[str, str], secs_max: float) -> Head:
        """Begin a session: send the head of the request, and wait for that of the response."""
        self._begin(method, target, headers, b"", secs_max)
        while self._parser.head is None:
            self._early += [bytes(piece) for piece in self._receive()]
        return self._parser.head

    def pieces(self) -> Iterator[memoryview]:
        """Yield the body of an opened response, piece by piece; each is gone with the next."""
        for piece in self._early:
            yield memoryview(piece)
        self._early = []
        yield from self._pieces()

    @property
    def is_ended(self) -> bool:
        """Whether the response is whole."""
        return self._parser.is_ended

    def _begin(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, secs_max: float
    ) -> None:
        self._parser = ResponseParser()
        self._early = []
        head = encode_request(
            method,
            self.endpoint.path + target,
            {"host": self.endpoint.authority, **headers},
        )
        try:
            self._socket.settimeout(secs_max)
            self._socket.sendall(head + body)
        except OSError as error:
            raise _lost(error, self.endpoint) from None

    def _pieces(self) -> Iterator[memoryview]:
        while not self._parser.is_ended:
            yield from self._receive()

    def _receive(self) -> list[memoryview]:
        try:
            size = self._socket.recv_into(self._buffer)
        except _WOULD_BLOCK:
            return []
        except OSError as error:
            raise _lost(error, self.endpoint) from None
        if not size:
            self._parser.finish()
            if not self._parser.is_ended:
                raise ConnectionLost(f"{self.endpoint.url} broke the connection off")
            return []
        return self._parser.feed(self._buffer[:size])

    def put(self, *parts: bytes) -> None:
        """Add to what is to be sent in a session."""
        self._outgoing += [memoryview(part) for part in parts if part]

    @property
    def unsent(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._outgoing)

    def pump(self, secs_max: float, *, wants_input: bool) -> list[bytes]:
        """Send and receive what is possible; wait for that at most `secs_max` where it is nothing.

        With `wants_input` it waits until something has come in, else until something was sent.
        Returns what came in of the response's body.
        """
        self._socket.settimeout(0)
        found = [piece for piece in self._early if piece]
        self._early = []
        is_progress = bool(found)
        while True:
            sent = self._send()
            came = [] if self._parser.is_ended else [bytes(piece) for piece in self._receive()]
            found += came
            if came or self._parser.is_ended or (sent and not wants_input) or is_progress:
                return found
            if not sent and not self._wait(secs_max):
                raise ConnectionLost(f"{self.endpoint.url} has fallen silent")

    def _send(self) -> bool:
        """Send what is possible; whether that was anything."""
        is_sent = False
        try:
            while self._outgoing:
                size = self._socket.send(self._outgoing[0])
                is_sent = True
                if size == len(self._outgoing[0]):
                    self._outgoing.popleft()
                else:
                    self._outgoing[0] = self._outgoing[0][size:]
        except _WOULD_BLOCK:
            pass
        except OSError as error:
            # What the server said before it hung up may still be there to be read.
            self._outgoing.clear()
            if not self._wait(0):
                raise _lost(error, self.endpoint) from None
        return is_sent

    def _wait(self, secs_max: float) -> bool:
        """Wait until something can be received, or sent where something is to be."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        watched = select.poll()
        watched.register(self._socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        return bool(watched.poll(int(1000 * secs_max)))


def _unconnected(error: OSError, endpoint: Endpoint) -> ClientError:
    url = endpoint.url
    match error:
        case ssl.SSLCertVerificationError():
            return Untrusted(
                f"the certificate of {url} is not trusted: set {NO_VERIFY_VARIABLE}=true for a "
                "self-signed one, or SSL_CERT_FILE to who signed it"
            )
        case ssl.SSLError():
            return Untrusted(f"{url} does not speak TLS: try http:// in its place")
    return Unreachable(f"cannot reach {url}: {error.strerror or error}")


def _lost(error: OSError, endpoint: Endpoint) -> ClientError:
    if isinstance(error, TimeoutError):
        return ConnectionLost(f"{endpoint.url} has fallen silent")
    return ConnectionLost(f"{endpoint.url} broke the connection off: {error.strerror or error}")

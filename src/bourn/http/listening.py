"""Listens on a port, and takes connections in without letting dead ones hold up the others.

A connection that its client has reset stays in the queue of the port until somebody takes it.
Whoever makes and resets them faster than they can be served would fill that queue, and everybody
else would wait behind thousands of them for a second and more. So connections are taken in as fast
as they come, and the dead ones go at once, for a fraction of what serving one costs.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from bourn.limits import ACCEPT_PAUSE_SECS, ACCEPTED_DEAD_MAX, ACCEPTED_MAX, BACKLOG

log = logging.getLogger(__name__)

# Not this connection's fault, and not over at once: there is no room for another one.
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """The sockets of one port; `close` stops listening and leaves open connections alone."""

    def __init__(
        self, make_protocol: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None
    ) -> None:
        self._make_protocol = make_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._opening: set[asyncio.Task[object]] = set()
        self.dead_count = 0  # connections that had ended before they were taken in

    async def listen(self, host: str, port: int) -> int:
        """Begin to take connections, on every address that the host has; returns the port."""
        found = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(_bound(family, kind, protocol, address))
        except OSError:
            self.close()
            raise
        for listening in self._sockets:
            listening.listen(BACKLOG)
            self._loop.add_reader(listening, self._take, listening)
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Take no more connections."""
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            self._loop.remove_reader(listening)
            listening.close()

    def _take(self, listening: socket.socket) -> None:
        """Take in what has come, up to what one turn of the loop may cost."""
        dead_before = self.dead_count
        for _ in range(ACCEPTED_MAX):
            while True:
                try:
                    taken, _ = listening.accept()
                except BlockingIOError:
                    return
                except OSError as error:
                    self._refused(listening, error)
                    return
                if not taken.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    break
                taken.close()
                self.dead_count += 1
                if self.dead_count - dead_before >= ACCEPTED_DEAD_MAX:
                    return
            taken.setblocking(False)
            opening = self._loop.create_task(self._open(taken))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, taken: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, taken, ssl=self._tls)
        except OSError as error:  # of the connection, or of its handshake
            log.debug("a connection did not begin: %s", error)
            taken.close()

    def _refused(self, listening: socket.socket, error: OSError) -> None:
        if error.errno in _NO_ROOM:
            log.warning("no connection can be taken in: %s", error)
            self._loop.remove_reader(listening)
            self._loop.call_later(ACCEPT_PAUSE_SECS, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._take, listening)


def _bound(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.setblocking(False)
        found.bind(address)
    except BaseException:
        found.close()
        raise
    return found

"""A way to a server that can be cut: it passes bytes on until it is told to break off."""

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Self

PATIENCE_SECS = 30.0
CHUNK_BYTES = 1 << 16


class Proxy:
    """Listens on a port of its own; each connection goes to the server's port.

    `cuts` says, for one connection after the other, behind how many bytes of the server's answer
    it breaks off; further connections are whole. `answers` are what the first connections hear in
    the server's place; one that is empty goes to the server.
    """

    def __init__(self, port: int, *cuts: int, answers: Iterable[bytes] = ()) -> None:
        self._port = port
        self._cuts = list(cuts)
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.heads: list[bytes] = []
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for found in self._sockets:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            found.close()
        for thread in self._threads:
            thread.join(PATIENCE_SECS)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if said := self._answers.pop(0) if self._answers else b"":
                    self._sockets.append(client)
                    self._start(self._say, client, said)
                    continue
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                cut = self._cuts[self.connections] if self.connections < len(self._cuts) else None
                self.connections += 1
                self._start(self._pass, client, server, None)
                self._start(self._pass, server, client, cut)

    def _say(self, client: socket.socket, said: bytes) -> None:
        with suppress(OSError):
            client.recv(CHUNK_BYTES)
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            while client.recv(CHUNK_BYTES):
                pass

    @property
    def unsaid(self) -> int:
        """How many answers nobody has heard yet."""
        return len(self._answers)

    def _pass(self, source: socket.socket, target: socket.socket, cut: int | None) -> None:
        left = cut
        is_first = True
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if is_first and data.startswith((b"GET", b"POST")):
                    self.heads.append(data.split(b"\r\n")[0])
                is_first = False
                if left is not None and len(data) >= left:
                    target.sendall(data[:left])
                    break
                left = None if left is None else left - len(data)
                target.sendall(data)
        for found in (source, target):
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

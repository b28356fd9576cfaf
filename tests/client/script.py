"""A server that says what it is told to, whatever is asked."""

import socket
import threading
from contextlib import suppress
from typing import Self

from bourn.wire.frames import encode_frame, encode_terminal

PATIENCE_SECS = 30.0


def answer(status: int, body: bytes, *headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} said",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def session(*frames: bytes, is_ended: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames)
    return head + chunks + (b"0\r\n\r\n" if is_ended else b"")


def frame(message: bytes, *, reconnect: bool = False) -> bytes:
    return encode_frame(message, reconnect=reconnect)


def refusal(status: int, body: bytes) -> bytes:
    return encode_terminal(status, body)


class Scripted:
    """Gives the next of its answers to each connection, then closes it."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_SECS)

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client:
                    self.asked.append(client.recv(1 << 16))
                    client.sendall(self._answers.pop(0) if self._answers else b"")
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(1 << 16):
                        pass

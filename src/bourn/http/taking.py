"""Parts of a request's body taken by a plain call, as they arrive.

A session that waits for its client's next batch would otherwise have a task woken for every one of
them. What comes while that task waits goes straight to whoever wants it instead; where that has to
wait for something, what follows goes the ordinary way, to the task, until it waits again.
"""

from typing import Any

from httpunk import HTTPunkError

from bourn.http.exchange import Intake


class Http1Taker:
    """Takes from an HTTP/1.1 connection, which asks it before it wakes the reader."""

    __slots__ = ("_decoder", "_intake", "error", "is_waiting")

    def __init__(self, intake: Intake, decoder: Any) -> None:
        self._intake = intake
        self._decoder = decoder
        self.is_waiting = False  # the reader, and everything before has been taken
        self.error: HTTPunkError | None = None  # for the reader to raise

    def take(self, data: bytes) -> bool:
        """Take what has come; False where it is the reader's.

        At the end of the body, or where it is malformed, the reader does not wait any more.
        """
        intake = self._intake
        if not (self.is_waiting and intake.is_ready):
            self.is_waiting = False
            return False
        decoder = self._decoder
        try:
            decoder.feed(data)
            while (chunk := decoder.decode()) is not None:
                intake.take(chunk)
        except HTTPunkError as error:
            self.error = error
            self.is_waiting = False
        else:
            if decoder.is_complete:
                self.is_waiting = False
        return True


class Http2Taker:
    """Takes from a stream of HTTP/2, in the place of the queue that the reader waits at."""

    __slots__ = ("_connection", "_intake", "_queue", "_stream", "is_waiting")

    def __init__(self, intake: Intake, connection: Any, stream: Any) -> None:
        self._intake = intake
        self._connection = connection
        self._stream = stream
        self._queue = stream.body_send
        self.is_waiting = False  # the reader, and everything before has been taken
        stream.body_send = self

    def send(self, item: Any) -> None:
        """Take a part (with whether it counts as small), or leave it, or the end, to the reader."""
        intake = self._intake
        if not self.is_waiting or item.__class__ is not tuple or not intake.is_ready:
            self.is_waiting = False
            self._queue.send(item)
            return
        chunk, is_counted = item
        connection, number = self._connection, self._stream.id
        if is_counted:
            connection.release_data_frame(number, len(chunk))
        flags = connection.release_capacity(number, len(chunk))
        if flags:
            connection._after(flags)  # noqa: SLF001  as the library does
        intake.take(chunk)

    def close(self) -> None:
        """Leave all that comes to the reader again."""
        self._stream.body_send = self._queue

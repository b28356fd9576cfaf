"""The quick way over HTTP/2: appends and questions whose answer needs no waiting in between.

The library would make a task for every request. One that is plainly an append or a question of the
quick way is taken where its head arrives instead: a question is answered there, an append when
the last of its body has come and when it is durable, all by plain calls. Its head is put into the
words of HTTP/1.1 and judged by the same rules as there (`quick_head`). Whatever turns out to need a
wait, a refusal or a limit goes the ordinary way, with all that has come of it, and nothing has been
done yet that would be repeated there. So does a body that lets itself be waited for, and what a
piece of input holds beyond the time that its answers may take at once.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from httpunk import HTTPunkError
from httpunk._httpunk import H2_FLAG_WAKE
from httpunk.h2.server import ServerRequest
from httpunk.http import HeaderMap

from bourn.http.exchange import ClientGone, Headers
from bourn.http.native_exchange import NativeExchange
from bourn.http.pushing import Flushes
from bourn.http.quick_head import QuickFields, QuickHead, parse_quick_head
from bourn.http.quick_reads import Reply
from bourn.http.quick_shared import Quick, refused
from bourn.limits import (
    BACKLOG_PIECE_BYTES_MIN,
    HEADERS_MAX,
    QUICK_BODY_BYTES_MAX,
    QUICK_HEADS_KEPT,
    QUICK_HELD_BYTES_MAX,
    QUICK_IDLE_SECS,
    QUICK_STARTS_KEPT,
)
from bourn.model.record import AppendAck
from bourn.wire import json, protobuf

if TYPE_CHECKING:
    from bourn.http.native_connection import Connection

log = logging.getLogger(__name__)


class KnownHead(NamedTuple):
    """A head that came before, as the quick way understands it."""

    text: bytes  # as HTTP/1.1 would say it
    head: QuickHead


class QuickStreams:
    """The requests of one connection that go the quick way."""

    def __init__(
        self, connection: "Connection", driver: Any, quick: Quick, flushes: Flushes
    ) -> None:
        self.connection = connection
        self.driver = driver
        self.quick = quick
        self._flushes = flushes
        self._ordinary: Callable[[Any, Any, bool], None] = driver._on_request  # noqa: SLF001  there is no other place
        driver._on_request = self._opened  # noqa: SLF001  as above
        self._known: dict[object, KnownHead] = {}
        self._fields: dict[bytes, QuickFields] = {}
        self.unfinished: set[QuickAppend] = set()  # whose bodies are not whole
        self.held_bytes = 0  # of those bodies: as much as the client may not send until they end
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Take nothing more, and let go of the connection."""
        self.driver.__dict__.pop("_on_request", None)
        self.unfinished.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _opened(self, stream: Any, frame: Any, is_whole: bool) -> None:  # noqa: FBT001  the library's
        """Take a request whose head has arrived, or leave it to the library."""
        connection = self.connection
        is_free = connection.is_heard.is_set() and connection.has_time()
        found = self._find(frame) if is_free else None
        if found is None or is_whole != (found.head.wanted is not None):
            self._ordinary(stream, frame, is_whole)
        elif is_whole:
            self._read(stream, frame, found)
        else:
            self.driver.accepted(stream.id)
            self.unfinished.add(QuickAppend(self, stream, frame, found))
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(QUICK_IDLE_SECS, self._look)

    def _find(self, frame: Any) -> KnownHead | None:
        if frame.method not in {"GET", "POST"}:
            return None
        fields = tuple(frame.headers.items())
        key = frame.method, frame.path, fields
        found = self._known.get(key)
        if found is None:
            found = self._judge(frame, fields)
            if found is not None:
                if len(self._known) >= QUICK_HEADS_KEPT:
                    self._known.clear()
                self._known[key] = found
        return found

    def _judge(self, frame: Any, fields: tuple[tuple[str, bytes], ...]) -> KnownHead | None:
        """Read a head by the rules of HTTP/1.1; a body's length is what comes of it."""
        if len(fields) > HEADERS_MAX or not frame.path or not frame.authority:
            return None
        if not frame.path.isascii():
            return None  # which no other byte may stand for
        said = [(name, value) for name, value in fields if name != "content-length"]
        lines = [b"%b: %b" % (name.encode(), value) for name, value in said]
        length = [b"content-length: 0"] if frame.method == "POST" else []
        line = f"{frame.method} {frame.path} HTTP/1.1"
        host = f"host: {frame.authority}"
        parts = [line.encode(), host.encode(), *length, *lines]
        if any(b"\r" in part or b"\n" in part for part in parts):
            return None
        text = b"\r\n".join([*parts, b"", b""])
        head = parse_quick_head(text, cors=self.quick.cors, known=self._fields)
        return None if head is None else KnownHead(text, head)

    def _look(self) -> None:
        """Leave bodies that let themselves be waited for to the ordinary way: its time runs."""
        self._timer = None
        for append in list(self.unfinished):
            if append.is_late:
                append.hand_over()
            else:
                append.is_late = True
        if self.unfinished:
            self._timer = asyncio.get_running_loop().call_later(QUICK_IDLE_SECS, self._look)

    def hand_over(self, stream: Any, frame: Any) -> None:
        """Leave a request to the library, as if its head came now."""
        self._ordinary(stream, frame, False)

    def _read(self, stream: Any, frame: Any, found: KnownHead) -> None:
        reply = self.quick.reply(found.text, found.head)
        if reply is None:
            self._ordinary(stream, frame, True)
            return
        self.driver.accepted(stream.id)
        if len(reply.body) < BACKLOG_PIECE_BYTES_MIN:
            self.answer(stream, reply)
        else:
            self.spawn(self._answer_large(stream, frame, reply))

    def answer(self, stream: Any, reply: Reply) -> None:
        """Send a small answer, if its client still wants it."""
        driver, body = self.driver, reply.body
        status, fields = _head_of(reply.start)
        head = HeaderMap([*fields, ("content-length", str(len(body)))])
        verdict = driver.send_response_head(stream.id, status, head, False)
        if verdict.stopped is not None:
            return
        self._act(verdict.flags)
        verdict = driver.send_data(stream.id, body, 0, True)
        if verdict.stopped is not None:
            return
        self._act(verdict.flags)
        self._flushes.add(driver)
        if not verdict.done:  # its windows are full
            self.spawn(self._answer_rest(stream, body, verdict.sent))

    def _act(self, flags: int) -> None:
        """Do what the library would, but for the waking of its task."""
        if flags & ~H2_FLAG_WAKE:
            self.driver._after(flags & ~H2_FLAG_WAKE)  # noqa: SLF001  as it does

    async def _answer_rest(self, stream: Any, body: bytes, sent: int) -> None:
        try:
            await self.driver._send_data(stream, body, True, sent)  # noqa: SLF001  as above
        except (HTTPunkError, OSError):
            log.debug("a client has gone")

    async def _answer_large(self, stream: Any, frame: Any, reply: Reply) -> None:
        """Send an answer that counts until the client takes it."""
        request = ServerRequest(stream, self.driver, frame)  # type: ignore[no-untyped-call]  # untyped
        try:
            await NativeExchange(request, self.connection).respond(
                *_head_of(reply.start), reply.body
            )
        except ClientGone:
            log.debug("a client has gone")

    def spawn(self, work: Any) -> None:
        """Do what has to wait; the connection is busy as long as it does."""
        self.connection.begin()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self.connection.end()
        if not task.cancelled() and task.exception() is not None:
            log.error("an answer failed", exc_info=task.exception())


class QuickAppend:
    """An append from its head to its ack; takes its body in the place of the library's queue."""

    __slots__ = (
        "_began",
        "_found",
        "_frame",
        "_owner",
        "_parts",
        "_queue",
        "_size",
        "_stream",
        "is_late",
    )

    def __init__(self, owner: QuickStreams, stream: Any, frame: Any, found: KnownHead) -> None:
        self._owner = owner
        self._stream = stream
        self._frame = frame
        self._found = found
        self._parts: list[tuple[bytes, bool]] = []
        self._size = 0  # of them
        self._began = 0.0
        self.is_late = False
        self._queue = stream.body_send
        stream.body_send = self

    def send(self, item: Any) -> None:
        """Take a part of the body (with whether it counts as small), its end, or that it broke."""
        if item is None:
            self._append()
        elif item.__class__ is tuple:
            self._parts.append(item)
            size = len(item[0])
            self._size += size
            self._owner.held_bytes += size
            if self._size > QUICK_BODY_BYTES_MAX or self._owner.held_bytes > QUICK_HELD_BYTES_MAX:
                self.hand_over()
        else:
            self._close()
            self._release()

    def _close(self) -> None:
        """Take nothing more."""
        self._stream.body_send = self._queue
        self._owner.unfinished.discard(self)
        self._owner.held_bytes -= self._size

    def hand_over(self) -> None:
        """Leave the request to the ordinary way, with what has come of its body."""
        self._close()
        self._owner.hand_over(self._stream, self._frame)
        for part in self._parts:
            self._queue.send(part)

    def _append(self) -> None:
        owner, head = self._owner, self._found.head
        body = b"".join([part for part, _ in self._parts])
        self._began = owner.quick.clock.monotonic()
        taken = owner.quick.append(head, body, self)
        if taken is False:
            self.hand_over()
            self._queue.send(None)
            return
        self._close()
        self._release()
        owner.connection.begin()
        if taken is not True:
            refusal = owner.quick.node.refusal_now(taken)
            if refusal is None:
                owner.spawn(owner.quick.tell_refusal(taken, self))
            else:
                self.failed(refusal)

    def _release(self) -> None:
        """Let the client send as much again."""
        driver, number = self._owner.driver, self._stream.id
        for part, is_counted in self._parts:
            if is_counted:
                driver.release_data_frame(number, len(part))
            driver._after(driver.release_capacity(number, len(part)))  # noqa: SLF001  as the library does
        self._parts.clear()

    def acked(self, ack: AppendAck) -> None:
        """Send the ack."""
        owner, head = self._owner, self._found.head
        owner.quick.telemetry.ack.observe(owner.quick.clock.monotonic() - self._began)
        encode = protobuf.encode_append_ack if head.answer_is_protobuf else json.encode_append_ack
        owner.answer(self._stream, Reply(head.small, encode(ack)))
        owner.connection.end()

    def failed(self, error: Exception) -> None:
        """Send what has gone wrong."""
        self._owner.answer(self._stream, refused(self._found.head, error))
        self._owner.connection.end()


@lru_cache(QUICK_STARTS_KEPT)
def _head_of(start: bytes) -> tuple[int, Headers]:
    """The status and the fields that the start of an answer in HTTP/1.1 has before its length."""
    line, *lines, _ = start.decode("latin-1").split("\r\n")
    fields = [(name, value) for name, _, value in (field.partition(": ") for field in lines)]
    return int(line.split(" ", 2)[1]), fields

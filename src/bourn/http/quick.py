"""The quick way: unary appends and questions over HTTP/1.1 that are answered without a wait.

Every connection begins here. A request that is plainly one of those is answered without a task and
without a second reading of a head that this connection has sent before: its parts are known by its
bytes. Anything else, and whatever turns out to need a wait, a refusal or a limit, goes the ordinary
way: the connection is handed to the library with all that has come. So there is one place that
knows all the rules of HTTP, and nothing has been done yet that it would repeat. A connection that
says nothing for a while goes there too: its time limits are there. From rest it may come back
(`way_back`).
"""

import asyncio
from collections.abc import Callable
from typing import Any

from bourn.http.backlog import Backlog, Waiting
from bourn.http.ordinary import Ordinary
from bourn.http.quick_head import HEAD_END, QuickFields, QuickHead, parse_quick_head
from bourn.http.quick_shared import Quick, refused
from bourn.http.sockets import prepare_socket
from bourn.http.way_back import WayBack
from bourn.limits import (
    QUICK_AHEAD_BYTES_MAX,
    QUICK_BODY_BYTES_MAX,
    QUICK_HEAD_BYTES_MAX,
    QUICK_HEADS_KEPT,
    QUICK_IDLE_SECS,
    QUICK_JOINED_BYTES_MAX,
)
from bourn.model.record import AppendAck
from bourn.wire import json, protobuf


class QuickConnection(asyncio.Protocol):
    """One connection, until it has anything else to say."""

    def __init__(
        self,
        quick: Quick,
        connections: "set[QuickConnection]",
        backlog: Backlog,
        ordinary: Callable[[WayBack], Ordinary],
        way_back: WayBack | None = None,
    ) -> None:
        self._way_back = way_back or WayBack()
        self._quick = quick
        self._connections = connections
        self._backlog = backlog
        self._unread: Waiting | None = None
        self._ordinary = ordinary
        self._heads: dict[bytes, QuickHead] = {}
        self._fields: dict[bytes, QuickFields] = {}
        self._buffer = b""
        self._part = bytearray()  # of a request that came in more than two pieces
        self._stop = 0  # where the request that has begun ends, if that is known
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._head: QuickHead | None = None  # of the append under way
        self._began = 0.0
        self._served = 0  # requests
        self._seen = 0  # of them, at the last look
        self._is_full = False  # the client does not read
        self._is_over = False  # the client has said its last
        self._is_retired = False
        self._is_paused = False
        self._refusing: asyncio.Task[None] | None = None
        self._has_ended = asyncio.Event()
        self._heir: Ordinary | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        prepare_socket(transport.get_extra_info("socket"))
        self._connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(QUICK_IDLE_SECS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; what was admitted is appended all the same."""
        _ = exc
        self._forget()

    def data_received(self, data: bytes) -> None:
        """Answer what is whole."""
        if not self._take(data):
            return
        if self._head is None:
            self._serve()
        elif len(self._buffer) > QUICK_AHEAD_BYTES_MAX:
            self._pause()  # more requests than answers

    def _take(self, data: bytes) -> bool:
        """Put by what has come; False where the request that has begun is not whole by that.

        A body may come in many pieces, and is not to be copied as often. Nor are they kept as they
        are: tiny ones would take many times the memory.
        """
        if self._part:
            self._part += data
            if len(self._part) < self._stop:
                return False
            self._buffer = self._whole()
        elif not self._buffer:
            self._buffer = data
        elif len(self._buffer) + len(data) >= self._stop:
            self._buffer += data
        else:
            self._part += self._buffer
            self._part += data
            self._buffer = b""
            return False
        return True

    def _whole(self) -> bytes:
        """All that has come and is not answered."""
        if self._part:
            self._buffer, self._part = bytes(self._part), bytearray()
        return self._buffer

    def eof_received(self) -> bool:
        """Close, behind the answers to all that has come."""
        self._is_over = True
        return self._head is not None

    def pause_writing(self) -> None:
        """The client does not read: it is not heard either."""
        self._is_full = True
        self._pause()
        if self._unread is None:
            size_bytes = self._transport.get_write_buffer_size()
            self._unread = self._backlog.hold(size_bytes, self.cut)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._is_full = False
        self._forget_unread()
        self._resume()
        if self._head is None:
            self._serve()
            self._end_if_over()

    async def leave(self) -> None:
        """Close behind the answer that is under way."""
        self._is_retired = True
        if self._head is None:
            self._hand_over()
        await self._has_ended.wait()
        if self._heir is not None:
            await self._heir.leave()

    def _hand_over(self) -> None:
        """Let the library go on with what has come."""
        if self._transport.is_closing():
            return
        self._forget()
        data = self._whole()
        if data:
            self._way_back.close(self._served)
        ordinary = self._heir = self._ordinary(self._way_back)
        transport = self._transport
        self._buffer = b""
        transport.set_protocol(ordinary)
        ordinary.connection_made(transport)
        if self._is_full:
            ordinary.pause_writing()
        self._resume()
        if data:
            ordinary.data_received(data)
        if self._is_over:
            ordinary.eof_received()

    def cut(self) -> None:
        """End at once."""
        self._transport.abort()

    def _pause(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def _forget(self) -> None:
        self._connections.discard(self)
        self._forget_unread()
        self._has_ended.set()
        self._heads.clear()
        self._fields.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._backlog.drop(self._unread)
            self._unread = None

    def _look(self) -> None:
        """Hand over a connection that has come to rest, or that keeps a request half said."""
        if self._served == self._seen and self._head is None:
            self._timer = None
            self._hand_over()
            return
        self._seen = self._served
        self._timer = asyncio.get_running_loop().call_later(QUICK_IDLE_SECS, self._look)

    def _serve(self) -> None:
        """Answer requests as long as whole ones are there."""
        while self._buffer and self._head is None and not self._is_full:
            data = self._buffer
            end = data.find(HEAD_END) + len(HEAD_END)
            if end < len(HEAD_END):
                if len(data) > QUICK_HEAD_BYTES_MAX or data[0] not in b"GP" or data[:3] == b"PRI":
                    self._hand_over()
                return
            text = data[:end]
            head = self._known(text)
            if head is None or head.length > QUICK_BODY_BYTES_MAX:
                self._hand_over()
                return
            stop = end + head.length
            if len(data) < stop:
                self._stop = stop
                return
            self._stop = 0
            if head.wanted is None:
                is_answered = self._answer(head, data[end:stop])
            else:
                is_answered = self._answer_at_once(head, data[:stop])
            if not is_answered:
                self._hand_over()
                return
            self._served += 1
            self._buffer = data[stop:]

    def _known(self, data: bytes) -> QuickHead | None:
        head = self._heads.get(data)
        if head is None:
            head = parse_quick_head(data, cors=self._quick.cors, known=self._fields)
            if head is not None:
                if len(self._heads) >= QUICK_HEADS_KEPT:
                    self._heads.clear()
                self._heads[data] = head
        return head

    def _answer_at_once(self, head: QuickHead, data: bytes) -> bool:
        reply = self._quick.reply(data, head)
        if reply is None:
            return False
        start, body = reply
        start = b"%b%d%b" % (start, len(body), self._quick.date())
        if len(body) <= QUICK_JOINED_BYTES_MAX:
            self._write(start + body)
        else:
            self._write_parts(start, body)
        self._quick.attention.hold()
        return True

    def _answer(self, head: QuickHead, body: bytes) -> bool:
        self._began = self._quick.clock.monotonic()
        taken = self._quick.append(head, body, self)
        if taken is False:
            return False
        if taken is not True:
            refusal = self._quick.node.refusal_now(taken)
            if refusal is not None:
                self._refuse(head, refusal)
                return True
            self._refusing = asyncio.get_running_loop().create_task(
                self._quick.tell_refusal(taken, self)
            )
        self._head = head
        return True

    def acked(self, ack: AppendAck) -> None:
        """Send the ack and go on."""
        quick, head = self._quick, self._head
        assert head is not None
        now = quick.clock.monotonic()
        quick.telemetry.ack.observe(now - self._began)
        encode = protobuf.encode_append_ack if head.answer_is_protobuf else json.encode_append_ack
        body = encode(ack)
        self._write(b"%b%d%b%b" % (head.small, len(body), quick.date_at(now), body))
        self._go_on()

    def failed(self, error: Exception) -> None:
        """Send what has gone wrong and go on."""
        assert self._head is not None
        self._refuse(self._head, error)
        self._go_on()

    def _refuse(self, head: QuickHead, error: Exception) -> None:
        start, body = refused(head, error)
        self._write(b"%b%d%b%b" % (start, len(body), self._quick.date(), body))

    def _go_on(self) -> None:
        self._head = None
        if self._is_retired:
            self._hand_over()
            return
        if not self._is_full:
            self._resume()
        self._serve()
        self._end_if_over()

    def _end_if_over(self) -> None:
        """Close behind the last answer to a client that has said its last."""
        is_served = self._head is None and not self._is_full and self._heir is None
        if self._is_over and is_served:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _write_parts(self, *parts: bytes) -> None:
        """Write parts as they are, by one call: a head alone would wake the client for nothing."""
        if not self._transport.is_closing():
            self._transport.writelines(parts)

"""One connection of the server's own HTTP, whichever version its first bytes turn out to be."""

import asyncio
import logging
from contextlib import nullcontext
from time import monotonic, thread_time  # noqa: TID251  what input costs
from typing import TYPE_CHECKING, Any, Final

from httpunk import ConnectionClosedError
from httpunk.h1.server import H1Server

from bourn.http.backlog import Backlog, Waiting
from bourn.http.exchange import ClientGone
from bourn.http.laned_transport import LanedTransport
from bourn.http.native_exchange import NativeExchange
from bourn.http.parting import is_over, last_word
from bourn.http.quick_http2 import QuickStreams
from bourn.http.settling import Settling
from bourn.http.sockets import prepare_socket
from bourn.http.taking import Http1Taker
from bourn.http.way_back import Returning, WayBack
from bourn.limits import (
    GOAWAY_ACK_SECS,
    GOAWAY_LAG_SECS,
    HEADERS_MAX,
    INPUT_BUFFERED_BYTES_MAX,
    INPUT_HEAVY_SECS,
    INPUT_PIECE_BYTES_MIN,
    INPUT_REQUESTS_MAX,
    INPUT_TURN_SECS,
    KIB,
    LANE_BYTES,
    LINGER_BYTES_MAX,
    LINGER_SECS,
    QUICK_TURN_SECS,
)

if TYPE_CHECKING:
    from bourn.http.native import NativeServer

log = logging.getLogger(__name__)

REQUEST_BEGINS_TURNS: Final = 2  # of the loop, from the library's input to the request's handler


class Connection(Returning):
    """One connection, whichever version of HTTP its first bytes turn out to be."""

    def __init__(self, server: "NativeServer", way_back: WayBack | None = None) -> None:
        super().__init__(way_back or WayBack())
        self._owner = server
        self.lingers = False
        self._taker: Http1Taker | None = None
        self._is_plain = False
        self._lane: LanedTransport | None = None  # in the place of the transport
        self._may_join = False  # a lane
        self._quick_streams: QuickStreams | None = None  # on HTTP/2
        self._settling: Settling | None = Settling()  # until the client has acked our settings
        self._discarded_bytes: int | None = None  # None until the end
        self._requests = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._unread: Waiting | None = None
        self._turns = asyncio.Lock()
        self._input_bytes_max = INPUT_PIECE_BYTES_MIN
        self._handed_at = 0.0
        self._handed_cpu_secs: float | None = None  # the same, where it is in doubt
        self._begun = 0  # requests
        self._begun_before = 0  # when input was last handed over

    def connection_made(self, transport: Any) -> None:
        """Begin to serve."""
        prepare_socket(transport.get_extra_info("socket"))
        super().connection_made(transport)  # type: ignore[no-untyped-call]  # untyped
        self._is_plain = transport.get_extra_info("ssl_object") is None
        assert self._serve_task is not None, "made just now"
        self._serve_task.add_done_callback(self._served)
        self._owner.connections.add(self)

    def _served(self, _: object) -> None:
        """Let go of what refers back to this connection, or garbage would wait for a collection."""
        self._serve_task = self._server = None
        if self._quick_streams is not None:
            self._quick_streams.close()
            self._quick_streams = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and what it has sent and nobody will be answered for."""
        self._owner.connections.discard(self)
        self._leave_lane()
        if not self.is_http1:
            self._chunks.clear()
            self._buffered = self._head_off = 0
        self._is_idle.set()
        self.is_heard.set()
        self._forget_unread()
        super().connection_lost(exc)  # type: ignore[no-untyped-call]  # untyped

    @property
    def backlog(self) -> Backlog:
        """What all clients of the server do not take."""
        return self._owner.backlog

    @property
    def client(self) -> str:
        """The address at the other end, as far as it is known."""
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        match peer:
            case (str(host), int(port), *_):
                return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return ""

    async def _make_server(self) -> Any:
        """Tell the version by the first bytes, which must come soon."""
        timer = self._loop.call_later(self._owner.head_secs, self._sniff_cancel.set)
        try:
            server = await self._owner.builder.serve_connection(self, cancel=self._sniff_cancel)
        finally:
            timer.cancel()
        self.is_http1 = isinstance(server, H1Server)
        if self.is_http1:
            self._settling = None
        elif self._owner.app.quick is not None:
            driver = server._conn  # noqa: SLF001  no other way
            quick, flushes = self._owner.app.quick, self._owner.flushes
            self._quick_streams = QuickStreams(self, driver, quick, flushes)
        return server

    async def handle(self, request: Any) -> None:
        """Answer one request, unless its client has taken it back by now."""
        stream = getattr(request, "_stream", None)  # on HTTP/2
        if stream is not None and stream.stop is not None:
            return
        exchange = NativeExchange(request, self)
        self._begun += 1
        self.begin()
        try:
            if len(request.headers) > HEADERS_MAX:
                await exchange.respond(431, [], b"")
            else:
                await self._owner.app.handle(exchange)
        except ClientGone:
            log.debug("a client has gone")
        except (ConnectionClosedError, OSError):
            log.debug("a connection has closed")
        finally:
            self.end()

    def has_time(self) -> bool:
        """Whether what has come may be answered at once, or has taken its turn of the loop."""
        return monotonic() - self._handed_at < QUICK_TURN_SECS

    def begin(self) -> None:
        """Something is being served."""
        self._requests += 1
        self._is_idle.clear()

    def end(self) -> None:
        """Something has been served."""
        self._requests -= 1
        if not self._requests:
            self._is_idle.set()

    async def leave(self) -> None:
        """Close behind what is being served.

        Some clients take GOAWAY for the end of every stream: python-h2, and with it the official
        Python SDK, fails at the next frame and drops what it read in the same piece. So on HTTP/2
        it is said last, and a moment after the rest.
        """
        if not self.is_http1:
            await self._is_idle.wait()
            await asyncio.sleep(GOAWAY_LAG_SECS)  # noqa: TID251  the edge's own pause
        await self.graceful_shutdown()
        while (task := self._serve_task) is not None:
            secs = None if self.is_http1 else GOAWAY_ACK_SECS
            _, pending = await asyncio.wait({task}, timeout=secs)
            if pending and not self.is_http1:
                self._hang_up()
        if self._lane is not None:
            await self._lane.is_left.wait()  # by the last that was said, too

    def _hang_up(self) -> None:
        """Close, if nothing is under way."""
        transport, server = self._transport, self._server
        if transport is None or server is None or self._buffered:
            return
        driver = server._conn  # noqa: SLF001  it has no other way to tell
        if is_over(transport, driver):
            transport.write(last_word(driver))
            super().close()  # type: ignore[no-untyped-call]  # untyped

    # The end. Closing on a client that still sends would reset the connection and might take the
    # answer with it, so such a client is told that nothing more comes, and heard out a little.

    def close(self) -> None:
        """End the connection in order."""
        transport = self._transport
        if not self.lingers or self._eof or transport is None or not transport.can_write_eof():
            super().close()  # type: ignore[no-untyped-call]  # untyped
        elif self._discarded_bytes is None and not transport.is_closing():
            self._discarded_bytes = 0
            transport.write_eof()
            self._loop.call_later(LINGER_SECS, transport.close)
            self._eof = True  # for whoever reads on our side
            self._wake_reader()  # type: ignore[no-untyped-call]  # untyped
            if self._reading_paused:
                self._reading_paused = False
                transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Take bytes in, or drop those that come too late."""
        if not self._requests and self._goes_back(data):
            return
        if self._discarded_bytes is None:
            taker = self._taker
            if not self.is_http1:
                self._keep(data)
            elif taker is None or not taker.take(data):
                super().data_received(data)  # type: ignore[no-untyped-call]  # untyped
            elif not taker.is_waiting:
                self._wake_reader()  # type: ignore[no-untyped-call]  # untyped
            if self._may_join and len(data) < LANE_BYTES:
                self._join_lane()
            return
        self._discarded_bytes += len(data)
        if self._discarded_bytes > LINGER_BYTES_MAX:
            super().close()  # type: ignore[no-untyped-call]  # untyped

    def _goes_back(self, data: bytes) -> bool:
        """Leave what has come, and all that follows, to the quick way, if it is for that."""
        owner, quick = self._owner, self._owner.app.quick
        transport = None
        if quick is not None and self._lane is None:
            transport = self.let_go(quick, data)
        if transport is None:
            return False
        owner.connections.discard(self)
        heir = owner.protocol(self.way_back)
        transport.set_protocol(heir)
        heir.connection_made(transport)
        heir.data_received(data)
        return True

    def feed(self, taker: Http1Taker | None) -> None:
        """Have what comes over HTTP/1.1 taken by a plain call, where that can be."""
        self._owner.fed += (taker is not None) - (self._taker is not None)
        self._taker = taker
        if taker is None:
            self._leave_lane()
        self._may_join = taker is not None and self._is_plain

    def _join_lane(self) -> None:
        """Have a thread receive and send, if there are many to do that for."""
        owner, transport = self._owner, self._transport
        assert transport is not None, "it has brought the data"
        if (
            owner.lanes.is_wanted(owner.fed)
            and not self._reading_paused
            and not self._writing_paused
            and not self._eof
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        ):
            lane = LanedTransport(self, transport, owner.lanes)
            self._may_join = False  # again: to and fro costs more than it brings
            if lane.enter():
                self._lane = self._transport = lane

    def _leave_lane(self) -> None:
        if self._lane is not None:
            self._lane.leave_lane()

    def left_lane(self, transport: asyncio.Transport) -> None:
        """Use the transport again."""
        self._lane = None
        self._transport = transport

    def _keep(self, data: bytes) -> None:
        """Keep input for the library, as it does itself, but some pieces of it.

        It would stop reading behind every large piece, and begin again when that is taken.
        """
        self._chunks.append(data)
        self._buffered += len(data)
        self._wake_reader()  # type: ignore[no-untyped-call]  # untyped
        if self._buffered >= INPUT_BUFFERED_BYTES_MAX and not self._reading_paused:
            self._reading_paused = True
            assert self._transport is not None, "it has brought the data"
            self._transport.pause_reading()

    async def receive_some(self, max_bytes: int = 64 * KIB) -> bytes:
        """Hand the library its next input.

        On HTTP/2 a few bytes can be much work (pings, settings, resets, requests), and beget
        output. So a client that does not read is not heard either, and the more a piece of input
        has cost, the smaller the next one is: others have their turn in between. Of those whose
        input costs much, one is heard in each turn of the loop, however many they are.
        """
        if self.is_http1:
            data = bytes(await super().receive_some(max_bytes))  # type: ignore[no-untyped-call]  # untyped
            if self._taker is not None and self._taker.error is not None:
                raise self._taker.error
            return data
        spent_secs = self._spent_secs()
        is_cut = self._input_bytes_max < INPUT_PIECE_BYTES_MIN  # for all that it began
        is_heavy = spent_secs > INPUT_HEAVY_SECS or is_cut
        if self._buffered:
            async with self._owner.heavy_ones if is_heavy else nullcontext():
                await asyncio.sleep(0)  # noqa: TID251  a bare yield
            if self._begun != self._begun_before:
                for _ in range(REQUEST_BEGINS_TURNS):
                    await asyncio.sleep(0)  # noqa: TID251  a bare yield
        begun, self._begun_before = self._begun - self._begun_before, self._begun
        if begun > INPUT_REQUESTS_MAX:  # of a dozen bytes each, where their headers are known
            self._input_bytes_max = max(self._input_bytes_max // 4, INPUT_PIECE_BYTES_MIN // 8)
        elif spent_secs > INPUT_TURN_SECS:
            self._input_bytes_max = max(self._input_bytes_max // 4, INPUT_PIECE_BYTES_MIN)
        else:
            self._input_bytes_max = min(self._input_bytes_max * 2, max_bytes)
        await self.is_heard.wait()
        data = bytes(await super().receive_some(self._input_bytes_max))  # type: ignore[no-untyped-call]  # untyped
        if self._handed_cpu_secs is not None:
            self._handed_cpu_secs = thread_time()
        self._handed_at = monotonic()
        return data

    def _take(self, max_bytes: int) -> bytes:
        """Take the next of what has come: up to the ack of our settings first."""
        data: bytes = super()._take(max_bytes)  # type: ignore[no-untyped-call]  # untyped
        settling = self._settling
        if settling is None:
            return data
        end = settling.end(data)
        if settling.is_over:
            self._settling = None
        rest_bytes = len(data) - end
        if rest_bytes:
            self._buffered += rest_bytes
            if self._head_off:
                self._head_off -= rest_bytes
            else:
                self._chunks.appendleft(data[end:])
        return data[:end]

    def _spent_secs(self) -> float:
        """What the last piece of input has cost at most.

        The time of day blames a client for others, but asking for the time of this thread costs as
        much as a small piece of input. So it is asked for behind a piece that took long.
        """
        spent_secs = monotonic() - self._handed_at
        if spent_secs <= INPUT_HEAVY_SECS:
            self._handed_cpu_secs = None
        elif self._handed_cpu_secs is not None:
            return thread_time() - self._handed_cpu_secs
        else:
            self._handed_cpu_secs = 0.0
        return spent_secs

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()  # type: ignore[no-untyped-call]  # untyped
        self.is_heard.clear()
        if self._unread is None and self._transport is not None:
            size_bytes = self._transport.get_write_buffer_size()
            self._unread = self.backlog.hold(size_bytes, self.cut)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()  # type: ignore[no-untyped-call]  # untyped
        self.is_heard.set()
        self._forget_unread()

    async def turn(self) -> None:
        """Return when a stream of HTTP/2 may send a large piece: one at a time, if they are read.

        The library hands over what it has put by between two turns of the loop.
        """
        async with self._turns:
            await asyncio.sleep(0)  # noqa: TID251  a bare yield
            await self.is_heard.wait()

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self.backlog.drop(self._unread)
            self._unread = None

    def eof_received(self) -> bool:
        """The client has said its last."""
        if self._discarded_bytes is None:
            return bool(super().eof_received())  # type: ignore[no-untyped-call]  # untyped
        return False

    def cut(self) -> None:
        """End the connection at once, whatever it serves."""
        transport, task = self._transport, self._serve_task
        if transport is not None and task is not None:
            transport.abort()
            task.cancel()

"""S2S sessions: frames in, frames out, both at once.

An append session reads, decodes and submits as fast as room allows, while its acks go out in
order, all that are ready in one write. The first failure ends it: acks of what came before, one
terminal frame, the end. A read session is the engine's batches, framed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from bourn.clock import Clock
from bourn.engine.appender import Appender
from bourn.engine.batch import ReadBatch
from bourn.engine.follower import ReadSession
from bourn.engine.node import Node
from bourn.errors import BadFrame, BadProto, BournError, UnsupportedEncoding
from bourn.http.auth import Principal, token_ended
from bourn.http.data_plane import checked, read_query
from bourn.http.draining import Draining
from bourn.http.exchange import ClientGone, Exchange, Pusher
from bourn.http.problems import problem_of
from bourn.http.request import Request
from bourn.http.telemetry import Telemetry
from bourn.http.throttle import Pace
from bourn.layout.codec import decode_append_input
from bourn.limits import PUSHED_BYTES_MAX
from bourn.model.record import AppendAck, Command
from bourn.wire.compression import Compression, choose_frame_compression
from bourn.wire.frames import FrameParser, encode_frame, encode_terminal, frame_pieces
from bourn.wire.protobuf import encode_append_ack, encode_tail

log = logging.getLogger(__name__)

SESSION_HEADERS: Final = [
    ("content-type", "s2s/proto"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),
]
Commands = tuple[tuple[int, Command], ...]

UNACKED_INPUTS_MAX: Final = 4096  # beside the byte budget: what is tiny is bounded too


class Sessions:
    """Append and read sessions over frames."""

    def __init__(self, node: Node, telemetry: Telemetry, draining: Draining, clock: Clock) -> None:
        self._node = node
        self._telemetry = telemetry
        self._draining = draining
        self._clock = clock

    async def append(self, request: Request, basin: str, name: str) -> None:
        """POST …/records with frames."""
        if request.content_coding() is not Compression.NONE:
            raise UnsupportedEncoding("frames are compressed one by one, never the body")
        key = request.encryption_key()
        config = request.stream_config()
        appender = await self._node.appender(basin, name, config, key)
        del key
        self._telemetry.open_sessions += 1
        try:
            await request.exchange.start(200, SESSION_HEADERS)
            session = AppendSession(
                request.exchange,
                appender,
                self._telemetry,
                self._draining,
                self._clock,
                request.principal,
                lambda commands: request.permit_commands(commands, basin, name),
                request.pace,
            )
            await session.run()
        finally:
            self._telemetry.open_sessions -= 1
            appender.close()

    async def read(self, request: Request, basin: str, name: str) -> None:
        """GET …/records with frames."""
        wanted = read_query(request)
        key = request.encryption_key()
        config = request.stream_config()
        compression = choose_frame_compression(request.exchange.header_values("accept-encoding"))
        session = self._node.read_session(basin, name, checked(wanted), config, key)
        del key
        async with session as batches:
            exchange = request.exchange
            self._telemetry.read_opened(basin)
            try:
                await exchange.start(200, SESSION_HEADERS)
                if exchange.method == "HEAD":
                    await exchange.finish()
                    return
                pusher = exchange.pusher()
                if isinstance(batches, ReadSession) and pusher is not None:
                    feed = FrameFeed(pusher, self._telemetry, self._draining, basin, compression)
                    batches.deliver = feed.deliver
                async for batch in request.guard.following(batches):
                    parts = batch.wire()
                    if batch.tail is not None:
                        parts.append(encode_tail(batch.tail))
                    reconnect = self._draining.wanted
                    for piece in frame_pieces(parts, compression, reconnect=reconnect):
                        await exchange.send(piece)
                    self._telemetry.delivered(batch, basin)
            except ClientGone:
                return
            except BournError as error:
                problem = problem_of(error)
                await exchange.send(encode_terminal(problem.status, problem.body))
            finally:
                self._telemetry.read_closed(basin)
            await exchange.finish()


class FrameFeed:
    """Pushes the batches of a read session, framed once for all who follow the stream."""

    def __init__(
        self,
        pusher: Pusher,
        telemetry: Telemetry,
        draining: Draining,
        basin: str,
        compression: Compression,
    ) -> None:
        self._pusher = pusher
        self._telemetry = telemetry
        self._draining = draining
        self._basin = basin
        self._compression = compression

    def deliver(self, batch: ReadBatch) -> bool:
        """Push a batch that others are given too; False where it must wait."""
        if batch.metered_bytes > PUSHED_BYTES_MAX:
            return False
        pusher, reconnect = self._pusher, self._draining.wanted
        key = (self._compression, reconnect, pusher.framing)
        framed = batch.kept.get(key)
        if framed is None:
            parts = batch.wire()
            if batch.tail is not None:
                parts.append(encode_tail(batch.tail))
            frame = encode_frame(parts, self._compression, reconnect=reconnect)
            framed = batch.kept[key] = pusher.framed(frame)
        if not pusher.push(framed):
            return False
        self._telemetry.delivered(batch, self._basin)
        return True


class AppendSession:
    """One append session: a reader that submits and a writer that acks."""

    def __init__(
        self,
        exchange: Exchange,
        appender: Appender,
        telemetry: Telemetry,
        draining: Draining,
        clock: Clock,
        principal: Principal,
        permit: Callable[[Commands], None],
        pace: Pace | None = None,
    ) -> None:
        self._exchange = exchange
        self._appender = appender
        self._telemetry = telemetry
        self._draining = draining
        self._clock = clock
        self._principal = principal
        self._permit = permit  # PermissionDenied for commands that the token may not append
        self._pace = pace  # None where appends have no limit
        self._replies: deque[tuple[float, asyncio.Future[AppendAck]]] = deque()
        self._changed = asyncio.Event()  # a reply is there, or nothing more comes
        self._taken = asyncio.Event()  # replies were taken to be written
        self._ended: BaseException | None = None  # what ended the input, if not its own end
        self._input_done = False

    async def run(self) -> None:
        """Serve until the client has closed its side and has all acks, or until a failure."""
        reader = asyncio.get_running_loop().create_task(self._read())

        def halt(why: BournError) -> None:
            if not self._input_done:
                self._ended = why
                reader.cancel()

        try:
            with (
                self._draining.watched(lambda: halt(self._draining.refusal())),
                self._principal.watched(lambda: halt(token_ended())),
            ):
                await self._write()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self) -> None:
        try:
            await self._submit_all()
        except BournError as error:
            self._ended = error
        except Exception as error:
            log.exception("an append session failed")
            self._ended = error
        finally:
            self._input_done = True
            self._changed.set()

    async def _submit_all(self) -> None:
        parser = FrameParser()
        async for chunk in self._exchange.chunks():
            for frame in parser.feed(chunk):
                if frame.terminal:
                    raise BadFrame("a client sends no terminal frame")
                await self._submit(frame.message())
            if parser.error is not None:
                raise parser.error
        parser.finish()

    async def _submit(self, message: bytes) -> None:
        try:
            wanted = decode_append_input(message)
        except BadProto as error:
            raise BadFrame(error.message) from None
        if wanted.batch.commands:
            self._permit(wanted.batch.commands)
        while len(self._replies) >= UNACKED_INPUTS_MAX:
            self._taken.clear()
            await self._taken.wait()
        if self._pace is not None:
            await self._pace.wait_for(wanted.batch.metered_bytes)
        batch = self._appender.sealed(wanted.batch)
        asked = self._clock.monotonic()
        await self._appender.room_for(batch)
        now = self._clock.monotonic()
        self._telemetry.admitted(batch, now - asked)
        reply = self._appender.submit(
            batch, match_seq_num=wanted.match_seq_num, fencing_token=wanted.fencing_token
        )
        self._replies.append((now, reply))
        reply.add_done_callback(self._replied)

    def _replied(self, _: asyncio.Future[AppendAck]) -> None:
        self._changed.set()

    async def _write(self) -> None:
        """Send acks in order, then the end: a clean one, or one terminal frame."""
        while True:
            frames, failure = self._ready()
            if frames:
                self._taken.set()
                await self._exchange.send(b"".join(frames))
            if failure is not None:
                await self._end(failure)
                return
            if not self._replies and self._input_done:
                await self._end(self._ended)
                return
            if not frames:
                self._changed.clear()
                await self._changed.wait()

    def _ready(self) -> tuple[list[bytes], BaseException | None]:
        """Take every ack that is ready, up to the first failure."""
        frames: list[bytes] = []
        now = self._clock.monotonic()
        while self._replies and self._replies[0][1].done():
            asked, reply = self._replies.popleft()
            failure = reply.exception()
            if failure is not None:
                return frames, failure
            self._telemetry.ack.observe(now - asked)
            frames.append(
                encode_frame(encode_append_ack(reply.result()), reconnect=self._draining.wanted)
            )
        return frames, None

    async def _end(self, failure: BaseException | None) -> None:
        if isinstance(failure, ClientGone):
            return
        if failure is not None:
            problem = problem_of(failure)
            await self._exchange.send(encode_terminal(problem.status, problem.body))
        await self._exchange.finish()

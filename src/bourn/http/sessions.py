"""S2S sessions: frames in, frames out. A read session is the engine's batches, framed."""

from typing import Final

from bourn.clock import Clock
from bourn.engine.batch import ReadBatch
from bourn.engine.follower import ReadSession
from bourn.engine.node import Node
from bourn.errors import BournError, UnsupportedEncoding
from bourn.http.append_session import AppendSession, Outbox
from bourn.http.data_plane import checked, read_query
from bourn.http.draining import Draining
from bourn.http.exchange import ClientGone, Pusher
from bourn.http.problems import problem_of
from bourn.http.request import Request
from bourn.http.telemetry import Telemetry
from bourn.limits import PUSHED_BYTES_MAX
from bourn.wire.compression import Compression, choose_frame_compression
from bourn.wire.frames import encode_frame, encode_terminal, frame_pieces
from bourn.wire.protobuf import encode_tail

SESSION_HEADERS: Final = [
    ("content-type", "s2s/proto"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),
]


class Sessions:
    """Append and read sessions over frames."""

    def __init__(self, node: Node, telemetry: Telemetry, draining: Draining, clock: Clock) -> None:
        self._node = node
        self._telemetry = telemetry
        self._draining = draining
        self._clock = clock
        self._outbox = Outbox()

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
                self._outbox,
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
                    await exchange.send_parts(frame_pieces(parts, compression, reconnect=reconnect))
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

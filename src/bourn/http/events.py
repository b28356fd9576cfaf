"""Read sessions as server-sent events."""

from typing import Final

from bourn.clock import Clock
from bourn.engine.batch import ReadBatch
from bourn.engine.follower import ReadSession
from bourn.engine.node import Node
from bourn.errors import BournError
from bourn.http.aside import Aside
from bourn.http.data_plane import ReadQuery, checked, read_batch_json, read_query
from bourn.http.exchange import ClientGone, Exchange
from bourn.http.problems import problem_of
from bourn.http.request import Request
from bourn.http.telemetry import Telemetry
from bourn.limits import (
    JSON_WRITTEN_INLINE_BYTES_MAX,
    PUSHED_BYTES_MAX,
    SHARED_BODIES_MAX,
    SHARED_BODY_BYTES_MAX,
)
from bourn.wire import json, sse

EVENT_HEADERS: Final = [
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),
]


class SharedBodies:
    """Batches as JSON, encoded once for all who follow a stream; the newest few, and small ones."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[object, ...], bytes] = {}

    def body(self, batch: ReadBatch, fmt: json.Format) -> bytes:
        """Return a batch as JSON."""
        key = (batch.place, batch.tail, fmt)
        body = self._bodies.get(key)
        if body is None:
            body = read_batch_json(batch, fmt)
            if batch.place is not None and len(body) <= SHARED_BODY_BYTES_MAX:
                if len(self._bodies) >= SHARED_BODIES_MAX:
                    del self._bodies[next(iter(self._bodies))]
                self._bodies[key] = body
        return body


class EventFeed:
    """What one follower has been sent, and the events that follow."""

    def __init__(
        self,
        exchange: Exchange,
        telemetry: Telemetry,
        clock: Clock,
        basin: str,
        fmt: json.Format,
        position: sse.EventId,
    ) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._basin = basin
        self._fmt = fmt
        self._position = position
        self.pusher = exchange.pusher()

    def event(self, batch: ReadBatch, body: bytes) -> bytes:
        """Return the event of a batch, given as JSON too, or of a heartbeat."""
        if batch.is_heartbeat and batch.tail is not None:
            return sse.encode_ping(self._clock.now_ms(), batch.tail)
        self._position = self._position.after(
            batch.last_seq_num, batch.records_count, batch.metered_bytes
        )
        return sse.encode_batch(self._position, body)

    def deliver(self, batch: ReadBatch) -> bool:
        """Push the event of a batch that others are given too; False where it must wait.

        Followers that have been sent equally much are sent the same bytes, made by the first.
        """
        pusher = self.pusher
        if pusher is None or batch.metered_bytes > PUSHED_BYTES_MAX:
            return False
        before = self._position
        kept = batch.kept
        key = (before.count, before.metered_bytes, self._fmt, pusher.framing)
        framed = kept.get(key)
        if framed is None:
            body = b"" if batch.is_heartbeat else self._kept_body(batch)
            framed = kept[key] = pusher.framed(self.event(batch, body))
            self._position = before
        if not pusher.push(framed):
            return False
        if batch.slices:
            self._position = before.after(
                batch.last_seq_num, batch.records_count, batch.metered_bytes
            )
        self._telemetry.delivered(batch, self._basin)
        return True

    def _kept_body(self, batch: ReadBatch) -> bytes:
        body = batch.kept.get(self._fmt)
        if body is None:
            body = batch.kept[self._fmt] = read_batch_json(batch, self._fmt)
        return body


class Events:
    """GET …/records as an event stream."""

    def __init__(self, node: Node, telemetry: Telemetry, clock: Clock, aside: Aside) -> None:
        self._node = node
        self._telemetry = telemetry
        self._clock = clock
        self._bodies = SharedBodies()
        self._aside = aside

    async def read(self, request: Request, basin: str, name: str) -> None:
        """Stream batches, pings, and how it ended."""
        query = read_query(request)
        key = request.encryption_key()
        config = request.stream_config()
        fmt = json.parse_format(request.exchange.header("s2-format"))
        position = sse.EventId(0, 0, 0)
        resume = request.exchange.header("last-event-id")
        if resume is not None:
            position = sse.parse_event_id(resume)
            query = resumed(query, position)
        session = self._node.read_session(basin, name, checked(query), config, key)
        del key
        exchange = request.exchange
        async with session as batches:
            self._telemetry.read_opened(basin)
            try:
                await exchange.start(200, EVENT_HEADERS)
                if exchange.method == "HEAD":
                    await exchange.finish()
                    return
                feed = EventFeed(exchange, self._telemetry, self._clock, basin, fmt, position)
                if isinstance(batches, ReadSession) and feed.pusher is not None:
                    batches.deliver = feed.deliver
                async for batch in request.guard.following(batches):
                    # The body, which can be large, is not kept beside the event made of it.
                    await exchange.send(feed.event(batch, await self._body(batch, fmt)))
                    self._telemetry.delivered(batch, basin)
                await exchange.send(sse.DONE)
            except ClientGone:
                return
            except BournError as error:
                await exchange.send(sse.encode_error(problem_of(error).body))
            finally:
                self._telemetry.read_closed(basin)
            await exchange.finish()

    async def _body(self, batch: ReadBatch, fmt: json.Format) -> bytes:
        if batch.is_heartbeat:
            return b""
        if batch.metered_bytes > JSON_WRITTEN_INLINE_BYTES_MAX:
            return await self._aside.run(read_batch_json, batch, fmt)
        return self._bodies.body(batch, fmt)


def resumed(query: ReadQuery, position: sse.EventId) -> ReadQuery:
    """Go on behind an event that the client has: its start counts, and limits shrink."""
    start = min(position.seq_num + 1, 2**64 - 1)
    again = ReadQuery(query, seq_num=start, timestamp=None, tail_offset=None)
    for limit, delivered in (("count", position.count), ("bytes", position.metered_bytes)):
        asked = query[limit]
        if asked is not None:
            again[limit] = max(0, asked - delivered)
    return again

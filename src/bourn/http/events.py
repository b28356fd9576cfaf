"""Read sessions as server-sent events."""

from typing import Final

from bourn.clock import Clock
from bourn.engine.node import Node
from bourn.errors import BournError
from bourn.http.data_plane import ReadQuery, checked, read_query
from bourn.http.exchange import ClientGone
from bourn.http.problems import problem_of
from bourn.http.request import Request
from bourn.http.telemetry import Telemetry
from bourn.wire import json, sse

EVENT_HEADERS: Final = [
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),
]


class Events:
    """GET …/records as an event stream."""

    def __init__(self, node: Node, telemetry: Telemetry, clock: Clock) -> None:
        self._node = node
        self._telemetry = telemetry
        self._clock = clock

    async def read(self, request: Request, basin: str, name: str) -> None:
        """Stream batches, pings, and how it ended."""
        query = read_query(request)
        request.encryption_key()
        config = request.stream_config()
        fmt = json.parse_format(request.exchange.header("s2-format"))
        position = sse.EventId(0, 0, 0)
        resume = request.exchange.header("last-event-id")
        if resume is not None:
            position = sse.parse_event_id(resume)
            query = resumed(query, position)
        exchange = request.exchange
        session = self._node.read_session(basin, name, checked(query), config)
        async with session as batches:
            self._telemetry.open_sessions += 1
            try:
                await exchange.start(200, EVENT_HEADERS)
                if exchange.method == "HEAD":
                    await exchange.finish()
                    return
                async for batch in batches:
                    if batch.is_heartbeat and batch.tail is not None:
                        event = sse.encode_ping(self._clock.now_ms(), batch.tail)
                    else:
                        position = position.after(
                            batch.last_seq_num, batch.records_count, batch.metered_bytes
                        )
                        body = json.encode_read_batch(batch.records(), batch.tail, fmt)
                        event = sse.encode_batch(position, body)
                    await exchange.send(event)
                    self._telemetry.delivered(batch)
                await exchange.send(sse.DONE)
            except ClientGone:
                return
            except BournError as error:
                await exchange.send(sse.encode_error(problem_of(error).body))
            finally:
                self._telemetry.open_sessions -= 1
            await exchange.finish()


def resumed(query: ReadQuery, position: sse.EventId) -> ReadQuery:
    """Go on behind an event that the client has: its start counts, and limits shrink."""
    start = min(position.seq_num + 1, 2**64 - 1)
    again = ReadQuery(query, seq_num=start, timestamp=None, tail_offset=None)
    for limit, delivered in (("count", position.count), ("bytes", position.metered_bytes)):
        asked = query[limit]
        if asked is not None:
            again[limit] = max(0, asked - delivered)
    return again

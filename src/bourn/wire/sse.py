"""Server-sent events of a read session.

    event: batch                            event: ping
    id: 1041,42,9310                        data: {"timestamp":…,"tail":{…}}
    data: {"records":[…],"tail":{…}}

    event: error                            data: [DONE]
    data: {"code":…,"message":…}

Lines end in LF, a blank line ends an event, and `data` is always one line: JSON text never holds
a raw line break. Only a batch has an id: the last sequence number delivered, then the records and
the metered bytes delivered so far. A client that reconnects sends it back as `last-event-id`.
An error ends the stream without `[DONE]`.
"""

import re
from typing import Final

import msgspec

from bourn.errors import BadHeader
from bourn.limits import U64_MAX
from bourn.model.record import StreamPosition
from bourn.wire.json import encode_position

DONE: Final = b"data: [DONE]\n\n"

_EVENT_ID: Final = re.compile(
    r"0*([0-9]{1,20})(?P<separator>[,:])0*([0-9]{1,20})(?P=separator)0*([0-9]{1,20})"
)


class EventId(msgspec.Struct, frozen=True):
    """How far a session has come: last sequence number, records and metered bytes delivered."""

    seq_num: int
    count: int
    metered_bytes: int

    def __str__(self) -> str:
        return f"{self.seq_num},{self.count},{self.metered_bytes}"

    def after(self, seq_num: int, count: int, metered_bytes: int) -> "EventId":
        """Return the id of the next batch, which ends at `seq_num`; the counters saturate."""
        return EventId(
            seq_num,
            min(self.count + count, U64_MAX),
            min(self.metered_bytes + metered_bytes, U64_MAX),
        )


def parse_event_id(value: str) -> EventId:
    """Read a `last-event-id` header; BadHeader if it is none of ours."""
    match = _EVENT_ID.fullmatch(value)
    if match is not None:
        seq_num, count, metered_bytes = map(int, match.group(1, 3, 4))
        if max(seq_num, count, metered_bytes) <= U64_MAX:
            return EventId(seq_num, count, metered_bytes)
    raise BadHeader("Invalid header `last-event-id`: expected seq_num,count,bytes")


def encode_batch(event_id: EventId, batch: bytes) -> bytes:
    """Return the event of a batch, given as JSON."""
    return b"event: batch\nid: %b\ndata: %b\n\n" % (str(event_id).encode(), batch)


def encode_ping(timestamp: int, tail: StreamPosition) -> bytes:
    """Return the event that says the session lives; `timestamp` is the time of sending in ms."""
    return b'event: ping\ndata: {"timestamp":%d,"tail":%b}\n\n' % (timestamp, encode_position(tail))


def encode_error(body: bytes) -> bytes:
    """Return the event of an error, given as the JSON body that its HTTP response would have."""
    return b"event: error\ndata: %b\n\n" % body

"""A lane in the place of a connection's transport: for append sessions over HTTP/1.1.

A session's batches and acks are small and many, and the kernel's work for them is most of what they
cost (`lanes`). While a connection is in a lane, it and the library write to this instead of their
transport, and know no difference. What a lane is not for (a large answer, a client that does not
read, the end) waits until the lane is left, and is the transport's then, in the same order.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from bourn.http.lanes import Lanes
from bourn.limits import BACKLOG_PIECE_BYTES_MIN, LANE_ANSWER_BYTES_MAX, LANE_BYTES


class Laned(Protocol):
    """Whose transport is replaced."""

    def data_received(self, data: bytes) -> None:
        """Take what has come."""

    def pause_writing(self) -> None:
        """Write no more, for now."""

    def resume_writing(self) -> None:
        """Write again."""

    def left_lane(self, transport: asyncio.Transport) -> None:
        """Use the transport again."""

    def cut(self) -> None:
        """End the connection at once."""


class LanedTransport:
    """The transport of a connection in a lane, and the lane's member."""

    def __init__(self, connection: Laned, transport: Any, lanes: Lanes) -> None:
        self._connection = connection
        self._transport = transport
        self._lanes = lanes
        self._lane: int | None = None
        self.is_left = asyncio.Event()
        self._is_leaving = False
        self._is_closing = False
        self._is_paused = False  # the library reads no more, for now
        self._owes_more = False  # something came, and the lane is not received from
        self._unsent: list[bytes] = []  # which the lane could not send
        self._held: list[bytes] = []  # while it is being left
        self._held_bytes = 0
        self._is_full = False  # so much is held that no more should be written
        self._then: list[Callable[[], None]] = []  # behind what is held

    def enter(self) -> bool:
        """Go to a lane; False where there is none to be had."""
        self._transport.pause_reading()
        descriptor = self._transport.get_extra_info("socket").fileno()
        self._lane = self._lanes.join(self, descriptor)
        if self._lane is None:
            self._transport.resume_reading()
        return self._lane is not None

    # As the lane's member

    def came(self, data: bytes) -> None:
        """Hand on what has come by the lane; a large request is the transport's."""
        self._owes_more = True
        if len(data) == LANE_BYTES:
            self.leave_lane()
        if not self._is_closing:
            self._connection.data_received(data)
            self._ask_for_more()

    def _ask_for_more(self) -> None:
        if self._owes_more and not self._is_paused and not self._is_leaving:
            assert self._lane is not None
            self._owes_more = False
            self._lanes.more(self._lane)

    def was_short(self, data: bytes) -> None:
        """Keep what could not be sent for the transport."""
        self._unsent.append(data)
        self.leave_lane()

    def leave_lane(self) -> None:
        """Go back to the transport."""
        if self._lane is not None and not self._is_leaving:
            self._is_leaving = True
            self._lanes.leave(self._lane)

    def left_lane(self) -> None:
        """Have the transport go on where the lane has stopped."""
        self._lane = None
        self.is_left.set()
        transport, then = self._transport, self._then
        unsent = b"".join((*self._unsent, *self._held))
        self._unsent, self._held, self._then = [], [], []
        self._held_bytes = 0
        self._connection.left_lane(transport)
        if transport.is_closing():
            return
        if self._is_full:
            self._connection.resume_writing()
        if unsent:
            transport.write(unsent)
        if not self._is_paused:
            transport.resume_reading()
        for do in then:
            do()

    def cut(self) -> None:
        """End the connection at once."""
        self._connection.cut()

    # As the connection's transport

    def write(self, data: Any) -> None:
        """Send by the lane what is small, and all else by the transport, behind the lane."""
        lane = self._lane
        if lane is None:
            self._transport.write(data)
        elif self._is_leaving or len(data) > LANE_ANSWER_BYTES_MAX:
            self._hold(bytes(data))
        else:
            self._lanes.send(lane, bytes(data), more=False)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= BACKLOG_PIECE_BYTES_MIN and not self._is_full:
            self._is_full = True
            self._connection.pause_writing()
        self.leave_lane()

    def _do_then(self, do: Callable[[], None]) -> None:
        if self._lane is None:
            do()
        else:
            self._then.append(do)
            self.leave_lane()

    def write_eof(self) -> None:
        """Say that nothing more is sent, behind all that was."""
        self._do_then(self._transport.write_eof)

    def close(self) -> None:
        """Close behind all that was sent."""
        self._is_closing = True
        self._do_then(self._transport.close)

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self._transport.abort()
        self.leave_lane()

    def pause_reading(self) -> None:
        """Take nothing more, for now."""
        self._is_paused = True
        if self._lane is None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more."""
        self._is_paused = False
        if self._lane is None:
            self._transport.resume_reading()
        else:
            self._ask_for_more()

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._is_closing or bool(self._transport.is_closing())

    def can_write_eof(self) -> bool:
        """Whether half of it can be closed."""
        return bool(self._transport.can_write_eof())

    def get_write_buffer_size(self) -> int:
        """How many bytes wait to be sent, as far as that is known."""
        return self._held_bytes + int(self._transport.get_write_buffer_size())

    def get_extra_info(self, name: str) -> Any:
        """What is known of the connection."""
        return self._transport.get_extra_info(name)

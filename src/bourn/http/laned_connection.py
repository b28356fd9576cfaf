"""A connection on the quick way that goes to a lane where that is worth while (`lanes`).

In a lane it is served as ever. It leaves it for whatever a lane is not for: a large request or
answer, a client that does not read, the ordinary way, the end.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from bourn.http.backlog import Backlog
from bourn.http.lanes import Lanes
from bourn.http.ordinary import Ordinary
from bourn.http.quick import QuickConnection
from bourn.http.quick_shared import Quick
from bourn.http.way_back import WayBack
from bourn.limits import LANE_ANSWER_BYTES_MAX, LANE_BYTES


class LanedConnection(QuickConnection):
    """A connection on the quick way, in a lane where that is worth while."""

    def __init__(
        self,
        quick: Quick,
        connections: "set[QuickConnection]",
        backlog: Backlog,
        ordinary: Callable[[WayBack], Ordinary],
        lanes: Lanes,
        way_back: WayBack | None = None,
    ) -> None:
        super().__init__(quick, connections, backlog, ordinary, way_back)
        self._lanes = lanes
        self._is_plain = False
        self._lane: int | None = None
        self._owes_more = False  # something came, and the lane is not received from
        self._is_leaving = False
        self._may_return = True
        self._when_left: Callable[[], None] | None = None
        self._unsent: list[bytes] = []  # which the lane could not send
        self._held: list[bytes] = []  # while it is being left

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; what is encrypted stays with its transport."""
        super().connection_made(transport)
        self._is_plain = transport.get_extra_info("ssl_object") is None

    def data_received(self, data: bytes) -> None:
        """Answer what is whole; go to a lane, if that is what an append needs."""
        super().data_received(data)
        if (
            self._lane is None
            and self._is_plain
            and self._may_return
            and self._head is not None
            and self._lanes.is_wanted(len(self._connections))
            and self._may_join()
        ):
            transport: Any = self._transport
            transport.pause_reading()
            self._is_paused = True
            self._lane = self._lanes.join(self, transport.get_extra_info("socket").fileno())
            self._resume()

    def _may_join(self) -> bool:
        return not (
            self._buffer
            or self._is_paused
            or self._is_full
            or self._is_over
            or self._is_retired
            or self._transport.is_closing()
            or self._transport.get_write_buffer_size()
        )

    def came(self, data: bytes) -> None:
        """Take what has come by the lane."""
        self._owes_more = True
        is_whole = self._take(data)
        if self._is_leaving:
            return
        if len(data) == LANE_BYTES:
            self.leave_lane()
        elif self._head is None:
            if is_whole:
                self._serve()
            self._ask_for_more()

    def was_short(self, data: bytes) -> None:
        """Keep what could not be sent for the transport."""
        self._unsent.append(data)
        self.leave_lane()

    def leave_lane(self, when_left: Callable[[], None] | None = None) -> None:
        """Go back to the transport; then do this."""
        if when_left is not None:
            self._when_left = when_left
        if self._lane is not None and not self._is_leaving:
            self._is_leaving = self._is_full = True  # so that nothing is served meanwhile
            self._lanes.leave(self._lane)

    def left_lane(self) -> None:
        """Go on where the lane has stopped."""
        self._lane = None
        self._is_leaving = self._is_full = False
        self._owes_more = False
        when_left, self._when_left = self._when_left, None
        if self._transport.is_closing():
            return
        if self._unsent or self._held:
            self._transport.write(b"".join((*self._unsent, *self._held)))
            self._unsent.clear()
            self._held.clear()
        if when_left is not None:
            when_left()
            return
        if not self._is_full and self._head is None:
            self._resume()
            self._serve()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, in the lane too."""
        super().connection_lost(exc)
        self.leave_lane()

    def _hand_over(self) -> None:
        if self._lane is None:
            super()._hand_over()
        else:
            self.leave_lane(self._hand_over)

    def _pause(self) -> None:
        if self._lane is None:
            super()._pause()

    def _resume(self) -> None:
        if self._lane is None:
            super()._resume()

    def _serve(self) -> None:
        if not self._is_leaving:
            super()._serve()

    def _go_on(self) -> None:
        super()._go_on()
        if self._lane is not None:
            self._ask_for_more()

    def _ask_for_more(self) -> None:
        if self._owes_more and self._head is None and not self._is_leaving:
            assert self._lane is not None
            self._owes_more = False
            self._lanes.more(self._lane)

    def _write(self, data: bytes) -> None:
        if self._lane is None:
            super()._write(data)
        elif self._is_leaving or len(data) > LANE_ANSWER_BYTES_MAX:
            self._held.append(data)
            self._may_return = False
            self.leave_lane()
        else:
            more = self._owes_more and not self._buffer
            self._owes_more = self._owes_more and not more
            self._lanes.send(self._lane, data, more=more)

    def _write_parts(self, *parts: bytes) -> None:
        if self._lane is None:
            super()._write_parts(*parts)
        else:
            for part in parts:
                self._write(part)

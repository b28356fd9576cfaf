"""The audit log: one JSON object a line on the logger `bourn.audit`, and never a secret.

    {"time", "event", "principal", "op", "basin", "stream", "token", "status", "code", "client"}

event       `control` for an operation that changes basins, streams, locations or tokens;
            `refused` for whatever lacked a token or a permission; `left-out` for lines, as many as
            its `count` says, that were not written
principal   the id of the token; empty where there was none, or none was asked for
token       the id of the token that the operation is about
code        S2's code of the error; empty where it was done

Whoever is refused can ask again at once, so lines about what failed are capped in each window of
time; what is left out is counted, and said when the window ends. Lines about what was done are
never left out.
"""

import logging
from typing import Final

import orjson

from bourn.clock import Clock
from bourn.limits import AUDIT_REFUSALS_MAX, AUDIT_WINDOW_SECS
from bourn.model.access import Op
from bourn.model.instants import format_ms

log = logging.getLogger("bourn.audit")

CONTROL: Final = frozenset(
    {
        Op.CREATE_BASIN,
        Op.DELETE_BASIN,
        Op.RECONFIGURE_BASIN,
        Op.ISSUE_ACCESS_TOKEN,
        Op.REVOKE_ACCESS_TOKEN,
        Op.SET_DEFAULT_LOCATION,
        Op.CREATE_STREAM,
        Op.DELETE_STREAM,
        Op.RECONFIGURE_STREAM,
    }
)


def is_heard() -> bool:
    """Whether anybody listens to the logger."""
    return log.isEnabledFor(logging.INFO)


class Audit:
    """Writes lines; costs next to nothing while nobody listens to the logger."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._window_ends_at = 0.0
        self._written = 0
        self._left_out = 0

    def done(self, op: Op, status: int, **subject: str) -> None:
        """Note an operation that was done, if it changed anything."""
        if op in CONTROL and is_heard():
            self._write("control", op, status, "", subject)

    def failed(self, op: Op, status: int, code: str, **subject: str) -> None:
        """Note an operation that would have changed something."""
        if op in CONTROL and is_heard() and self._has_room():
            self._write("control", op, status, code, subject)

    def refused(self, op: Op, status: int, code: str, **subject: str) -> None:
        """Note an access that was refused."""
        if is_heard() and self._has_room():
            self._write("refused", op, status, code, subject)

    def _has_room(self) -> bool:
        now = self._clock.monotonic()
        if now >= self._window_ends_at:
            self._say_left_out()
            self._window_ends_at, self._written = now + AUDIT_WINDOW_SECS, 0
        if self._written < AUDIT_REFUSALS_MAX:
            self._written += 1
            return True
        if not self._left_out:
            self._clock.call_later(self._window_ends_at - now, self._say_left_out)
        self._left_out += 1
        return False

    def _say_left_out(self) -> None:
        if self._left_out:
            count, self._left_out = self._left_out, 0
            line = {"time": format_ms(self._clock.now_ms()), "event": "left-out", "count": count}
            log.info("%s", orjson.dumps(line).decode())

    def _write(self, event: str, op: Op, status: int, code: str, subject: dict[str, str]) -> None:
        line = {
            "time": format_ms(self._clock.now_ms()),
            "event": event,
            "principal": subject.get("principal", ""),
            "op": op.value,
            "basin": subject.get("basin", ""),
            "stream": subject.get("stream", ""),
            "token": subject.get("token", ""),
            "status": status,
            "code": code,
            "client": subject.get("client", ""),
        }
        log.info("%s", orjson.dumps(line).decode())

"""What all connections on the quick way share: the parts of the server that it asks."""

import asyncio
import logging
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol

from bourn.clock import Clock
from bourn.engine.node import Node
from bourn.engine.pending import AckWaiter
from bourn.errors import BournError
from bourn.http.attention import Attention
from bourn.http.auth import Authenticator
from bourn.http.data_plane import decode_json, is_quick_json
from bourn.http.draining import Draining
from bourn.http.problems import problem_of
from bourn.http.quick_catalog import QuickCatalog
from bourn.http.quick_head import HEAD_END, QuickHead, parse_quick_head
from bourn.http.quick_reads import QuickReads, Reply, dressed
from bourn.http.telemetry import Telemetry
from bourn.layout.codec import decode_append_input
from bourn.limits import QUICK_BODY_BYTES_MAX
from bourn.model.access import Op
from bourn.model.record import AppendAck
from bourn.model.usage import ACCOUNT, SET_OF_OP, UsageSet
from bourn.wire import json

log = logging.getLogger(__name__)

# As the library has them, whatever Python says.
_PHRASES: Final = {416: "Range Not Satisfiable", 499: "<none>"}


class Refusable(Protocol):
    """Who has asked for an append."""

    def failed(self, error: Exception) -> None:
        """It was refused, or has failed."""
        ...


class Quick:
    """What all connections share: the parts of the server that the quick way asks."""

    def __init__(
        self,
        node: Node,
        clock: Clock,
        auth: Authenticator,
        telemetry: Telemetry,
        draining: Draining,
        *,
        cors: bool,
    ) -> None:
        self.node = node
        self.clock = clock
        self.telemetry = telemetry
        self.cors = cors
        self._auth = auth
        self._draining = draining
        self.attention = Attention()
        self._reads = QuickReads(node, telemetry)
        self._catalog = QuickCatalog(node, auth)
        self._date = b""
        self._date_s = -1
        self._date_until = 0.0  # by the monotonic clock

    def is_plain(self, data: bytes) -> bool:
        """Whether a request begins here that may be one for the quick way."""
        if self._draining.wanted:
            return False
        end = data.find(HEAD_END) + len(HEAD_END)
        if end < len(HEAD_END):
            return False
        head = parse_quick_head(data[:end], cors=self.cors, known={})
        return head is not None and head.length <= QUICK_BODY_BYTES_MAX

    def is_open_to(self, head: QuickHead) -> str | None:
        """The name of the stream that this request may go to; None for the ordinary way."""
        if self._draining.wanted:
            return None
        principal = self._auth.known(head.digest)
        if principal is None:
            return None
        if principal.is_open:
            return head.stream
        if principal.stream_prefix:
            return None
        is_allowed = principal.allows(head.op, head.basin, head.stream) and (
            head.op is not Op.CREATE_STREAM  # by a PUT, which changes what is there
            or principal.allows(Op.RECONFIGURE_STREAM, head.basin, head.stream)
        )
        return head.stream if is_allowed else None

    def append(
        self, head: QuickHead, body: bytes, waiter: AckWaiter
    ) -> "asyncio.Future[AppendAck] | bool":
        """Admit an append; False where it must go the ordinary way, and nothing has happened."""
        stream = self.is_open_to(head)
        if stream is None:
            return False
        try:
            if head.body_is_protobuf:
                found = decode_append_input(body)
            elif is_quick_json(body):
                found = decode_json(body, head.format)
            else:
                return False
        except BournError:
            return False
        batch, match_seq_num, fencing_token = found
        if batch.commands and head.digest:
            return False  # which may take permissions of their own
        taken = self.node.append_now(
            head.basin, stream, batch, match_seq_num, fencing_token, waiter
        )
        if taken:
            self._count()
            self.telemetry.admitted(batch, 0.0)
        return taken

    async def tell_refusal(self, done: "asyncio.Future[AppendAck]", waiter: Refusable) -> None:
        """Tell why an append was refused; that has to wait for what it rests on."""
        try:
            await self.node.settled_append(done)
        except BournError as error:
            waiter.failed(error)
        except Exception:
            log.exception("an append failed")
            waiter.failed(RuntimeError())
        else:
            raise AssertionError("a refused append has no ack")

    def reply(self, data: bytes, head: QuickHead) -> Reply | None:
        """Answer anything but an append from memory, by all bytes of the request.

        None where it must go the ordinary way.
        """
        try:
            reply = self._reply(data, head)
        except BournError as error:
            reply = refused(head, error)
        except Exception as error:
            log.exception("a question failed")
            reply = refused(head, error)
        if reply is not None:
            self._count()
        return reply

    def _reply(self, data: bytes, head: QuickHead) -> Reply | None:
        """Return the answer; raises what is to be answered instead."""
        stream = self.is_open_to(head)
        if stream is None:
            return None
        if head.op is Op.READ:
            return self._reads.reply(data, head, stream)
        if head.op is Op.CHECK_TAIL:
            tail = self.node.tail_now(head.basin, stream)
            reply = None if tail is None else dressed(head, json.encode_tail(tail))
        else:
            reply = self._catalog.reply(data, head)
        if reply is not None:
            of = SET_OF_OP[head.op]
            basin = head.basin if of is UsageSet.BASIN_OPS else ACCOUNT
            self.node.meter.count(basin, of, head.op.value)
        return reply

    def _count(self) -> None:
        self.telemetry.requests += 1
        self.telemetry.quick_requests += 1

    def date(self) -> bytes:
        """The last of an answer's fields, and the end of its head."""
        now_s, past_ms = divmod(self.clock.now_ms(), 1000)
        if now_s != self._date_s:
            self._date_s = now_s
            self._date_until = self.clock.monotonic() + (1000 - past_ms) / 1000
            self._date = f"\r\ndate: {formatdate(now_s, usegmt=True)}\r\n\r\n".encode()
        return self._date

    def date_at(self, now: float) -> bytes:
        """As `date`, for somebody who has just looked at the monotonic clock."""
        return self._date if now < self._date_until else self.date()


def refused(head: QuickHead, error: Exception) -> Reply:
    """Return the answer that tells an error."""
    problem = problem_of(error)
    shared = head.small.partition(b"content-type: ")[2].partition(b"\r\n")[2]
    fields = "".join(f"{name}: {value}\r\n" for name, value in problem.headers)
    phrase = _PHRASES.get(problem.status) or HTTPStatus(problem.status).phrase
    start = f"HTTP/1.1 {problem.status} {phrase}\r\n{fields}".encode()
    return Reply(start + shared, problem.body)

"""What all connections on the quick way share: the parts of the server that it asks."""

import asyncio
from email.utils import formatdate

from bourn.clock import Clock
from bourn.engine.committer import AckWaiter
from bourn.engine.node import Node
from bourn.errors import BournError
from bourn.http.attention import Attention
from bourn.http.auth import Authenticator
from bourn.http.data_plane import decode_json
from bourn.http.draining import Draining
from bourn.http.quick_head import HEAD_END, QuickHead, parse_quick_head
from bourn.http.quick_reads import QuickReads
from bourn.http.telemetry import Telemetry
from bourn.layout.codec import decode_append_input
from bourn.limits import QUICK_BODY_BYTES_MAX
from bourn.model.access import Op
from bourn.model.record import AppendAck


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
        op = Op.APPEND if head.wanted is None else Op.READ
        return head.stream if principal.allows(op, head.basin, head.stream) else None

    def append(
        self, head: QuickHead, body: bytes, waiter: AckWaiter
    ) -> "asyncio.Future[AppendAck] | bool":
        """Admit an append; False where it must go the ordinary way, and nothing has happened."""
        stream = self.is_open_to(head)
        if stream is None:
            return False
        try:
            found = (
                decode_append_input(body)
                if head.body_is_protobuf
                else decode_json(body, head.format)
            )
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

    def read(self, data: bytes, head: QuickHead) -> bytes | None:
        """Answer a read from memory; None where it must go the ordinary way."""
        stream = self.is_open_to(head)
        body = None if stream is None else self._reads.body(data, head, stream)
        if body is not None:
            self._count()
        return body

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

"""Reads on the quick way: out of memory, and answers that are given again as long as they hold."""

from typing import NamedTuple

from bourn.engine.batch import ReadBatch
from bourn.engine.glance import Sight
from bourn.engine.node import Node
from bourn.errors import BournError
from bourn.http.data_plane import read_batch_json
from bourn.http.quick_head import QuickHead
from bourn.http.request import RESPONSE_COMPRESSION_THRESHOLD_BYTES
from bourn.http.telemetry import Telemetry
from bourn.limits import (
    ANSWER_BYTES_KEPT_MAX,
    ANSWERS_KEPT,
    JSON_WRITTEN_INLINE_BYTES_MAX,
)
from bourn.wire.compression import compress


class Reply(NamedTuple):
    """An answer, as far as it does not change with the time of day."""

    start: bytes  # its head up to its length
    body: bytes


class Answer(NamedTuple):
    """What a read was answered."""

    sight: Sight | None  # None where it is not kept
    reply: Reply
    records_count: int
    metered_bytes: int


class QuickReads:
    """Answers reads; the newest few answers, and small ones, are kept by their requests' heads."""

    def __init__(self, node: Node, telemetry: Telemetry) -> None:
        self._node = node
        self._telemetry = telemetry
        self._answers: dict[bytes, Answer] = {}

    def reply(self, data: bytes, head: QuickHead, stream: str) -> Reply | None:
        """Return the answer to a read of a stream that it may read, by the bytes of its head.

        None where it must go the ordinary way; what `Node.read_now` raises is the answer too.
        """
        answer = self._answers.get(data)
        sight = None if answer is None else answer.sight
        if answer is None or sight is None or not self._node.still_holds(sight, head.basin, stream):
            answer = self._read(data, head, stream)
            if answer is None:
                return None
        telemetry = self._telemetry
        telemetry.records_delivered += answer.records_count
        telemetry.bytes_delivered += answer.metered_bytes
        self._node.meter.read_unary(head.basin, answer.metered_bytes)
        return answer.reply

    def _read(self, data: bytes, head: QuickHead, stream: str) -> Answer | None:
        assert head.wanted is not None
        glance = self._node.read_now(head.basin, stream, head.wanted)
        if glance is None or glance.batch.metered_bytes > JSON_WRITTEN_INLINE_BYTES_MAX:
            return None
        batch = glance.batch
        try:
            reply = dressed(head, _encoded(batch, head))
        except BournError:
            return None  # the ordinary way says what is wrong
        sight = glance.sight() if len(reply.body) <= ANSWER_BYTES_KEPT_MAX else None
        answer = Answer(sight, reply, batch.records_count, batch.metered_bytes)
        answers = self._answers
        answers.pop(data, None)
        if sight is not None:
            if len(answers) >= ANSWERS_KEPT:
                del answers[next(iter(answers))]
            answers[data] = answer
        return answer


def dressed(head: QuickHead, body: bytes) -> Reply:
    """Return the answer that has this body, compressed as the client likes where that pays."""
    if len(body) < RESPONSE_COMPRESSION_THRESHOLD_BYTES:
        return Reply(head.small, body)
    if not head.coding:
        return Reply(head.large, body)
    return Reply(head.coded, compress(body, head.coding))


def _encoded(batch: ReadBatch, head: QuickHead) -> bytes:
    if head.answer_is_protobuf:
        return b"".join(batch.wire())  # no tail: who need not wait is not told it
    return read_batch_json(batch, head.format)

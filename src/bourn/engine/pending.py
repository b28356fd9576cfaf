"""A commit in the making: the batches that joined it, and who waits for it."""

import asyncio
from typing import Protocol

import msgspec

from bourn.engine.stream import Stream
from bourn.errors import BournError
from bourn.layout.entry import Entry
from bourn.log.sequencer import StreamState
from bourn.model.record import AppendAck, StreamPosition


class AckWaiter(Protocol):
    """Who waits for an ack by a plain call: on the loop, in the order of admission."""

    def acked(self, ack: AppendAck) -> None:
        """The batch is durable."""
        ...

    def failed(self, error: BournError) -> None:
        """The log has stopped: nobody knows what became of the batch."""
        ...


Reply = asyncio.Future[AppendAck] | AckWaiter


class Group(msgspec.Struct, gc=False, eq=False):
    """The batches of one stream in one commit."""

    stream: Stream
    state: StreamState  # behind the last batch
    end: StreamPosition  # the same, as readers see it
    entries: list[Entry]
    replies: list[tuple[Reply, StreamPosition, StreamPosition]]


class PendingCommit:
    """A commit from its first entry until it is durable."""

    __slots__ = ("bytes", "changes", "data", "groups", "ordinal", "reserved", "started", "waiters")

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.bytes = 0
        self.reserved = 0  # of the room, given back when this is durable
        self.changes: list[bytes] = []
        self.groups: dict[int, Group] = {}
        self.waiters: list[asyncio.Future[None]] = []
        self.data = b""  # the object, from the moment that nothing can join any more
        self.started = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing has joined yet."""
        return not self.groups and not self.changes

    @property
    def batches(self) -> int:
        """How many have joined."""
        return sum(len(group.entries) for group in self.groups.values())

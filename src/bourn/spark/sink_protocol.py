"""How rows come into streams exactly once: the protocol of the sink, without any I/O.

A *writer* (a streaming query, or a batch write with a name) hands over *batches* of rows, numbered
from 0. Spark may run a batch again: after a crash, with other partitions, in another order, and
while an older run of the same query is still alive. What makes it right:

    1 tails      where each stream ends now; whatever this batch appends comes behind
    2 newest     the newest batch that anybody has agreed on; behind mine, or done: nothing to do
    3 agree      the manifest (rows in their order, and the tails of 1) is put, create-only. Whoever
                 comes second takes the manifest of the first, and forgets its own rows
    4 deliver    append with `match_seq_num`, to each stream. A record of each append carries a
                 *marker*: so many rows of this batch are here. On a mismatch, or where the outcome
                 is not known: read on from where everything is known, and take the last marker
    5 finish     say durably that the batch is done; then drop what was staged

An append is made only by who has read everything between the manifest's tail and the position that
it must land at. So it does not matter who makes it, how often a driver dies, what other clients
append in between, or whether an old run wakes up late: every append that lands is the right next
one. The manifests of the last two batches stay: an old run that has slept through all of it either
finds them in 2, or finds the markers of others in 4, because it looked at the tails before.

Fencing is for who wants a stream to himself (`exclusive`): the newest run sets the stream's
fencing token to its id; an older one, and every other query that fences, is refused.

`commit` is a generator: it yields what is to be done, is sent what came of it, and may be dropped
anywhere.
"""

import re
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple

from bourn.spark.sink_manifest import Manifest, StreamPlan

_MARKER: Final = re.compile(rb"([!-~]{1,128}) (\d{1,19}) (\d{1,19}) (\d{1,19})", re.ASCII)


class Marker(NamedTuple):
    """What a marked record says: its append and those before hold so many rows of the batch."""

    writer: str
    batch: int
    rows: int
    total: int

    def encode(self) -> bytes:
        """Return the value of the header: four words."""
        return f"{self.writer} {self.batch} {self.rows} {self.total}".encode()


def parse_marker(value: bytes) -> Marker | None:
    """Return the marker that a header's value holds; None where somebody else wrote it."""
    found = _MARKER.fullmatch(value)
    if found is None:
        return None
    return Marker(found[1].decode(), int(found[2]), int(found[3]), int(found[4]))


class SinkStopped(Exception):
    """The batch cannot be delivered; the text says what to do."""


class Superseded(SinkStopped):
    """A newer run of the same query has gone on; this one must end."""


# What is to be done, and what is sent back.


class Tails(NamedTuple):
    """Find the sequence numbers that come next; 0 for a stream that is not there yet."""

    streams: tuple[str, ...]  # -> Mapping[str, int]


class Newest(NamedTuple):
    """Find the newest batch of the writer that has a manifest."""  # -> Agreed | None


class Agreed(NamedTuple):
    """A batch with a manifest."""

    batch: int
    is_done: bool


class Agree(NamedTuple):
    """Put the manifest unless there is one; the one that is there then is sent back."""

    manifest: Manifest  # -> Manifest


class Fetch(NamedTuple):
    """Get the manifest of a batch."""

    batch: int  # -> Manifest | None


class Enter(NamedTuple):
    """Give the run a number above those of all runs before, unless it has one."""

    run: str  # -> None


class Rank(NamedTuple):
    """Find the places of two runs; None for a token that is not a run of this writer."""

    run: str
    other: str  # -> two that compare, the second of them or None


class Send(NamedTuple):
    """Append rows of the batch, from `row` to the last; the first append must land at `position`.

    One append follows the other, each with a marker and the position that it must land at.
    """

    stream: str
    row: int
    position: int
    token: str | None  # -> Sent


class Sent(NamedTuple):
    """How far it came for sure; `next_seq_num` or `token` is what an append was refused with."""

    row: int
    position: int
    next_seq_num: int | None = None
    token: str | None = None
    is_unknown: bool = False
    is_gone: bool = False  # what was staged is not there any more


class Fence(NamedTuple):
    """Append the fence command, at `position`, where the token still is `old`."""

    stream: str
    position: int
    old: str
    new: str  # -> Sent, whose row says nothing


class Look(NamedTuple):
    """Read the stream from a position to its tail."""

    stream: str
    position: int
    is_first: bool  # nothing is known yet: the marker of the last record is enough, if it has one
    # -> Looked


class Seen(NamedTuple):
    """A record that matters: it carries a marker of this writer, or is too large to carry any."""

    seq_num: int
    marker: Marker | None
    digest: bytes = b""


class Looked(NamedTuple):
    """What was read: up to `position`, which is the tail or behind all that was there."""

    seen: tuple[Seen, ...]
    position: int
    gap_end: int = 0  # the last missing record is before this; 0: none is missing


class Deliver(NamedTuple):
    """Take the steps of `deliver` for every stream, side by side or in any order, to their ends."""

    manifest: Manifest
    is_ours: bool  # nobody can have begun with it  -> None


class Finish(NamedTuple):
    """Say durably that the batch is done; then remove what no batch needs any more."""

    batch: int  # -> None


Effect = Tails | Newest | Agree | Fetch | Enter | Rank | Deliver | Send | Fence | Look | Finish
Steps = Generator[Effect, Any, None]


class Terms(NamedTuple):
    """Who commits, and how."""

    writer: str
    run: str
    is_exclusive: bool = False
    may_repeat: bool = False  # go on where markers were trimmed away, and perhaps repeat rows


class Reached:
    """How far a stream has come for sure, and how far it will have with what is under way."""

    def __init__(self, row: int, position: int) -> None:
        self.row, self.position = row, position
        self._under_way: deque[tuple[int, int]] = deque()

    @property
    def planned_position(self) -> int:
        """Where the next append must land."""
        return self._under_way[-1][1] if self._under_way else self.position

    def plan(self, rows: int, records: int) -> int:
        """Note an append; return how many rows are in the stream with it."""
        row, position = self._under_way[-1] if self._under_way else (self.row, self.position)
        self._under_way.append((row + rows, position + records))
        return row + rows

    def confirm(self) -> None:
        """The first append that was under way is in."""
        self.row, self.position = self._under_way.popleft()


class Delivery:
    """What is known of one stream: `row` rows of the batch are before `position`, if it is sure."""

    def __init__(self, terms: Terms, batch: int, plan: StreamPlan) -> None:
        self._terms = terms
        self._batch = batch
        self._plan = plan
        self.row = 0
        self.position = plan.start
        self.is_sure = False
        self._has_looked = False

    @property
    def is_done(self) -> bool:
        """Whether every row is in the stream."""
        return self.row >= self._plan.rows

    def look(self) -> Look:
        """What to read."""
        return Look(self._plan.name, self.position, not self._has_looked)

    def looked(self, found: Looked) -> None:
        """Take what was read; raises where a newer run was met, or too much is gone."""
        if found.position < self.position:  # deleted and made anew: what counts is what is there
            self.row, self.position, self._has_looked = 0, 0, True
            return
        self._has_looked = True
        told = -1
        for seen in found.seen:
            if seen.marker is None:
                # A copy of the last large row is somebody else's: rows follow each other.
                if self._plan.large.get(self.row) == seen.digest:
                    self.row += 1
            elif seen.marker.batch > self._batch:
                raise Superseded(_SUPERSEDED.format(self._batch, self._plan.name))
            else:
                told = seen.seq_num
                if seen.marker.batch == self._batch:
                    self.row = seen.marker.rows
        if told < found.gap_end - 1 and not self._terms.may_repeat:
            raise SinkStopped(
                f"stream {self._plan.name!r}: records between {self.position} and {found.gap_end} "
                f"were trimmed or have expired while batch {self._batch} was being delivered, and "
                "may have been rows of it: set failOnDataLoss to false to append the rest, and "
                "perhaps repeat rows that nobody can read any more"
            )
        self.position, self.is_sure = found.position, True

    def sent(self, outcome: Sent) -> None:
        """Take what came of an append, or of several."""
        self.row, self.position = outcome.row, outcome.position
        refused = outcome.next_seq_num is not None or outcome.is_unknown
        self.is_sure = not refused


_SUPERSEDED: Final = (
    "batch {} was delivered to stream {!r} by a newer run of this query, which has gone on to the "
    "next: this run must end"
)


def commit(terms: Terms, batch: int, staged: Manifest) -> Steps:
    """Bring a staged batch into its streams, or what was staged for it before."""
    if terms.is_exclusive:
        yield Enter(terms.run)
    starts: Mapping[str, int] = yield Tails(tuple(plan.name for plan in staged.streams))
    newest: Agreed | None = yield Newest()
    if newest is not None and newest.batch > batch:
        raise Superseded(
            f"batch {batch} is behind batch {newest.batch}, which a newer run of this query has "
            "delivered: this run must end"
        )
    manifest: Manifest | None
    is_ours = False
    if newest is not None and newest.batch == batch:
        if newest.is_done:
            yield Finish(batch)  # what was staged this time goes, too
            return
        manifest = yield Fetch(batch)
    elif not staged.streams:
        return
    else:
        mine = staged.starting_at(starts)
        manifest = yield Agree(mine)
        is_ours = manifest == mine
    if manifest is None:
        raise Superseded(f"batch {batch} was finished by a newer run of this query: this must end")
    yield Deliver(manifest, is_ours)
    yield Finish(batch)


def deliver(terms: Terms, batch: int, plan: StreamPlan, *, is_ours: bool) -> Steps:
    """Bring the rows of one stream in; `is_ours`: nobody can have begun with this manifest."""
    delivery = Delivery(terms, batch, plan)
    # At the manifest's tail nothing of the batch can be missed: an append lands there or nowhere.
    delivery.is_sure = is_ours
    token = terms.run if terms.is_exclusive else None
    while not delivery.is_done:
        if not delivery.is_sure:
            delivery.looked((yield delivery.look()))
            continue
        sent: Sent = yield Send(plan.name, delivery.row, delivery.position, token)
        delivery.sent(sent)
        if sent.is_gone:
            newest: Agreed | None = yield Newest()
            if newest is not None and newest >= (batch, True):
                raise Superseded(f"batch {batch} was delivered by a newer run of this query")
            raise SinkStopped(
                f"rows that were staged for batch {batch} are gone: stagingLocation must be a "
                "place that the driver and all executors share, and that only they remove from"
            )
        if sent.token is not None:
            yield from _take_over(terms, plan.name, delivery, sent.token)


def _take_over(terms: Terms, stream: str, delivery: Delivery, current: str) -> Steps:
    """Fence the stream for this run, or raise where it is not this run's turn."""
    if current:
        mine, theirs = yield Rank(terms.run, current)
        if theirs is None:
            raise SinkStopped(
                f"stream {stream!r} is fenced by somebody else, with token {current!r}: end that "
                "writer and clear its fence, or set exclusive to false"
            )
        if theirs > mine:
            raise Superseded(f"stream {stream!r} is fenced by a newer run of this query")
    fenced: Sent = yield Fence(stream, delivery.position, current, terms.run)
    delivery.sent(fenced._replace(row=delivery.row))

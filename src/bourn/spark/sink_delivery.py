"""Takes the steps of the sink's protocol: the manifest at the staging place, the rows to streams.

It runs where Spark's driver runs. Streams get their rows side by side, each on a connection of its
own, with as many appends under way as the client allows.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, TypeVar

from bourn.client import (
    AppendRetry,
    Client,
    ClientError,
    FencingTokenMismatch,
    Refused,
    SeqNumMismatch,
    Settings,
)
from bourn.clock import Clock
from bourn.errors import BucketError, Damaged
from bourn.limits import SINK_STREAMS_AT_ONCE
from bourn.model.record import AppendAck, fence_record
from bourn.spark.sink_look import look_at
from bourn.spark.sink_manifest import (
    DONE,
    MANIFEST,
    Manifest,
    Part,
    Region,
    StreamPlan,
    batch_of,
    batch_prefix,
    decode_manifest,
)
from bourn.spark.sink_parts import Chunk, Marking, checksum, decode_region
from bourn.spark.sink_protocol import (
    Agree,
    Agreed,
    Deliver,
    Effect,
    Enter,
    Fence,
    Fetch,
    Finish,
    Look,
    Marker,
    Newest,
    Rank,
    Reached,
    Send,
    Sent,
    SinkStopped,
    Steps,
    Tails,
    Terms,
    commit,
    deliver,
)
from bourn.spark.sink_staging import Staging

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)

_PAUSE_SECS_MIN: Final = 0.05
_PAUSE_SECS_MAX: Final = 2.0
_KEPT_BATCHES: Final = 1  # before the newest: see the protocol
_RUNS: Final = "runs"


class Manner(NamedTuple):
    """How a sink delivers."""

    settings: Settings
    retry_secs: float


def _take(steps: Steps, act: Callable[[Effect], Any]) -> None:
    answer: Any = None
    while True:
        try:
            effect = steps.send(answer)
        except StopIteration:
            return
        answer = act(effect)


class _Gone(Exception):
    """Something that was staged is not there any more."""


class Sink:
    """Brings batches of one writer into their streams."""

    def __init__(self, terms: Terms, manner: Manner, staging: Staging, clock: Clock) -> None:
        self._terms = terms
        self.manner = manner
        self.staging = staging
        self.clock = clock
        self._clients = threading.local()
        self._opened = ExitStack()
        self._pool: ThreadPoolExecutor | None = None

    def commit(self, batch: int, staged: Manifest) -> None:
        """Bring a staged batch in; returns once every row is durable in its stream."""
        acts: dict[type, Callable[[Any], Any]] = {
            Tails: self._tails,
            Newest: lambda _: self.newest(),
            Agree: lambda effect: self._agree(effect.manifest),
            Fetch: lambda effect: self._fetch(effect.batch),
            Enter: lambda effect: self._enter(effect.run),
            Deliver: lambda effect: self._deliver(effect, batch),
            Finish: lambda effect: self._finish(effect.batch),
        }
        with self._opened:
            _take(commit(self._terms, batch, staged), lambda effect: acts[type(effect)](effect))

    # The staging place

    def newest(self) -> Agreed | None:
        """Return the newest batch with a manifest."""
        found: dict[int, set[str]] = {}
        for key in self.staging.keys(f"{self._terms.writer}/"):
            place = batch_of(self._terms.writer, key)
            if place is not None and place[1] in {MANIFEST, DONE}:
                found.setdefault(place[0], set()).add(place[1])
        if not found:
            return None
        newest = max(found)
        return Agreed(newest, DONE in found[newest])

    def _agree(self, manifest: Manifest) -> Manifest:
        key = batch_prefix(manifest.writer, manifest.batch) + MANIFEST
        if self.staging.create(key, manifest.encode()):
            return manifest
        return self._fetch(manifest.batch) or manifest

    def _fetch(self, batch: int) -> Manifest | None:
        key = batch_prefix(self._terms.writer, batch) + MANIFEST
        data = self.staging.get(key)
        return None if data is None else decode_manifest(data, key)

    def _finish(self, batch: int) -> None:
        writer = self._terms.writer
        self.staging.create(batch_prefix(writer, batch) + DONE, b"done")
        try:
            self.staging.delete(self._unneeded(batch))
        except BucketError as error:
            log.warning("what was staged is left behind, until the next batch: %s", error.message)

    def _unneeded(self, batch: int) -> list[str]:
        writer = self._terms.writer
        parts: list[str] = []
        manifests: list[str] = []
        for key in self.staging.keys(f"{writer}/"):
            place = batch_of(writer, key)
            if place is None or place[0] > batch:
                continue
            if place[1] not in {MANIFEST, DONE}:
                parts.append(key)
            elif place[0] < batch - _KEPT_BATCHES:
                manifests.append(key)
        # A manifest outlives its parts, and what says that it is done outlives it.
        return parts + sorted(manifests, key=lambda key: key.endswith(DONE))

    # The runs of an exclusive writer

    def _runs(self) -> dict[str, tuple[int, str]]:
        prefix = f"{self._terms.writer}/{_RUNS}/"
        names = (key.removeprefix(prefix).partition(".") for key in self.staging.keys(prefix))
        return {run: (int(number), run) for number, _, run in names}

    def _enter(self, run: str) -> None:
        runs = self._runs()
        if run not in runs:
            number = max((taken for taken, _ in runs.values()), default=-1) + 1
            self.staging.create(f"{self._terms.writer}/{_RUNS}/{number:012d}.{run}", b"run")

    def rank(self, run: str, other: str) -> tuple[tuple[int, str], tuple[int, str] | None]:
        """Return the places of two runs in their order."""
        runs = self._runs()
        return runs[run], runs.get(other)

    # Streams

    def client(self) -> Client:
        """Return the client of this thread."""
        client: Client | None = getattr(self._clients, "client", None)
        if client is None:
            client = self._opened.enter_context(Client(self.manner.settings))
            self._clients.client = client
        return client

    def _side_by_side(self, work: Callable[[T], R], over: Sequence[T]) -> list[R]:
        if len(over) == 1:
            return [work(over[0])]
        if self._pool is None:
            self._pool = self._opened.enter_context(ThreadPoolExecutor(SINK_STREAMS_AT_ONCE))
        return list(self._pool.map(work, over))

    def _tails(self, effect: Tails) -> dict[str, int]:
        found = self._side_by_side(self._tail, effect.streams)
        return dict(zip(effect.streams, found, strict=True))

    def _tail(self, stream: str) -> int:
        try:
            return self.client().check_tail(stream).seq_num
        except ClientError as error:
            if isinstance(error, Refused) and error.code == "stream_not_found":
                return 0  # the first append may make it
            raise stopped(stream, error) from error

    def _deliver(self, effect: Deliver, batch: int) -> None:
        def one(plan: StreamPlan) -> None:
            steps = deliver(self._terms, batch, plan, is_ours=effect.is_ours)
            _take(steps, _StreamDelivery(self, effect.manifest, plan).act)

        self._side_by_side(one, effect.manifest.streams)


class _StreamDelivery:
    """The steps for one stream, and the patience with its endpoint."""

    def __init__(self, sink: Sink, manifest: Manifest, plan: StreamPlan) -> None:
        self._sink = sink
        self._manifest = manifest
        self._batch = manifest.batch
        self._marking = Marking(manifest.marker_name, manifest.has_marker_records)
        self._stream = plan.name
        self._rows = plan.rows
        self._reached = -1
        self._failing_since: float | None = None
        self._pause_secs = _PAUSE_SECS_MIN

    def act(self, effect: Effect) -> Any:
        """Take one step."""
        sink = self._sink
        match effect:
            case Send():
                return self._send(effect)
            case Fence(stream, position, old, new):
                return self._fence(stream, position, old, new)
            case Look():
                limits = (self._marking, self._manifest.writer, self._batch)
                try:
                    return look_at(sink.client(), effect, *limits)
                except ClientError as error:
                    raise stopped(self._stream, error) from error
            case Rank(run, other):
                return sink.rank(run, other)
            case Newest():
                return sink.newest()
            case _:
                raise AssertionError(effect)

    def _send(self, effect: Send) -> Sent:
        """Append what is left, pipelined; say how far it came for sure."""
        reached = Reached(effect.row, effect.position)
        chunks = self._chunks(effect.row)
        try:
            some = list(itertools.islice(chunks, 2))
            if len(some) == 1:  # the kept connection does, where a session would open its own
                self._send_one(some[0], effect, reached)
            else:
                self._send_all(itertools.chain(some, chunks), effect, reached)
        except _Gone:
            return Sent(reached.row, reached.position, is_gone=True)
        except ClientError as error:
            return self._failed(error, reached.row, reached.position)
        return Sent(reached.row, reached.position)

    def _send_one(self, chunk: Chunk, effect: Send, reached: Reached) -> None:
        message = self._planned(chunk, reached)
        ack = self._sink.client().append(
            self._stream, message, match_seq_num=effect.position, fencing_token=effect.token
        )
        self._take([ack], reached)

    def _send_all(self, chunks: Iterator[Chunk], effect: Send, reached: Reached) -> None:
        session = self._sink.client().append_session(self._stream, retry=AppendRetry.NEVER)
        try:
            with session:
                for chunk in chunks:
                    position = reached.planned_position
                    message = self._planned(chunk, reached)
                    session.submit(message, match_seq_num=position, fencing_token=effect.token)
                    self._take(session.acks(), reached)
                self._take(session.drain(), reached)
        except (ClientError, _Gone):
            self._take(session.acks(), reached)
            raise

    def _planned(self, chunk: Chunk, reached: Reached) -> bytes:
        """Return the append of a chunk, with its marker; note how far it will come."""
        marking = self._marking
        records = chunk.rows + (marking.is_record and not chunk.is_large)
        row = reached.plan(chunk.rows, records)
        marker = Marker(self._manifest.writer, self._batch, row, self._rows)
        return chunk.marked(marking, marker)

    def _take(self, acks: Sequence[AppendAck], reached: Reached) -> None:
        for ack in acks:
            reached.confirm()
            if ack.end.seq_num != reached.position:
                raise SinkStopped(
                    f"stream {self._stream!r}: an append for position {reached.position} ended at "
                    f"{ack.end.seq_num}: the endpoint does not heed match_seq_num"
                )

    def _fence(self, stream: str, position: int, old: str, new: str) -> Sent:
        record = fence_record(new, self._sink.clock.now_ms())
        try:
            ack = self._sink.client().append(
                stream, [record], match_seq_num=position, fencing_token=old
            )
        except ClientError as error:
            return self._failed(error, 0, position)
        return Sent(0, ack.end.seq_num)

    def _failed(self, error: ClientError, row: int, position: int) -> Sent:
        """Say what an error means: refused, or not known; raise where nothing will help."""
        if isinstance(error, FencingTokenMismatch):
            return Sent(row, position, token=error.fencing_token)
        if isinstance(error, SeqNumMismatch):
            self._wait_unless_new(row, error)
            return Sent(row, position, next_seq_num=error.next_seq_num)
        if not error.is_retryable:
            raise stopped(self._stream, error) from error
        self._wait_unless_new(row, error)
        return Sent(row, position, is_unknown=True)

    def _wait_unless_new(self, row: int, error: ClientError) -> None:
        """Pause before the next attempt; raise where none has come further for too long."""
        now = self._sink.clock.monotonic()
        if row > self._reached or self._failing_since is None:
            self._reached, self._failing_since = row, now
            self._pause_secs = _PAUSE_SECS_MIN
            if isinstance(error, SeqNumMismatch):
                return
        elif now - self._failing_since > self._sink.manner.retry_secs:
            raise stopped(self._stream, error) from error
        threading.Event().wait(self._pause_secs)
        self._pause_secs = min(2 * self._pause_secs, _PAUSE_SECS_MAX)

    def _chunks(self, row: int) -> Iterator[Chunk]:
        """Yield the appends from a row on; it is the first of one."""
        at = 0
        for part in self._manifest.parts:
            for region in part.regions:
                if region.stream != self._stream:
                    continue
                if at + region.rows > row:
                    yield from self._chunks_of(part, region, row - at)
                at += region.rows

    def _chunks_of(self, part: Part, region: Region, row: int) -> Iterator[Chunk]:
        """Yield the appends of a region; `row` is below 0 where all of them are wanted."""
        if part.key:
            data = self._sink.staging.get_range(part.key, region.offset, region.size_bytes)
        else:
            data = part.data[region.offset : region.offset + region.size_bytes]
        if data is None:
            raise _Gone
        if checksum(data) != region.checksum:
            raise Damaged(part.key or MANIFEST, "its rows are not those that were staged")
        at = 0
        for chunk in decode_region(data):
            if at >= row:
                yield chunk
            elif at + chunk.rows > row:
                raise SinkStopped(
                    f"stream {self._stream!r} holds a marker of batch {self._batch} that fits no "
                    "append of this manifest: somebody else has written it"
                )
            at += chunk.rows


def stopped(stream: str, error: ClientError) -> SinkStopped:
    """Return the error that ends a batch, with the stream's name and S2's own words."""
    return SinkStopped(f"stream {stream!r}: {error}")

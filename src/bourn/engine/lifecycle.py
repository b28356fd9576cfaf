"""A node from its start to its end, whatever happens to its log in between.

A node owns one term at a time. When the term's log fails, everything in flight ends with an
unknown outcome and the node rebuilds itself from the bucket; requests wait a little for that. When
a newer writer has taken over, the node stops serving for good.
"""

import asyncio
import enum
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final, Self

from bourn.bucket.port import Bucket
from bourn.bucket.remote import require_create_only
from bourn.bucket.retry import Backoff
from bourn.bucket.spool import SpooledBucket
from bourn.clock import Clock, SystemClock
from bourn.engine.bounded import BoundedBucket
from bourn.engine.handover import begin_with
from bourn.engine.history import History
from bourn.engine.housekeeping import Housekeeping
from bourn.engine.meter import Meter
from bourn.engine.recovery import Recovery
from bourn.engine.tasks import Tasks
from bourn.engine.term import Term
from bourn.engine.usage_history import TableHistory
from bourn.errors import BournError, Fenced, ServerDraining, Unavailable
from bourn.layout import codec, joined, json_records
from bourn.layout.commit import WRITER_BYTES
from bourn.settings import EngineSettings

log = logging.getLogger(__name__)

REBUILD_PAUSE_SECS_MIN: Final = 0.05
REBUILD_PAUSE_SECS_MAX: Final = 5.0
CREATE_ONLY_PROBE: Final = "probe/create-only"


class NodeState(enum.Enum):
    """Whether the node serves."""

    SERVING = "serving"
    REBUILDING = "rebuilding"
    DRAINING = "draining"
    FENCED = "fenced"
    CLOSED = "closed"


class Lifecycle:
    """Owns the term that serves. Made by `open`, ended by `close`."""

    def __init__(
        self, bucket: Bucket, settings: EngineSettings, clock: Clock, rng: random.Random
    ) -> None:
        self._settings = settings.resolved(
            remote=bucket.is_remote, spooled=isinstance(bucket, SpooledBucket)
        )
        self._bucket = BoundedBucket(bucket, self._settings, clock)
        self._clock = clock
        self._rng = rng
        self._tasks = Tasks("node")
        self._term: Term | None = None
        self._housekeeping: Housekeeping | None = None
        self._failed: Term | None = None  # until it is closed
        self._waiters: set[asyncio.Future[None]] = set()  # requests that wait for a rebuild
        self._closing = asyncio.Lock()
        self._newest_epoch: int | None = None
        self._writer = rng.randbytes(WRITER_BYTES)  # the name that this node claims epochs by
        self.state = NodeState.REBUILDING
        self.meter = Meter(clock)
        self.history = History(self._bucket, self._settings, clock, rng)
        self.usage_history = TableHistory(self._bucket, clock)
        self.failure: BournError | None = None

    @classmethod
    async def open(
        cls,
        bucket: Bucket,
        settings: EngineSettings | None = None,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        say: Callable[[str], None] = log.info,
    ) -> Self:
        """Take the bucket over and serve it; `say` hears what takes long, such as compiling.

        Raises Damaged, naming the object, where the bucket does not hold what was acked.
        """
        codec.warm(say)  # before anything waits for it: a cold codec compiles for seconds
        json_records.warm(say)
        joined.warm(say)
        node = cls(
            bucket,
            settings or EngineSettings(),
            clock or SystemClock(),
            rng or random.Random(),  # noqa: S311  ids and jitter, no secrets
        )
        if bucket.is_remote:
            await require_create_only(bucket, CREATE_ONLY_PROBE)
        await node._begin_term()
        return node

    async def _begin_term(self) -> None:
        recovery = Recovery(self._bucket, self._settings, self._clock, self._rng, self._writer)
        loading = asyncio.ensure_future(self.history.load())
        try:
            recovered = await recovery.run(self._newest_epoch)
            self._newest_epoch = recovered.epoch
            await loading
            await self.history.require(recovered.state.history_needed)
        except BaseException:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            raise
        begin_with(recovered, self.history)
        term = Term(
            recovered,
            self._bucket,
            self._settings,
            self._clock,
            self._rng,
            self.history,
            self._on_failed,
        )
        self.meter.resume(term.state.metering.table)
        housekeeping = Housekeeping(term, self._on_failed, self.meter)
        await housekeeping.count_history()
        housekeeping.start()
        self._term, self._housekeeping = term, housekeeping
        self.state = NodeState.SERVING
        self._wake()
        log.info(
            "epoch %d: %d basins, %d streams, %d commits replayed",
            recovered.epoch,
            len(term.state.basins),
            term.state.streams.count(),
            recovered.replayed_commits,
        )

    @property
    def term(self) -> Term:
        """The term that serves now; for metrics and tests."""
        if self._term is None:
            raise Unavailable("the node is not serving")
        return self._term

    @property
    def housekeeping(self) -> Housekeeping:
        """The background jobs of the term that serves now; for metrics and tests."""
        if self._housekeeping is None:
            raise Unavailable("the node is not serving")
        return self._housekeeping

    # Failure

    def _on_failed(self, error: BournError) -> None:
        """A term's log has ended, or a newer writer was seen."""
        if self.state in {NodeState.FENCED, NodeState.CLOSED} or self._term is None:
            return
        self.failure = error
        term, self._term = self._term, None
        self._failed = term
        term.committer.fail(error)
        term.end_streams(Unavailable(f"the node has stopped serving: {error.message}"))
        if isinstance(error, Fenced):
            self.state = NodeState.FENCED
            log.error("fenced: %s", error)
            self._tasks.spawn(self._close_failed(), "close term")
        else:
            self.state = NodeState.REBUILDING
            self._tasks.spawn(self._rebuild(), "rebuild")

    async def _close_failed(self) -> None:
        if self._failed is not None:
            await self._failed.close()
            self._failed = None

    async def _rebuild(self) -> None:
        """Begin a new term, however long the bucket takes to come back."""
        await self._close_failed()
        backoff = Backoff(self._clock, self._rng, REBUILD_PAUSE_SECS_MIN, REBUILD_PAUSE_SECS_MAX)
        while self.state is NodeState.REBUILDING:
            try:
                await self._begin_term()
            except Fenced as fenced:
                self.failure = fenced
                self.state = NodeState.FENCED
                self._wake()
                log.error("fenced: %s", fenced)  # noqa: TRY400  the text says it all
            except BournError as error:
                self.failure = error
                log.warning("cannot rebuild yet: %s", error)
            except Exception as error:
                self.failure = Unavailable(f"a start failed in an unforeseen way: {error!r}")
                log.exception("cannot rebuild yet")
            if self.state is NodeState.REBUILDING:
                await backoff.pause()

    async def _current(self) -> Term:
        """The term, waiting for a rebuild that is under way."""
        if self._term is not None:
            return self._term
        if self.state is NodeState.REBUILDING:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            timer = self._clock.call_later(
                self._settings.rebuild_wait_secs, lambda: _resolve([waiter])
            )
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)
        return self._serving_term()

    def _serving_term(self) -> Term:
        if self._term is None:
            raise self.unavailable()
        return self._term

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        _resolve(waiters)

    def unavailable(self) -> BournError:
        """Why the node does not serve."""
        if self.state is NodeState.DRAINING:
            return ServerDraining("the server is about to stop")
        if self.state is NodeState.FENCED:
            return Fenced("another writer has taken over this bucket")
        if self.state is NodeState.CLOSED:
            return Unavailable("the node is closed")
        why = "" if self.failure is None else f": {self.failure.message}"
        return Unavailable(f"the node is rebuilding itself from its bucket{why}")

    async def close(self) -> None:
        """Finish what was admitted, take a snapshot, stop. Safe to call in any state.

        A call that is cancelled stops at once; one that comes meanwhile returns when all has ended.
        """
        async with self._closing:
            if self.state is NodeState.CLOSED:
                return
            serving = self.state is NodeState.SERVING
            self.state = NodeState.DRAINING
            term, self._term = self._term, None  # what comes from here on is told to go elsewhere
            try:
                if serving and term is not None and self._housekeeping is not None:
                    await self._drain(term, self._housekeeping)
            finally:
                self.state = NodeState.CLOSED
                if term is not None:
                    await term.close()
                await self._tasks.cancel_all()
                await self._close_failed()  # if that was cancelled before it began
                self._wake()

    async def _drain(self, term: Term, housekeeping: Housekeeping) -> None:
        term.room.fail(self.unavailable())  # who waits for room was not admitted
        try:
            await self.meter.flush(term, with_sizes=False)
            await term.committer.drain()
            await housekeeping.snapshots.take()
        except BournError as error:
            log.warning("no snapshot at the end: %s", error)

    async def _leading(self) -> Term:
        """The term, for whoever tells of its state: see `_fresh`."""
        term = await self._current()
        await self._fresh(term)
        return term

    async def _fresh(self, term: Term) -> None:
        """Make sure that no newer writer has been at work unseen, say while we were stopped."""
        housekeeping = self._housekeeping
        if housekeeping is None or housekeeping.is_fresh():
            return
        try:
            await housekeeping.look()
            if not housekeeping.is_fresh():  # that look had begun long before it was asked for
                await housekeeping.look()
        except Fenced as fenced:
            if term is self._term:  # else it may be our own next claim that was seen
                self._on_failed(fenced)
        except BournError as error:
            if term.committer.failed is None:
                raise Unavailable(f"cannot tell whether this node still leads: {error}") from error
        if term.committer.failed is not None:
            raise self.unavailable()


def _resolve(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)

"""The phases: write with a reader at the tail; then, after a pause, one that catches up."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from bourn.cli.bench.content import Check, Source
from bourn.cli.bench.latencies import Latencies
from bourn.cli.bench.link import Link, Way, linked
from bourn.cli.failures import CommandError, Failed, Refused
from bourn.clock import Clock
from bourn.limits import BATCH_METERED_BYTES_MAX, BATCH_RECORDS_MAX, MIB
from bourn.wire.compression import Compression
from bourn.wire.frames import encode_frame
from bourn.wire.protobuf import decode_append_ack

UNACKED_BYTES_MAX: Final = 5 * MIB  # as much as the official clients have under way
PAUSE_SECS_MAX: Final = 0.05
SILENCE_SECS_MAX: Final = 25.0
TICK_SECS: Final = 0.1
HEAD_BYTES: Final = 4


class Plan(msgspec.Struct, frozen=True):
    """What is to be measured."""

    way: Way
    path: str  # of the stream's records
    record_bytes: int
    target_mib_per_s: float
    duration_secs: float
    catchup_delay_secs: float


class Meter:
    """How much a phase has moved, how long it took, and what of a CPU this process spent on it."""

    def __init__(self, clock: Clock, record_bytes: int) -> None:
        self._clock = clock
        self._record_bytes = record_bytes
        self.records = 0
        self.begin()

    def begin(self) -> None:
        """Measure from now on."""
        self._began = self._clock.monotonic()
        self._cpu_before = time.process_time()
        self.seconds = 0.0
        self.cpu_secs = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._clock.monotonic() - self._began

    def at(self, records: int) -> None:
        """So many records have been moved by now."""
        self.records = records
        self.seconds = self.elapsed
        self.cpu_secs = time.process_time() - self._cpu_before

    @property
    def bytes(self) -> int:
        """What the records weigh."""
        return self.records * self._record_bytes

    @property
    def records_per_s(self) -> float:
        """Records a second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mib_per_s(self) -> float:
        """MiB a second."""
        return self.records_per_s * self._record_bytes / MIB

    @property
    def cpu_share(self) -> float:
        """Of one CPU; the phases of one moment share it."""
        return self.cpu_secs / self.seconds if self.seconds else 0.0


class Writer:
    """Appends at the pace that is asked for, and measures every ack."""

    def __init__(self, plan: Plan, clock: Clock, began: float) -> None:
        self._plan = plan
        self._clock = clock
        self._began = began
        self._source = Source(plan.record_bytes)
        self._records_per_s = plan.target_mib_per_s * MIB / plan.record_bytes
        self._batch_max = min(BATCH_RECORDS_MAX, BATCH_METERED_BYTES_MAX // plan.record_bytes)
        self._unacked: deque[tuple[float, int]] = deque()
        self._unacked_bytes = 0
        self._room = asyncio.Event()
        self._submitted = 0
        self._stopped = False
        self.meter = Meter(clock, plan.record_bytes)
        self.latencies = Latencies()
        self.heard_at = clock.monotonic()

    @property
    def chain_hash(self) -> int:
        """The hash of all that was appended."""
        return self._source.chain_hash

    @property
    def waits_for(self) -> float:
        """Seconds that the oldest batch has been without an ack; 0 where there is none."""
        if not self._unacked:
            return 0.0
        return self._clock.monotonic() - max(self._unacked[0][0], self.heard_at)

    def stop(self) -> None:
        """Append no more; what is under way is still acked."""
        self._stopped = True

    async def run(self, link: Link) -> None:
        """Append until `stop`, and return when all of it is acked."""
        async for frames in link.frames("POST", self._plan.path, self._frames()):
            now = self.heard_at = self._clock.monotonic()
            for frame in frames:
                self._acked(decode_append_ack(bytes(frame.message())), now)
            self.meter.at(self.meter.records)
            self._room.set()
        if self._unacked or not self._stopped:
            raise Failed("the server ended the append session before its end: look at its log")

    def _acked(self, ack: tuple[tuple[int, int], tuple[int, int], object], now: float) -> None:
        asked, count = self._unacked.popleft()
        start, end = ack[0][0], ack[1][0]
        if start != self.meter.records or end != start + count:
            raise Refused(
                f"an ack says {start} to {end} for {count} records from {self.meter.records} on: "
                "somebody else appends to the stream, or the server is wrong"
            )
        self.latencies.add(now - asked, count)
        self._unacked_bytes -= count * self._plan.record_bytes
        self.meter.records = end

    async def _frames(self) -> AsyncIterator[bytes]:
        self.meter.begin()  # what it took to connect is no debt
        while not self._stopped:
            elapsed = self.meter.elapsed
            due = int(elapsed * self._records_per_s) + 1 - self._submitted
            if due <= 0:
                pause = self._submitted / self._records_per_s - elapsed
                await self._clock.sleep(min(pause, PAUSE_SECS_MAX))
                continue
            while self._unacked_bytes >= UNACKED_BYTES_MAX:
                self._room.clear()
                await self._room.wait()
            yield self._frame(min(due, self._batch_max))

    def _frame(self, count: int) -> bytes:
        now = self._clock.monotonic()
        frame = self._source.frame(count, micros(now - self._began))
        self._unacked.append((now, count))
        self._unacked_bytes += count * self._plan.record_bytes
        self._submitted += count
        if self._plan.way.compression is Compression.NONE:
            return frame
        return encode_frame(memoryview(frame)[HEAD_BYTES:], self._plan.way.compression)


class Reader:
    """Reads from the first record on, and checks every one."""

    def __init__(self, plan: Plan, clock: Clock, began: float, query: str) -> None:
        self._path = f"{plan.path}?{query}"
        self._clock = clock
        self._began = began
        self._moved = asyncio.Event()
        self._check = Check(plan.record_bytes)
        self.meter = Meter(clock, plan.record_bytes)
        self.moved_at = clock.monotonic()

    @property
    def chain_hash(self) -> int:
        """The hash of all that was read."""
        return self._check.chain_hash

    @property
    def latencies(self) -> Latencies:
        """From the making of a record to its check."""
        return self._check.latencies

    async def run(self, link: Link) -> None:
        """Read to the session's end."""
        async for frames in link.frames("GET", self._path):
            for frame in frames:
                now = self._clock.monotonic()
                self._check.batch(bytes(frame.message()), micros(now - self._began))
            if self._check.records != self.meter.records:
                self.moved_at = now
                self.meter.at(self._check.records)
                self._moved.set()

    async def until(self, records: int) -> None:
        """Return when so many records have been read; from now on they are due."""
        self.moved_at = self._clock.monotonic()
        while self.meter.records < records:
            self._moved.clear()
            await self._moved.wait()


class Bench:
    """The phases as they run; whoever shows them looks at what there is."""

    def __init__(self, plan: Plan, clock: Clock, show: Callable[["Bench"], None]) -> None:
        self._plan = plan
        self._clock = clock
        self._show = show
        self.writer: Writer | None = None
        self.reader: Reader | None = None
        self.catchup: Reader | None = None
        self.is_verified = False
        self._due: Reader | None = None  # has records to read, and may not be silent

    async def run(self, say: Callable[[str], None]) -> None:
        """Run them all; a CommandError where something is not as it must be."""
        try:
            async with asyncio.TaskGroup() as group:
                ticker = group.create_task(self._tick())
                await self._live()
                say(f"waiting {self._plan.catchup_delay_secs:g} s before the catch-up")
                await self._clock.sleep(self._plan.catchup_delay_secs)
                await self._catch_up()
                ticker.cancel()
        except BaseExceptionGroup as failed:
            found, _ = failed.split(CommandError)
            if found is None:
                raise
            raise _first(found) from None

    async def _live(self) -> None:
        began = self._clock.monotonic()
        async with linked(self._plan.way) as there, linked(self._plan.way) as back:
            writer = self.writer = Writer(self._plan, self._clock, began)
            reader = self.reader = Reader(self._plan, self._clock, began, "seq_num=0")
            self._clock.call_later(self._plan.duration_secs, writer.stop)
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(_follow(reader, back))
                await writer.run(there)
                self._due = reader
                await reader.until(writer.meter.records)
                self._due = None
                reading.cancel()
        self._compare(reader)

    async def _catch_up(self) -> None:
        async with linked(self._plan.way) as back:
            reader = self.catchup = Reader(
                self._plan, self._clock, self._clock.monotonic(), "seq_num=0&wait=0"
            )
            self._due = reader
            await reader.run(back)
            self._due = None
        self._compare(reader)
        self.is_verified = True

    def _compare(self, reader: Reader) -> None:
        assert self.writer is not None
        written = self.writer.meter.records
        if reader.meter.records != written:
            raise Refused(f"{written} records were appended, but {reader.meter.records} were read")
        if written and reader.chain_hash != self.writer.chain_hash:
            raise Refused("what was read is not what was appended: the hashes differ")

    async def _tick(self) -> None:
        while True:
            self._show(self)
            await self._clock.sleep(TICK_SECS)
            if self.writer is not None and self.writer.waits_for > SILENCE_SECS_MAX:
                raise Failed(f"no ack for {SILENCE_SECS_MAX:g} s: look at the server's log")
            now = self._clock.monotonic()
            if self._due is not None and now - self._due.moved_at > SILENCE_SECS_MAX:
                raise Failed(f"no record for {SILENCE_SECS_MAX:g} s: look at the server's log")


async def _follow(reader: Reader, link: Link) -> None:
    await reader.run(link)
    raise Failed("the server ended the read session while records came: look at its log")


def micros(seconds: float) -> int:
    """Return whole microseconds."""
    return int(seconds * 1e6)


def _first(group: BaseExceptionGroup[CommandError]) -> CommandError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found

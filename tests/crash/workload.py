"""What a node is made to do until it dies: writers, readers, creations and deletions at once.

own-*      one writer each, one batch after the other, often on condition of the position
piped      one writer with many batches in flight, as an append session has
shared-*   several writers
fenced     a writer that fences now and then, and tries wrong tokens
trimmed    a writer that trims now and then
bursts     megabytes at once, so that commits wait in line; trimmed when they are acked
phoenix-*  created, written, deleted, and created again under the same name
fresh-*    created, and written once
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, NamedTuple

from bourn.clock import SystemClock
from bourn.engine.node import Node
from bourn.errors import (
    BournError,
    FencingTokenMismatch,
    RequestError,
    ResourceError,
    SeqNumMismatch,
    Unwritten,
)
from bourn.layout.records import RecordBatch, encode_records
from bourn.log.cursor import make_request
from bourn.model.record import AppendAck
from bourn.model.resource import CreateBasin, CreateStream
from tests.crash.content import FENCE, LARGE, PIPED, RECORDS, TRIM, make_records, make_token
from tests.crash.events import (
    CATALOG,
    Acked,
    Answered,
    Asked,
    Dropped,
    Dropping,
    Failed,
    Listed,
    Made,
    Making,
    Refused,
    Reporter,
    Submitted,
    Trouble,
)

BASIN: Final = "crash-basin"
BASIN_PREFIX: Final = "basin/"  # in events; no stream here has a slash in its name
OWN: Final = ("own-0", "own-1", "own-2")
SHARED: Final = ("shared-0", "shared-1")
PHOENIXES: Final = ("phoenix-0", "phoenix-1")
LASTING: Final = (*OWN, PIPED, *SHARED, "fenced", "trimmed", "bursts")
NUMBERS_PER_PROCESS: Final = 1_000_000
FAILURES_MAX: Final = 40  # then a writer leaves it
PIPED_MAX: Final = 16
BURST_MAX: Final = 12
PAUSES_SECS: Final = (0.0, 0.0, 0.0, 0.001, 0.004, 0.01)


class Target(NamedTuple):
    """A stream by its name and by its number in the catalog."""

    name: str
    id: int


class Workload:
    """Drives one node. `pace` stretches every pause."""

    def __init__(
        self, node: Node, reporter: Reporter, seed: int, process: int, pace: float
    ) -> None:
        self._node = node
        self._tell = reporter.tell
        self._tell_seen = reporter.tell_seen
        self._seed = seed
        self._rng = Random(f"{seed}/workload/{process}")
        self._numbers = process * NUMBERS_PER_PROCESS
        self._writers = 0
        self._pace = pace
        self._failures = 0
        self._clock = SystemClock()

    async def run(self) -> None:
        """Do everything at once; returns when the node has failed."""
        await self._until_it_fails(self._run())

    async def _run(self) -> None:
        targets = await self._targets()
        lasting = {name: targets.get(name) or await self._create(name) for name in LASTING}
        shared = [lasting[name] for name in SHARED]
        jobs: list[Awaitable[None]] = [self._write_own(lasting[name]) for name in OWN]
        jobs += [self._write_shared(target) for target in shared for _ in range(3)]
        jobs += [self._follow(target) for target in (*shared, lasting[PIPED])]
        jobs += [self._be_phoenix(name, targets.get(name)) for name in PHOENIXES]
        jobs += [
            self._write_piped(lasting[PIPED]),
            self._write_fenced(lasting["fenced"]),
            self._write_trimmed(lasting["trimmed"]),
            self._write_bursts(lasting["bursts"]),
            self._create_fresh(),
            self._ask([*lasting.values()]),
        ]
        await asyncio.gather(*(self._until_it_fails(job) for job in jobs))

    async def _until_it_fails(self, job: Awaitable[None]) -> None:
        try:
            await job
        except BournError as error:
            if self._node.state.value == "serving":
                self._tell(Trouble(f"the node serves, and says {error!r}"))

    async def _targets(self) -> dict[str, Target]:
        """The streams of the catalog that are not being deleted."""
        self._tell(Making(BASIN_PREFIX + BASIN))
        try:
            made = await self._node.create_basin(CreateBasin(BASIN))
            self._tell(Made(BASIN_PREFIX + BASIN, made.row.id))
        except ResourceError:
            pass
        page = await self._node.list_streams(BASIN)
        assert not page.has_more
        rows = [row for row in page.rows if row.deleted_at_ms is None]
        for row in rows:
            self._tell(Listed(row.name, row.id, deleting=False))
        return {row.name: Target(row.name, row.id) for row in rows}

    # What each job is made of

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _next_writer(self) -> int:
        self._writers += 1
        return self._writers

    async def _pause(self) -> None:
        await self._clock.sleep(self._pace * self._rng.choice(PAUSES_SECS))

    def _submit(
        self,
        target: Target,
        writer: int,
        expect: str,
        match_seq_num: int | None,
        command: tuple[str, str] = (RECORDS, ""),
    ) -> tuple[int, RecordBatch]:
        """Tell of a batch that is about to be appended."""
        number = self._next_number()
        kind, argument = command
        if kind == FENCE:
            argument = make_token(number)
        batch = encode_records(make_records(self._seed, number, kind, argument))
        self._tell(Submitted(number, target.id, writer, expect, kind, argument, match_seq_num))
        return number, batch

    async def _settle(self, number: int, answer: Awaitable[AppendAck]) -> AppendAck | None:
        """Tell how an append ended; None unless it was acked."""
        try:
            ack = await answer
        except SeqNumMismatch as error:
            self._tell(Refused(number, next_seq_num=error.next_seq_num))
        except FencingTokenMismatch as error:
            self._tell(Refused(number, fencing_token=error.fencing_token))
        except RequestError:
            self._tell(Refused(number))
        except BournError as error:
            await self._fail(number, error)
        else:
            self._tell(Acked(number, ack.start, ack.end, ack.tail))
            return ack
        return None

    async def _fail(self, number: int, error: BournError) -> None:
        """Try some more: a node that has failed must go on to fail."""
        self._tell(Failed(number, repr(error)))
        self._failures += 1
        if self._failures > FAILURES_MAX:
            raise error
        await self._clock.sleep(0.005)

    async def _append(
        self,
        target: Target,
        writer: int,
        *,
        expect: str = "ack",
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
        command: tuple[str, str] = (RECORDS, ""),
    ) -> AppendAck | None:
        number, batch = self._submit(target, writer, expect, match_seq_num, command)
        append = self._node.append(
            BASIN, target.name, batch, match_seq_num=match_seq_num, fencing_token=fencing_token
        )
        return await self._settle(number, append)

    # Writers

    async def _write_own(self, target: Target) -> None:
        writer = self._next_writer()
        tail = (await self._node.check_tail(BASIN, target.name)).seq_num
        while True:
            roll = self._rng.random()
            if roll < 0.05:
                wrong = max(tail - self._rng.randint(1, 5), 0) if tail else tail + 1
                ack = await self._append(target, writer, expect="refusal", match_seq_num=wrong)
            else:
                match = tail if roll < 0.6 else None
                ack = await self._append(target, writer, match_seq_num=match)
            tail = ack.end.seq_num if ack else tail
            await self._pause()

    async def _write_piped(self, target: Target) -> None:
        """One session after the other; behind a refusal, a session refuses everything."""
        writer = self._next_writer()
        while True:
            appender = await self._node.appender(BASIN, target.name)
            tail = (await self._node.check_tail(BASIN, target.name)).seq_num
            in_flight: deque[tuple[int, Awaitable[AppendAck]]] = deque()
            expect = "ack"
            for _ in range(self._rng.randint(1, 200)):
                is_wrong = self._rng.random() < 0.02
                match = tail + is_wrong if self._rng.random() < 0.5 or is_wrong else None
                expect = "refusal" if is_wrong else expect
                number, batch = self._submit(target, writer, expect, match)
                await appender.room_for(batch)
                in_flight.append((number, appender.submit(batch, match_seq_num=match)))
                tail += batch.count if expect == "ack" else 0
                while len(in_flight) > self._rng.randint(0, PIPED_MAX):
                    await self._settle(*in_flight.popleft())
                    await self._pause()
            for number, answer in in_flight:
                await self._settle(number, answer)
            appender.close()

    async def _write_shared(self, target: Target) -> None:
        writer = self._next_writer()
        tail = 0
        while True:
            if self._rng.random() < 0.2:
                ack = await self._append(target, writer, expect="either", match_seq_num=tail)
            else:
                ack = await self._append(target, writer)
            tail = ack.tail.seq_num if ack else tail
            await self._pause()

    async def _write_fenced(self, target: Target) -> None:
        writer = self._next_writer()
        token = await read_token(self._node, target.name)
        while True:
            roll = self._rng.random()
            if roll < 0.1:
                number, batch = self._submit(target, writer, "ack", None, (FENCE, ""))
                append = self._node.append(BASIN, target.name, batch, fencing_token=token)
                token = make_token(number) if await self._settle(number, append) else token
            elif roll < 0.2:
                await self._append(target, writer, expect="refusal", fencing_token=f"not {token}")
            else:
                await self._append(target, writer, fencing_token=token)
            await self._pause()

    async def _write_trimmed(self, target: Target) -> None:
        """Trim into what this writer knows: a cut through an unacked batch could not be judged."""
        writer = self._next_writer()
        acked: deque[tuple[int, int]] = deque(maxlen=8)
        while True:
            command = (RECORDS, "")
            if acked and self._rng.random() < 0.2:
                command = (TRIM, str(self._rng.randint(*self._rng.choice(acked))))
            ack = await self._append(target, writer, command=command)
            if ack is not None:
                acked.append((ack.start.seq_num, ack.end.seq_num))
            await self._pause()

    async def _write_bursts(self, target: Target) -> None:
        writer = self._next_writer()
        large = (LARGE, "")
        while True:
            await self._clock.sleep(self._pace * self._rng.uniform(0.0, 0.3))
            count = self._rng.randint(1, BURST_MAX)
            appends = [
                self._append(target, self._next_writer(), command=large) for _ in range(count)
            ]
            ends = [ack.end.seq_num for ack in await asyncio.gather(*appends) if ack is not None]
            if ends:
                await self._append(target, writer, command=(TRIM, str(max(ends))))

    # The catalog

    async def _create(self, name: str) -> Target:
        self._tell(Making(name))
        made = await self._node.create_stream(BASIN, CreateStream(name))
        self._tell(Made(name, made.row.id))
        return Target(name, made.row.id)

    async def _be_phoenix(self, name: str, target: Target | None) -> None:
        writer = self._next_writer()
        while True:
            while target is None:
                try:
                    target = await self._create(name)
                except ResourceError:  # the one before is still being purged
                    await self._clock.sleep(0.005)
            for _ in range(self._rng.randint(0, 8)):
                await self._append(target, writer)
                await self._pause()
            self._tell(Dropping(target.id))
            await self._node.delete_stream(BASIN, name)
            self._tell(Dropped(target.id))
            await check_is_deleted(self._node, name, self._tell)
            target = None
            await self._pause()

    async def _create_fresh(self) -> None:
        while True:
            await self._clock.sleep(self._pace * self._rng.uniform(0.02, 0.2))
            name = f"fresh-{self._next_number()}"
            if self._rng.random() < 0.3:
                self._tell(Making(BASIN_PREFIX + name))
                made = await self._node.create_basin(CreateBasin(name))
                self._tell(Made(BASIN_PREFIX + name, made.row.id))
            else:
                await self._append(await self._create(name), self._next_writer())

    # Readers

    async def _follow(self, target: Target) -> None:
        tail = (await self._node.check_tail(BASIN, target.name)).seq_num
        start = tail if self._rng.random() < 0.5 else self._rng.randint(0, tail)
        request = make_request(seq_num=start)
        async with self._node.read_session(BASIN, target.name, request) as batches:
            async for found in batches:
                if found.slices:
                    self._tell_seen(target.id, found.records())

    async def _ask(self, targets: list[Target]) -> None:
        """Ask for tails and for the catalog; go on also when the node says no."""
        question = failures = 0
        while failures < FAILURES_MAX:
            question += 1
            target = self._rng.choice([*targets, None])
            stream = CATALOG if target is None else target.id
            self._tell(Asked(question, stream))
            try:
                told = await (self._newest() if target is None else self._tail(target.name))
            except BournError:
                failures += 1
            else:
                if told[0]:
                    self._tell(Answered(question, stream, told))
            await self._clock.sleep(self._pace * 0.005)

    async def _newest(self) -> tuple[int, int]:
        """The newest number that a listing shows."""
        basins = (await self._node.list_basins()).rows
        streams = (await self._node.list_streams(BASIN)).rows
        return max([row.id for row in basins] + [row.id for row in streams]), 0

    async def _tail(self, name: str) -> tuple[int, int]:
        """The tail, in one of two ways; 0 where there is no record to see."""
        if self._rng.random() < 0.5:
            tail = await self._node.check_tail(BASIN, name)
            return tail.seq_num, tail.timestamp
        request = make_request(tail_offset=1, clamp=True, count=1, wait=0)
        try:
            found = await self._node.read(BASIN, name, request)
        except Unwritten:
            return 0, 0
        records = found.records()
        return (records[0].seq_num + 1, records[0].timestamp) if records else (0, 0)


async def read_token(node: Node, name: str) -> str:
    """Return the fencing token of a stream: a refusal tells it, and changes nothing."""
    probe = encode_records(make_records(0, 0))
    try:
        await node.append(BASIN, name, probe, fencing_token="nobody's", match_seq_num=2**63)
    except FencingTokenMismatch as mismatch:
        return mismatch.fencing_token
    raise AssertionError("an append with a wrong token was accepted")


async def check_is_deleted(node: Node, name: str, tell: Callable[[Trouble], None]) -> None:
    """A deleted stream answers nobody."""
    try:
        tail = await node.check_tail(BASIN, name)
    except ResourceError:
        return
    tell(Trouble(f"{name}: deleted, and yet its tail is {tail}"))

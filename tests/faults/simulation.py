"""A random life of one store, by seed: clients at work, faults, crashes, restarts, take-overs.

    python -m tests.faults.simulation 17 --trace      shows everything that happens by seed 17

In some lives a pipeline without faults of its own turns the log into history all the while, merges
its files and cleans up behind itself. Three streams: `fenced` is appended to under conditions and
fencing tokens, `trimmed` is cut from below while it grows, `churned` is created and deleted again
and again. At the end the faults are over, a new node takes the store over, and every promise in the
ledger is checked; then once more after a clean restart.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Coroutine
from random import Random
from typing import Any, NamedTuple

from bourn.bucket.faults import ALL, GETS, PUTS, Fault, FaultPlan, Operation, Rule
from bourn.errors import (
    BournError,
    Damaged,
    ResourceAlreadyExists,
    ResourceError,
    StreamDeletionPending,
    Unwritten,
)
from bourn.layout.keys import WAL_PREFIX
from bourn.model.record import Record, fence_record, trim_record
from bourn.model.resource import CreateStream
from bourn.settings import EngineSettings
from tests.engine.tiering import Pipeline as HistoryPipeline
from tests.faults.clients import Client, Pipeline, is_there, random_bodies, serving
from tests.faults.world import SETTINGS, Gone, Host, World, in_world
from tests.support import BASIN

FENCED, TRIMMED, CHURNED = "fenced", "trimmed", "churned"
CHAOS_EVENTS = 12
TIERED_SHARE = 0.35  # of lives, because a pipeline makes one three times as long
GRACE_SECS = 5.0  # that files of the history stay behind those that replace them
LISTS = frozenset({Operation.LIST})
SLOW = Rule(Fault.LATENCY, delay_secs=(0.001, 0.08))

MOODS: dict[str, tuple[Rule, ...]] = {
    "calm": (),
    "slow": (SLOW, Rule(Fault.LATENCY, PUTS, probability=0.1, delay_secs=(0.5, 3.0))),
    "flaky": (
        SLOW,
        Rule(Fault.ERROR, ALL, probability=0.12),
        Rule(Fault.LOST_REPLY, ALL, probability=0.12),
    ),
    "garbled": (
        SLOW,
        Rule(Fault.LOST_REPLY, PUTS, probability=0.1),
        Rule(Fault.TRUNCATED, GETS, probability=0.1),
        Rule(Fault.FLIPPED, GETS, probability=0.1),
        Rule(Fault.MISSING, GETS | LISTS, probability=0.05),
    ),
    "sticky": (
        SLOW,
        Rule(Fault.STUCK_BEFORE, ALL, probability=0.06),
        Rule(Fault.STUCK_AFTER, ALL, probability=0.06),
    ),
    "cut off": (Rule(Fault.ERROR, ALL),),
    "puts stuck": (SLOW, Rule(Fault.STUCK_BEFORE, PUTS, probability=0.9, prefix=WAL_PREFIX)),
}


class Broken(Exception):
    """The store cannot be used any more."""


class Outcome(NamedTuple):
    """What a life came to."""

    seed: int
    digest: str
    events: int
    violations: list[str]
    acked: int
    refused: int
    unknown: int
    seen: int
    nodes: int
    injected: Counter[tuple[Operation, Fault]]
    lines: list[str] | None


class Simulation:
    """One life."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.lives = 0  # of the churned stream
        self.churned: str | None = None  # its book, while it is known to be there
        self.workers: list[asyncio.Task[None]] = []
        self.stopping = False

    async def run(self) -> None:
        world = self.world
        world.settings = SETTINGS_BY_CHANCE[self.rng.randrange(len(SETTINGS_BY_CHANCE))]
        first = await world.start()
        await world.with_streams(first, FENCED, TRIMMED)
        for number, work in enumerate(
            (
                self.pipelines(FENCED),
                self.pipelines(FENCED),
                self.unary(FENCED),
                self.pipelines(TRIMMED),
                self.unary(TRIMMED),
                self.trimmer(),
                self.churn(),
                self.reader(FENCED),
                self.reader(TRIMMED),
                self.follower(FENCED),
                self.follower(TRIMMED),
                *((self.tierer(),) if self.rng.random() < TIERED_SHARE else ()),
            )
        ):
            self.workers.append(asyncio.create_task(work, name=f"worker {number}"))
        try:
            await self.chaos()
            await self.finish()
        finally:
            for worker in self.workers:
                worker.cancel()
            await asyncio.gather(*self.workers, return_exceptions=True)

    def fork(self) -> Random:
        """A source of chance of its own: what one worker draws moves no other."""
        return Random(self.rng.getrandbits(64))

    async def pause(self, rng: Random, seconds: float) -> None:
        await self.world.clock.sleep(rng.uniform(0, seconds))

    # Clients

    async def pipelines(self, stream: str) -> None:
        rng = self.fork()
        client = Client(self.world, stream)
        while not self.stopping:
            host = await serving(self.world, rng)
            try:
                pipeline = await Pipeline.open(client, host)
            except (BournError, Gone):
                await self.pause(rng, 0.5)
                continue
            for _ in range(rng.randint(2, 12)):
                token = match = None
                if stream == FENCED and rng.random() < 0.3:
                    token = pipeline.fencing_token if rng.random() < 0.9 else "wrong"
                if rng.random() < 0.3:
                    match = pipeline.next_seq_num + (rng.random() < 0.1)
                await pipeline.submit(*random_bodies(rng), match_seq_num=match, fencing_token=token)
                if rng.random() < 0.4:
                    await self.pause(rng, 0.1)
                await pipeline.settle(leave=rng.randint(0, 6))
                if pipeline.has_failed or self.stopping:
                    break
            await pipeline.settle()
            pipeline.close()
            await self.pause(rng, 2.0)

    async def unary(self, stream: str) -> None:
        rng = self.fork()
        client = Client(self.world, stream)
        while not self.stopping:
            host = await serving(self.world, rng)
            commands: tuple[Record, ...] = ()
            tail = self.world.ledger.book(stream).tail
            match = tail if rng.random() < 0.3 else None
            if stream == FENCED and rng.random() < 0.2:
                commands = (fence_record(f"token {rng.randrange(10**6)}"),)
            await client.append(host, *random_bodies(rng), commands=commands, match_seq_num=match)
            await self.pause(rng, 1.5)

    async def trimmer(self) -> None:
        rng = self.fork()
        client = Client(self.world, TRIMMED)
        while not self.stopping:
            await self.pause(rng, 6.0)
            host = await serving(self.world, rng)
            tail = self.world.ledger.book(TRIMMED).tail
            await client.append(host, b"", commands=(trim_record(rng.randint(0, tail)),))

    async def reader(self, stream: str) -> None:
        rng = self.fork()
        client = Client(self.world, stream)
        while not self.stopping:
            host = await serving(self.world, rng)
            try:
                tail = await client.check_tail(host)
                await client.read(host, rng.randint(0, tail), count=rng.choice((1, 10, 1000)))
            except Unwritten:
                pass
            except (BournError, Gone) as error:
                self.world.trace.note(f"{stream} read failed: {error}")
            await self.pause(rng, 2.0)

    async def follower(self, stream: str) -> None:
        rng = self.fork()
        client = Client(self.world, stream)
        position = 0
        while not self.stopping:
            host = await serving(self.world, rng)
            try:
                position = await client.follow(host, position, rng.choice((5, 50, 500)))
            except (BournError, Gone) as error:
                self.world.trace.note(f"{stream} session failed: {error}")
                position = rng.randint(max(0, position - 50), position)
            await self.pause(rng, 0.5)

    # The history

    async def tierer(self) -> None:
        rng = self.fork()
        work = HistoryPipeline(self.world.store, self.world.clock, Random(rng.getrandbits(64)))
        replaced: dict[str, float] = {}
        while not self.stopping:
            await self.pause(rng, 4.0)
            what = rng.choice(("tier", "tier", "tier", "merge"))
            try:
                if what == "tier":
                    state = await work.tier(rng.choice((2, 10, 100)), rng.choice((5, 50, 500)))
                else:
                    state = await work.merge(parts=rng.choice((1, 2)))
            except Damaged as error:  # the server may delete a commit while it is being listed
                self.world.trace.note(f"{what} failed: {error}")
                continue
            self.world.trace.note(f"{what}: version {state.version} at {state.end_ordinal}")
            now = self.world.clock.monotonic()
            for key in await work.unnamed():
                if now - replaced.setdefault(key, now) > GRACE_SECS:
                    await self.world.store.delete(key)
                    self.world.trace.note(f"vacuum: {key}")

    # Creation and deletion

    async def churn(self) -> None:
        rng = self.fork()
        while not self.stopping:
            book = await self.create(rng)
            client = Client(self.world, CHURNED, book)
            for _ in range(rng.randint(0, 4)):
                await client.append(await serving(self.world), *random_bodies(rng))
                await self.pause(rng, 0.5)
            await self.pause(rng, 3.0)
            if rng.random() < 0.9:
                await self.delete(rng)
            else:
                return  # it stays to the end

    async def create(self, rng: Random) -> str:
        """Create the stream, asking until the answer is known."""
        self.lives += 1
        is_known = True
        while True:
            host = await serving(self.world)
            work = host.node.create_stream(BASIN, CreateStream(CHURNED))
            try:
                await self.world.ask(host, work, "create")
                break
            except ResourceAlreadyExists:
                if is_known:
                    self.world.ledger.violated("a stream is there that was deleted")
                break
            except StreamDeletionPending:
                pass  # until it is purged
            except (BournError, Gone) as error:
                self.world.trace.note(f"create failed: {error}")
                is_known = False
            await self.pause(rng, 0.5)
        self.churned = f"{CHURNED} {self.lives}"
        self.world.trace.note(f"{self.churned} created")
        return self.churned

    async def delete(self, rng: Random) -> None:
        """Delete the stream, asking until the answer is known."""
        is_known = True
        while True:
            host = await serving(self.world)
            try:
                await self.world.ask(host, host.node.delete_stream(BASIN, CHURNED), "delete")
                break
            except ResourceError:
                if is_known and host is self.world.newest:
                    self.world.ledger.violated("a stream is gone that was created")
                break
            except (BournError, Gone) as error:
                self.world.trace.note(f"delete failed: {error}")
                is_known = False
            await self.pause(rng, 0.5)
        self.churned = None
        self.world.trace.note("churned is deleted")

    # What happens to the nodes

    async def chaos(self) -> None:
        rng = self.fork()
        for _ in range(CHAOS_EVENTS):
            await self.pause(rng, 3.0)
            event = rng.choice(("mood", "mood", "mood", "stuck", "crash", "restart", "take over"))
            self.world.trace.note(f"chaos: {event}")
            serving = [host for host in self.world.hosts if host.serves]
            if not serving or event == "take over":
                await self.start_one(rng)
            elif event == "mood":
                self.set_mood(serving[-1], rng)
            elif event == "stuck":
                await self.loosen(serving[-1], rng)
            elif event == "crash":
                await self.kill(serving[-1], rng)
                await self.start_one(rng)
            else:
                await self.stop(serving[-1])
                await self.start_one(rng)

    async def start_one(self, rng: Random) -> None:
        """Start a node under faults; a start that fails or dies is tried again."""
        while True:
            mood = rng.choice(tuple(MOODS)) if rng.random() < 0.5 else "calm"
            pause_secs = rng.choice((0.0, 0.0, 0.02))
            starting = asyncio.create_task(
                self.world.start(*MOODS[mood], list_pause_secs=pause_secs)
            )
            dies = rng.random() < 0.2
            if dies:
                await self.pause(rng, 2.0)
                if not starting.done():
                    await self.world.crash(self.world.newest)
            try:
                host = await starting
            except (BournError, Gone) as error:
                self.world.trace.note(f"start failed: {error}")
                if mood == "calm" and not self.world.newest.is_dead:
                    raise Broken(f"no node can start: {error}") from error
                await self.loosen(self.world.newest, rng)
                await self.pause(rng, 1.0)
            else:
                if rng.random() < 0.7:
                    host.bucket.plan = FaultPlan()
                return

    def set_mood(self, host: Host, rng: Random) -> None:
        mood = rng.choice(tuple(MOODS))
        self.world.trace.note(f"node {host.number} is {mood}")
        host.bucket.plan = FaultPlan(*MOODS[mood])

    async def loosen(self, host: Host, rng: Random) -> None:
        """What is stuck arrives after all, or never."""
        if rng.random() < 0.6:
            await host.bucket.release()
        else:
            host.bucket.abandon()

    async def kill(self, host: Host, rng: Random) -> None:
        """Kill a node whose last puts are on their way, and may arrive before, while or after."""
        host.bucket.plan = FaultPlan(Rule(Fault.STUCK_BEFORE, PUTS, probability=0.5), SLOW)
        bursting = asyncio.create_task(self.burst(host, rng))
        if rng.random() < 0.5:
            taking = host.node.housekeeping.snapshots.take()
            self.workers.append(asyncio.create_task(self.attempt(host, taking)))
        await self.pause(rng, 0.5)
        await self.world.crash(host)
        await bursting

        async def arrive() -> None:
            await self.pause(rng, rng.choice((0.0, 0.05, 5.0)))
            await self.loosen(host, rng)

        self.workers.append(asyncio.create_task(arrive()))

    async def attempt(self, host: Host, work: Coroutine[Any, Any, None]) -> None:
        """Ask for something that may well fail."""
        try:
            await self.world.ask(host, work, "an attempt")
        except (BournError, Gone) as error:
            self.world.trace.note(f"attempt failed: {error}")

    async def burst(self, host: Host, rng: Random) -> None:
        """Commits side by side, some of which get lost, and a question that rests on them."""
        client = Client(self.world, rng.choice((FENCED, TRIMMED)))
        try:
            pipeline = await Pipeline.open(client, host)
        except (BournError, Gone):
            return
        for _ in range(rng.randint(2, 8)):
            await pipeline.submit(b"x" * self.world.settings.commit_split_bytes)
        asked = Client(self.world, client.stream).append(host, b"", match_seq_num=0)
        await asyncio.gather(pipeline.settle(), asked)
        pipeline.close()

    async def stop(self, host: Host) -> None:
        """Stop a node in order, as an operator would."""
        try:
            await self.world.ask(host, host.node.close(), "close")
        except Gone:
            await self.world.crash(host)

    # The end

    async def finish(self) -> None:
        world = self.world
        self.stopping = True
        if not any(host.serves for host in world.hosts):
            await self.start_one(self.fork())
        for host in world.hosts:
            host.bucket.plan = FaultPlan()
            await self.loosen(host, self.rng)
        await asyncio.gather(*self.workers)
        old = [host for host in world.hosts if host.serves]
        for _ in range(2):
            try:
                last = await world.start()
            except BournError as error:
                raise Broken(f"no node can start: {error}") from error
            for host in old:
                outcome = await Client(world, FENCED).append(host, b"too late")
                if not isinstance(outcome, Exception):
                    world.ledger.violated(f"node {host.number} has acked after it was replaced")
            for stream in (FENCED, TRIMMED):
                outcome = await Client(world, stream).append(last, b"still here")
                if isinstance(outcome, Exception):
                    world.ledger.violated(f"{stream} takes no appends any more: {outcome}")
            await self.look(last)
            await world.ask(last, last.node.close(), "close")

    async def look(self, host: Host) -> None:
        """Judge everything."""
        world = self.world
        clients = [Client(world, FENCED), Client(world, TRIMMED)]
        if await is_there(world, host, CHURNED) != (self.churned is not None):
            world.ledger.violated(f"the churned stream is not what was answered: {self.churned}")
        elif self.churned is not None:
            clients.append(Client(world, CHURNED, self.churned))
        for client in clients:
            try:
                await client.check(host)
            except BournError as error:
                world.ledger.violated(f"{client.book} cannot be read: {error}")


def _settings(**changes: object) -> EngineSettings:
    fields = {name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__}
    return EngineSettings(**{**fields, **changes})


SETTINGS_BY_CHANCE = (
    SETTINGS,
    _settings(flush_interval_ms=5),
    _settings(commits_in_flight=1),
    _settings(commits_in_flight=16, commit_split_bytes=256),
)


def live(seed: int, *, keep_trace: bool = False) -> Outcome:
    """Live the life of a seed."""

    async def scenario(world: World) -> Outcome:
        try:
            await Simulation(world).run()
        except Broken as broken:
            world.ledger.violated(str(broken))
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs into the report
            world.ledger.violated(f"an unforeseen end: {error!r}")
        ledger = world.ledger
        injected: Counter[tuple[Operation, Fault]] = Counter()
        for host in world.hosts:
            injected += host.bucket.injected
        return Outcome(
            seed,
            world.trace.digest,
            world.trace.events,
            ledger.violations,
            ledger.acked_batches,
            ledger.refused_batches,
            ledger.unknown_batches,
            ledger.records_seen,
            len(world.hosts),
            injected,
            world.trace.lines,
        )

    return in_world(scenario, seed, keep_trace=keep_trace)


if __name__ == "__main__":
    outcome = live(int(sys.argv[1]), keep_trace=True)
    if "--trace" in sys.argv:
        print(*(outcome.lines or ()), sep="\n")
    print(outcome.digest, outcome.events, "events")
    print(*outcome.violations, sep="\n")
    sys.exit(bool(outcome.violations))

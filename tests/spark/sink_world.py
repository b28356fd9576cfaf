"""A world for the sink's protocol: streams, a staging place, and drivers that die at any moment.

A driver is a generator that yields between any two things that others could see. An append that is
under way when its driver dies, or gives up on it, may still land later, or never.
"""

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from bourn.spark.sink_manifest import Manifest, Part, Region, make_manifest
from bourn.spark.sink_protocol import (
    Agree,
    Agreed,
    Deliver,
    Enter,
    Fence,
    Fetch,
    Finish,
    Look,
    Looked,
    Marker,
    Newest,
    Rank,
    Seen,
    Send,
    Sent,
    SinkStopped,
    Steps,
    Superseded,
    Tails,
    Terms,
    commit,
    deliver,
)

WRITER = "query"
CHUNK = 2  # rows in an append
Row = tuple[str, int, str, int]  # stream, batch, key, number


class Record(NamedTuple):
    """One record of a stream; a command, a stranger's or a row."""

    row: Row | None = None
    marker: Marker | None = None
    fence: str | None = None
    run: str = ""
    is_large: bool = False


class Append(NamedTuple):
    """A request on its way."""

    stream: str
    records: tuple[Record, ...]
    match: int
    token: str | None


class Rules(NamedTuple):
    """What holds; each can be broken on purpose."""

    matches: bool = True
    fences: bool = True
    agrees: bool = True
    creates_only: bool = True
    tails_come_first: bool = True
    keeps_manifests: bool = True
    marks: bool = True


class World:
    def __init__(self, seed: int, rules: Rules, *, exclusive: bool, strangers: bool) -> None:
        self.rng = random.Random(seed)
        self.rules = rules
        self.exclusive = exclusive
        self.strangers = strangers
        self.streams: dict[str, list[Record]] = {}
        self.tokens: dict[str, str] = {}
        self.network: list[Append] = []
        self.manifests: dict[int, Manifest] = {}
        self.parts: dict[str, list[Row]] = {}
        self.done: set[int] = set()
        self.runs: dict[str, int] = {}
        self.committed: set[int] = set()
        self.content = [content(self.rng, batch) for batch in range(3)]
        self.names = 0

    # The stream store

    def land(self, request: Append) -> Sent | None:
        """Judge an append; None where it is in."""
        records = self.streams.setdefault(request.stream, [])
        token = self.tokens.get(request.stream, "")
        if self.rules.fences and request.token is not None and request.token != token:
            return Sent(0, 0, token=token)
        if self.rules.matches and request.match != len(records):
            return Sent(0, 0, next_seq_num=len(records))
        records.extend(request.records)
        for record in request.records:
            if record.fence is not None:
                self.tokens[request.stream] = record.fence
        return None

    def post(self, request: Append) -> Generator[None, None, Sent | str | None]:
        """Send an append; what comes back may be nothing."""
        self.network.append(request)
        yield
        if request not in self.network:
            return "unknown"  # it has landed by itself, and its reply is lost
        fate = self.rng.random()
        if fate < 0.1:
            return "unknown"  # still on its way
        self.network.remove(request)
        if fate < 0.2:
            return "unknown"
        reply = self.land(request)
        return "unknown" if fate < 0.3 else reply

    # Spark's driver

    def driver(self, run: str) -> Iterator[None]:
        terms = Terms(WRITER, run, self.exclusive)
        batch = max(self.committed, default=-1) + 1
        while batch < len(self.content):
            staged = self.stage(run, batch)
            try:
                yield from self.perform(terms, batch, staged)
            except Superseded:
                return
            yield
            self.committed.add(batch)
            batch += 1
            yield

    def stage(self, run: str, batch: int) -> Manifest:
        """Rows as this attempt finds them: keys keep their order, partitions and streams do not."""
        keys = list(self.content[batch])
        self.rng.shuffle(keys)
        parts = []
        for some in (keys[::2], keys[1::2]):
            rows = [row for key in some for row in self.content[batch][key]]
            self.names += 1
            name = f"{batch}/{self.names}"
            self.parts[name] = rows
            counts = Counter(row[0] for row in rows)
            regions = []
            for stream, count in sorted(counts.items()):
                mine = [row for row in rows if row[0] == stream]
                large = {at: digest(row) for at, row in enumerate(mine) if is_large(row)}
                regions.append(Region(stream, count, 0, 0, 0, large))
            parts.append(Part(name, b"", tuple(regions)))
        return make_manifest(WRITER, run, batch, parts)

    def perform(self, terms: Terms, batch: int, staged: Manifest) -> Iterator[None]:
        yield from self.take(terms, batch, staged, commit(terms, batch, staged))

    def take(self, terms: Terms, batch: int, current: Manifest, steps: Steps) -> Iterator[None]:
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                return
            yield
            if isinstance(effect, Deliver):
                manifest, answer = effect.manifest, None
                yield from self.side_by_side(
                    self.take(
                        terms,
                        batch,
                        manifest,
                        deliver(terms, batch, plan, is_ours=effect.is_ours),
                    )
                    for plan in manifest.streams
                )
            elif isinstance(effect, Send):
                rows = self.rows(current, effect.stream)
                if rows is None:
                    answer = Sent(effect.row, effect.position, is_gone=True)
                else:
                    answer = yield from self.send(terms, batch, effect, rows)
            elif isinstance(effect, Fence):
                record = Record(fence=effect.new, run=terms.run)
                request = Append(effect.stream, (record,), effect.position, effect.old)
                answer = self.sent(0, effect.position, 1, (yield from self.post(request)))
            else:
                answer = self.act(effect)

    def side_by_side(self, runs: Iterable[Iterator[None]]) -> Iterator[None]:
        live = list(runs)
        while live:
            chosen = self.rng.choice(live)
            try:
                next(chosen)
            except StopIteration:
                live.remove(chosen)
            yield

    def rows(self, manifest: Manifest, stream: str) -> list[Row] | None:
        if any(part.key not in self.parts for part in manifest.parts):
            return None
        return [row for part in manifest.parts for row in self.parts[part.key] if row[0] == stream]

    def send(
        self, terms: Terms, batch: int, effect: Send, rows: list[Row]
    ) -> Generator[None, None, Sent]:
        row, position = effect.row, effect.position
        while row < len(rows):
            end = chunk_end(rows, row)
            records = [
                Record(each, run=terms.run, is_large=is_large(each)) for each in rows[row:end]
            ]
            if not records[-1].is_large and self.rules.marks:
                marker = Marker(WRITER, batch, end, len(rows))
                records[-1] = records[-1]._replace(marker=marker)
            request = Append(effect.stream, tuple(records), position, effect.token)
            outcome = self.sent(row, position, end - row, (yield from self.post(request)))
            if outcome.is_unknown or outcome.token is not None or outcome.next_seq_num is not None:
                return outcome
            row, position = outcome.row, outcome.position
        return Sent(row, position)

    @staticmethod
    def sent(row: int, position: int, count: int, reply: Sent | str | None) -> Sent:
        if isinstance(reply, str):
            return Sent(row, position, is_unknown=True)
        if reply is not None:
            return reply._replace(row=row, position=position)
        return Sent(row + count, position + count)

    def act(self, effect: Any) -> Any:
        acts: dict[type, Callable[[Any], Any]] = {
            Tails: lambda each: {name: len(self.streams.get(name, ())) for name in each.streams},
            Newest: lambda _: self.newest(),
            Agree: lambda each: self.agree(each.manifest),
            Fetch: lambda each: self.manifests.get(each.batch),
            Enter: lambda each: self.runs.setdefault(each.run, len(self.runs)),
            Rank: lambda each: (self.runs[each.run], self.runs.get(each.other)),
            Look: lambda each: self.look(each.stream, each.position, is_first=each.is_first),
            Finish: lambda each: self.finish(each.batch),
        }
        return acts[type(effect)](effect)

    def newest(self) -> Agreed | None:
        if not self.manifests or not self.rules.agrees:
            return None
        newest = max(self.manifests)
        return Agreed(newest, newest in self.done)

    def agree(self, manifest: Manifest) -> Manifest:
        batch = manifest.batch
        if not self.rules.tails_come_first:
            starts = {plan.name: len(self.streams.get(plan.name, ())) for plan in manifest.streams}
            manifest = manifest.starting_at(starts)
        if not self.rules.agrees:
            self.manifests[batch] = manifest
            return manifest
        if batch in self.manifests and self.rules.creates_only:
            return self.manifests[batch]
        self.manifests[batch] = manifest
        return manifest

    def look(self, stream: str, position: int, *, is_first: bool) -> Looked:
        records = self.streams.get(stream, [])
        if is_first and records and records[-1].marker is not None:
            return Looked((Seen(len(records) - 1, records[-1].marker),), len(records))
        seen = [
            Seen(at, record.marker, b"" if record.row is None else digest(record.row))
            for at, record in enumerate(records)
            if at >= position and (record.marker is not None or record.is_large)
        ]
        return Looked(tuple(seen), len(records))

    def finish(self, batch: int) -> None:
        self.done.add(batch)
        kept = batch - 1 if self.rules.keeps_manifests else batch + 1
        for old in [number for number in self.manifests if number < kept]:
            del self.manifests[old]
            self.done.discard(old)
        for name in [name for name in self.parts if int(name.partition("/")[0]) < kept]:
            del self.parts[name]
        agreed = self.manifests.get(batch)
        for part in () if agreed is None else agreed.parts:
            self.parts.pop(part.key, None)


def content(rng: random.Random, batch: int) -> dict[str, list[Row]]:
    """The rows of a batch by key; every key stays in its own partition."""
    rows: dict[str, list[Row]] = {}
    for key in "abcd":
        stream = "left" if key < "c" else "right"
        rows[key] = [(stream, batch, key, number) for number in range(rng.randint(0, 4))]
    return rows


def is_large(row: Row) -> bool:
    return row[2] == "b" and row[3] == 1


def digest(row: Row) -> bytes:
    return repr(row).encode()


def chunk_end(rows: list[Row], row: int) -> int:
    """A large row is an append of its own; others come by two."""
    if is_large(rows[row]):
        return row + 1
    end = row + 1
    while end < len(rows) and end - row < CHUNK and not is_large(rows[end]):
        end += 1
    return end


def violations(world: World) -> list[str]:
    """What an observer of the streams finds wrong."""
    found = []
    for stream in ("left", "right"):
        rows = [record.row for record in world.streams.get(stream, ()) if record.row is not None]
        wanted = [
            row
            for batch in world.content
            for key in batch.values()
            for row in key
            if row[0] == stream
        ]
        counts = Counter(rows)
        found += [f"{row} is there {counts[row]} times" for row in wanted if counts[row] != 1]
        if [row[1] for row in rows] != sorted(row[1] for row in rows):
            found.append(f"{stream}: batches are out of order")
        for key in "abcd":
            mine = [row[1:] for row in rows if row[2] == key]
            if any(before >= after for before, after in pairwise(mine)):
                found.append(f"{stream}: the rows of {key} are out of order")
        if world.exclusive:
            found += fence_violations(stream, world.streams.get(stream, []))
    return found


def fence_violations(stream: str, records: list[Record]) -> list[str]:
    token = ""
    found = []
    for record in records:
        if record.fence is not None:
            token = record.fence
        elif record.row is not None and record.run != token:
            found.append(f"{stream}: run {record.run} appended behind the fence of {token!r}")
    return found


def live(world: World, *, crashes: int, steps_max: int = 5000) -> None:
    """Let drivers come, die and wake up late until every batch is committed."""
    rng = world.rng
    drivers: list[Iterator[None]] = []
    names = 0
    for _ in range(steps_max):
        if len(world.committed) == len(world.content) and not drivers:
            break
        if not drivers or (crashes and len(drivers) < 3 and rng.random() < 0.2):
            for _ in range(rng.randint(1, 2)):
                names += 1
                drivers.append(world.driver(f"run{names}"))
        if crashes and rng.random() < 0.04:
            drivers.pop(rng.randrange(len(drivers)))
            crashes -= 1
            continue
        weather(world)
        chosen = rng.choice(drivers)
        # A driver sleeps long at times, and then does much at once.
        if not goes_on(world, chosen, rng.choice((1, 1, 1, 20))):
            drivers.remove(chosen)
    for request in world.network:
        world.land(request)
    assert len(world.committed) == len(world.content), "the batches were never all committed"


def weather(world: World) -> None:
    """What happens without any driver: late appends land or are lost, strangers append."""
    rng = world.rng
    if world.network and rng.random() < 0.1:
        request = world.network.pop(rng.randrange(len(world.network)))
        if rng.random() < 0.7:
            world.land(request)
    if world.strangers and rng.random() < 0.05:
        stream = rng.choice(("left", "right"))
        world.streams.setdefault(stream, []).append(Record())


def goes_on(world: World, driver: Iterator[None], steps: int) -> bool:
    """Let a driver take some steps; False where it has ended. With all rules, none is stuck."""
    try:
        for _ in range(steps):
            next(driver)
    except StopIteration:
        return False
    except SinkStopped:
        if world.rules == Rules():
            raise
        return False
    return True

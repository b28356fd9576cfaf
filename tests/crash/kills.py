"""Kill after kill on one directory, a complete look in between, then a fresh directory."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tests.crash.check import Inspector
from tests.crash.child import Plan, run_child
from tests.crash.events import Mark
from tests.crash.ledger import Ledger
from tests.crash.process import Process, clock, wait_for

KILLS_PER_DIRECTORY: Final = 10
STAGE_SECS_MAX: Final = 60.0
EVENTS: Final = "events.jsonl"


class Moment(NamedTuple):
    """When to kill: so long after the process has told of a stage."""

    stage: str
    after_secs: tuple[float, float]
    work_secs: tuple[float, float] = (600.0, 600.0)
    then: str = "idle"


MOMENTS: Final = {
    "work": Moment("working", (0.02, 0.6)),
    "snapshot": Moment("snapshot", (0.0, 0.03), (0.02, 0.3), "snapshots"),
    "close": Moment("closing", (0.0, 0.03), (0.02, 0.3), "close"),
    "recovery": Moment("started", (0.0, 0.08)),
    "look": Moment("looking", (0.0, 0.1)),
}
DECK: Final = ("work",) * 4 + ("snapshot",) * 2 + ("close",) + ("recovery",) * 2 + ("look",)


class Arena:
    """One bucket with its ledger, and the processes that it has had."""

    def __init__(self, directory: Path, seed: int, sabotage: str = "") -> None:
        self.directory = directory
        self.seed = seed
        self.sabotage = sabotage
        self.ledger = Ledger(seed)
        self.inspector = Inspector(self.ledger)
        self.processes = 0
        self.stage = ""  # the last one that any process has told of
        directory.mkdir(parents=True)
        self._events = (directory / EVENTS).open("ab")

    def start(self, **plan: bool | float | str) -> Process:
        """Fork a node process."""
        self.processes += 1
        whole = Plan(
            directory=str(self.directory),
            seed=self.seed,
            process=self.processes,
            sabotage=self.sabotage,
            **plan,  # type: ignore[arg-type]  # the names are the plan's
        )
        return Process.fork(self.processes, partial(run_child, whole))

    def take_in(self, process: Process) -> None:
        """Apply everything that was read from a process and not yet applied."""
        for event in process.events():
            if isinstance(event, Mark):
                self.stage = event.stage
            self.inspector.apply(process.number, event)

    def check(self, rng: Random) -> None:
        """Look at everything through a fresh process, which ends cleanly or just ends."""
        looks = self.inspector.looks
        process = self.start(look=True, then=rng.choice(["close", "leave"]))
        process.wait_end()
        self.take_in(process)
        self.keep(process)
        if self.inspector.looks == looks:
            self.ledger.violated(f"the bucket cannot be looked at: status {process.status}")

    def keep(self, process: Process) -> None:
        """Write down what a process has told, for whoever has to find out what happened."""
        self._events.write(process.told())

    def end(self) -> list[str]:
        """Remove the directory, unless it shows something; returns the violations."""
        self._events.close()
        violations = self.ledger.violations
        if not violations:
            shutil.rmtree(self.directory)
        return violations


class KillRun:
    """Counts over all directories."""

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._seed = seed
        self._say = say
        self.kills = 0
        self.acked = 0
        self.violations: list[str] = []

    def run(self, kills: int, sabotage: str = "", directories_kept_max: int = 3) -> None:
        """Kill so many nodes; ends early once enough directories show violations."""
        kept = 0
        number = 0
        while self.kills < kills and kept < directories_kept_max:
            number += 1
            directory = self._directory / f"kills-{number}"
            arena = Arena(directory, self._seed * 1_000 + number, sabotage)
            self._run_arena(arena, min(KILLS_PER_DIRECTORY, kills - self.kills), kills)
            self.acked += arena.ledger.acked
            found = arena.end()
            kept += bool(found)
            self.violations += [f"{directory.name}: {what}" for what in found]

    def _run_arena(self, arena: Arena, kills: int, kills_in_all: int) -> None:
        rng = Random(f"{arena.seed}/kills")
        deck = [*DECK]
        rng.shuffle(deck)
        deck.insert(0, deck.pop(deck.index("work")))  # an empty bucket is no challenge
        is_settled = True
        for kind in deck[:kills]:
            is_settled = self._kill(arena, kind, rng, is_settled=is_settled)
            self.kills += 1
            self._say(
                f"kill {self.kills}/{kills_in_all} ({kind}, {arena.directory.name}) "
                f"when {arena.stage}: {self.acked + arena.ledger.acked} acked, "
                f"{len(self.violations) + len(arena.ledger.violations)} violations"
            )
            if arena.ledger.violations:
                return
        arena.check(rng)

    def _kill(self, arena: Arena, kind: str, rng: Random, *, is_settled: bool) -> bool:
        """One life; returns whether a complete look has come after everything that was written."""
        moment = MOMENTS[kind]
        works = kind not in {"recovery", "look"}
        looks = kind == "look" or (works and not is_settled and rng.random() < 0.5)
        if works and not is_settled and not looks:
            arena.check(rng)
        looks_before = arena.inspector.looks
        process = arena.start(
            look=looks,
            work=works,
            work_secs=rng.uniform(*moment.work_secs),
            then=moment.then,
        )
        times = rng.randint(1, 3) if moment.then == "snapshots" else 1
        # The first life of a bucket leaves something behind, however slow the machine is.
        is_first = process.number == 1
        if wait_for_stage(process, moment.stage, times) and (
            not is_first or wait_for_stage(process, "acked")
        ):
            linger(process, rng.uniform(*moment.after_secs))
        else:
            arena.ledger.violated(f"process {process.number} did not get to {moment.stage!r}")
        if process.at_end:
            arena.ledger.violated(f"process {process.number} ended by itself")
        process.kill()
        arena.take_in(process)
        arena.keep(process)
        return not works and (is_settled or arena.inspector.looks > looks_before)


def wait_for_stage(process: Process, stage: str, times: int = 1) -> bool:
    """Wait until the process has told of a stage so often; False if it ends before."""
    mark = f'"{stage}"'.encode()
    deadline = clock.monotonic() + STAGE_SECS_MAX
    at = -1
    for _ in range(times):
        while (found := process.find(mark, at + 1)) < 0:
            if process.at_end or clock.monotonic() > deadline:
                return False
            wait_for([process], 1.0)
        at = found
    return True


def linger(process: Process, seconds: float) -> None:
    """Let the process live on for so long, and read what it tells."""
    until = clock.monotonic() + seconds
    while not process.at_end and (left := until - clock.monotonic()) > 0:
        wait_for([process], left)

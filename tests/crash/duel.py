"""Two and three nodes fight for one bucket.

The rule for each: whoever recovers the bucket later wins. An older node may still ack what the
newer one has found in the log, but nothing else; it notices, says so, and answers no more. A node
that was stopped for longer than its reads stay fresh answers nothing stale when it wakes up.
"""

import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from bourn.engine.housekeeping import EPOCH_CHECKS_MISSED_MAX
from tests.crash.child import RIVAL_POLL_SECS
from tests.crash.kills import Arena
from tests.crash.process import Process, clock, wait_for

STALE_SECS: Final = (EPOCH_CHECKS_MISSED_MAX + 2) * RIVAL_POLL_SECS
WAIT_SECS_MAX: Final = 30.0
PACE: Final = 0.7


class Duel:
    """One fight in one arena."""

    def __init__(self, arena: Arena, rng: Random) -> None:
        self.rng = rng
        self._arena = arena
        self._fighters: list[Process] = []
        self._stopped_at: dict[int, float] = {}

    def start(self, *, look: bool = True) -> Process:
        """Let another node take over."""
        process = self._arena.start(look=look, work=True, pace=PACE, rivals=True)
        self._arena.ledger.excused.add(process.number)
        self._fighters.append(process)
        return process

    def live(self, seconds: float) -> None:
        """Let everybody go on for so long."""
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            self._listen(left)

    def wait_for_acks(self, process: Process) -> None:
        """Let everybody go on until this node has acked something, and a little longer."""
        acked_by = self._arena.ledger.acked_by
        self._wait(lambda: acked_by[process.number] > 20, f"process {process.number} acks nothing")
        self.live(self.rng.uniform(0.0, 0.15))

    def wait_for_defeat(self, *losers: Process) -> None:
        """Let everybody go on until these have noticed that a newer node leads."""
        for loser in losers:
            self.wait_for_defeats(1, loser)

    def wait_for_defeats(self, count: int, *among: Process) -> None:
        """Let everybody go on until so many have noticed; then see that they stay silent."""
        numbers = {process.number for process in among}
        fenced = self._arena.ledger.fenced
        what = f"of the processes {sorted(numbers)}, {count} should know that a newer node leads"
        self._wait(lambda: len(fenced & numbers) >= count, what)
        self.live(0.1)
        if len(fenced & numbers) > count:
            self._arena.ledger.violated(f"{what}: {sorted(fenced & numbers)} do")

    def stop(self, process: Process) -> None:
        """SIGSTOP: it stands still in the middle of whatever it does."""
        process.stop()
        self._stopped_at[process.number] = clock.monotonic()
        self._arena.take_in(process)

    def wake(self, process: Process) -> None:
        """SIGCONT, once its reads must not be fresh any more."""
        self.live(self._stopped_at[process.number] + STALE_SECS - clock.monotonic())
        self._arena.ledger.deposed.add(process.number)
        process.signal(signal.SIGCONT)

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        if process.at_end:
            self._arena.ledger.violated(f"process {process.number} has ended by itself")
        process.kill()
        self._listen(0)

    def end(self) -> None:
        """Kill everybody and look at what they have left."""
        for process in self._fighters:
            if process.status is None:
                self.kill(process)
        for process in self._fighters:
            self._arena.keep(process)
        self._arena.check(self.rng)

    def _listen(self, seconds: float) -> None:
        """Read the newest node first and believe the oldest first.

        What a newer one has found in the log, the older one has told before.
        """
        wait_for(self._fighters[::-1], min(seconds, 0.05))
        for process in self._fighters:
            self._arena.take_in(process)

    def _wait(self, is_done: Callable[[], bool], complaint: str) -> None:
        deadline = clock.monotonic() + WAIT_SECS_MAX
        while not is_done():
            if self._arena.ledger.violations:
                return
            if clock.monotonic() > deadline:
                self._arena.ledger.violated(complaint)
                return
            self._listen(1.0)


def stopped(duel: Duel) -> None:
    """A is stopped, B takes over and writes, A wakes up."""
    first = duel.start()
    duel.wait_for_acks(first)
    duel.stop(first)
    second = duel.start()
    duel.wait_for_acks(second)
    duel.wake(first)
    duel.wait_for_defeat(first)


def full_speed(duel: Duel) -> None:
    """A writes on while B takes over."""
    first = duel.start()
    duel.wait_for_acks(first)
    second = duel.start()
    duel.wait_for_acks(second)
    duel.wait_for_defeat(first)


def killed(duel: Duel) -> None:
    """A is killed while B recovers."""
    first = duel.start()
    duel.wait_for_acks(first)
    second = duel.start()
    duel.live(duel.rng.uniform(0.0, 0.06))
    duel.kill(first)
    duel.wait_for_acks(second)


def third(duel: Duel) -> None:
    """B takes over from A and is stopped itself; C takes over; both wake up."""
    first = duel.start()
    duel.wait_for_acks(first)
    duel.stop(first)
    second = duel.start()
    duel.wait_for_acks(second)
    duel.stop(second)
    last = duel.start()
    duel.wait_for_acks(last)
    duel.wake(second)
    duel.wake(first)
    duel.wait_for_defeat(first, second)


def relay(duel: Duel) -> None:
    """B is killed while it takes over from A, which is at full speed; C does it again."""
    first = duel.start()
    duel.wait_for_acks(first)
    second = duel.start()
    duel.live(duel.rng.uniform(0.0, 0.08))
    duel.kill(second)
    last = duel.start()
    duel.wait_for_acks(last)
    duel.wait_for_defeat(first)


def rush(duel: Duel) -> None:
    """B and C take over from A at the same moment, and all three write."""
    first = duel.start()
    duel.wait_for_acks(first)
    second, last = duel.start(look=False), duel.start(look=False)
    duel.wait_for_defeats(2, first, second, last)


FIGHTS: Final = (stopped, full_speed, killed, third, relay, rush)


class DuelRun:
    """Counts over all fights."""

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._seed = seed
        self._say = say
        self.rounds = 0
        self.acked = 0
        self.violations: list[str] = []

    def run(self, rounds: int) -> None:
        """Fight so often, each way in turn; the seed says which comes first."""
        for number in range(rounds):
            fight = FIGHTS[(self._seed + number) % len(FIGHTS)]
            directory = self._directory / f"duel-{number + 1}"
            arena = Arena(directory, self._seed * 1_000 + 500 + number)
            duel = Duel(arena, Random(f"{arena.seed}/duel"))
            fight(duel)
            duel.end()
            self.rounds += 1
            self.acked += arena.ledger.acked
            found = arena.end()
            self.violations += [f"{directory.name} ({fight.__name__}): {what}" for what in found]
            self._say(
                f"duel {self.rounds}/{rounds} ({fight.__name__}): {self.acked} acked, "
                f"{len(self.violations)} violations"
            )

"""The command: see the package."""

import argparse
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

from tests.crash.buckets import LIES
from tests.crash.duel import DuelRun
from tests.crash.kills import KillRun
from tests.crash.process import clock, warm


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, help="how many nodes to kill (50)")
    parser.add_argument("--duel", type=int, help="how many fights (a tenth of the kills, or 3)")
    parser.add_argument("--seed", type=int, help="repeat a plan; the moments stay the machine's")
    parser.add_argument("--directory", type=Path, help="where the buckets lie while it runs")
    parser.add_argument(
        "--sabotage", choices=sorted(LIES), default="", help="break the bucket: it must fail"
    )
    parsed = parser.parse_args(arguments)
    if parsed.kills is None:
        parsed.kills = 50 if parsed.duel is None else 0
    if parsed.duel is None:
        parsed.duel = max(3, parsed.kills // 10)
    return parsed


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="bourn-crash-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, in {directory}", flush=True)
    warm()
    began = clock.monotonic()

    def say(line: str) -> None:
        print(f"{clock.monotonic() - began:6.1f} s  {line}", flush=True)

    kills = KillRun(directory, seed, say)
    kills.run(options.kills, options.sabotage)
    duels = DuelRun(directory, seed, say)
    duels.run(options.duel)
    violations = kills.violations + duels.violations
    for what in violations:
        print(f"VIOLATION {what}")
    if violations:
        again = f"--kills {options.kills} --duel {options.duel} --seed {seed}"
        print(f"kept in {directory}; again: python -m tests.crash {again}")
    elif options.directory is None:
        with suppress(OSError):
            directory.rmdir()
    print(f"{duels.rounds} duels, {duels.acked} acked batches, {len(duels.violations)} violations")
    print(f"{kills.kills} kills, {kills.acked} acked batches, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The command: see the package."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from tests.connector_proof.run import Proof, clock


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.connector_proof", description=__doc__)
    parser.add_argument("--restarts", type=int, default=20, help="how many drivers to kill (20)")
    parser.add_argument("--seed", type=int, help="repeat a plan; the moments stay the machine's")
    parser.add_argument("--directory", type=Path, help="where data lies, and stays")
    parser.add_argument(
        "--sabotage",
        action="store_true",
        help="deliver at least once: it must then fail, if a driver dies at a bad moment",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="bourn-connector-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, in {directory}", flush=True)
    began = clock.monotonic()

    def say(line: str) -> None:
        print(f"{clock.monotonic() - began:6.1f} s  {line}", flush=True)

    proof = Proof(directory, seed, say)
    found = proof.run(options.restarts, "at-least-once" if options.sabotage else "exactly-once")
    for what in found:
        print(f"VIOLATION {what}")
    if found:
        print(f"kept in {directory}; again: --restarts {options.restarts} --seed {seed}")
    elif options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{proof.restarts} restarts, {proof.server_kills} of the server, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

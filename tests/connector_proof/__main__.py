"""The command: see the package."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from tests.connector_proof.run import SABOTAGES, Proof, clock


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.connector_proof", description=__doc__)
    parser.add_argument("--restarts", type=int, default=20, help="how many drivers to kill (20)")
    parser.add_argument("--seed", type=int, help="repeat a plan; the moments stay the machine's")
    parser.add_argument("--directory", type=Path, help="where data lies, and stays")
    parser.add_argument(
        "--sabotage",
        choices=SABOTAGES,
        default="",
        help="take one promise away: the proof must then fail",
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

    proof = Proof(directory, seed, say, options.sabotage)
    found = proof.run(options.restarts)
    for what in found:
        print(f"VIOLATION {what}")
    if found:
        print(f"kept in {directory}; again: --restarts {options.restarts} --seed {seed}")
    elif options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    print(
        f"{proof.restarts} restarts, {proof.server_kills} of the server, {proof.lost_notes} notes "
        f"of Spark lost, {len(found)} violations"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

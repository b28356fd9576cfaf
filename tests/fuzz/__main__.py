"""The command: see the package."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from random import SystemRandom

from tests.cli.process import Serving, bourn
from tests.fuzz.seeded import BASINS, STREAMS

HERE = Path(__file__).parent
ROOT_TOKEN = "the-root-token-of-a-fuzzed-server"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long to go on (60)")
    parser.add_argument("--seed", type=int, help="repeat a run")
    return parser.parse_args(arguments)


def seed_server(server: Serving) -> None:
    """Make a few basins and streams, so that requests find something."""
    variables = {
        "S2_ACCESS_TOKEN": ROOT_TOKEN,
        "S2_ACCOUNT_ENDPOINT": server.url,
        "S2_BASIN_ENDPOINT": server.url,
    }
    for basin in BASINS:
        made = bourn("basin", "create", basin, variables=variables)
        assert made.code == 0, made.err
        for stream in STREAMS:
            made = bourn("stream", "create", f"s2://{basin}/{stream}", variables=variables)
            assert made.code == 0, made.err


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}, {options.seconds} s", flush=True)
    with Serving("--memory", "--root-token", ROOT_TOKEN) as server:
        seed_server(server)
        command = [
            *(sys.executable, "-m", "schemathesis.cli"),
            *("--config-file", str(HERE / "schemathesis.toml"), "run"),
            *(f"{server.url}/openapi.json", "--seed", str(seed), "--checks", "all"),
            *("--max-time", str(options.seconds), "--request-timeout", "20", "--warnings", "off"),
            *("--header", f"Authorization: Bearer {ROOT_TOKEN}", "--continue-on-failure"),
        ]
        found = subprocess.run(
            command,
            env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.fuzz.hooks"},
            cwd=HERE.parent.parent,
            check=False,
        )
        alive = server.child.poll() is None
        unforeseen = [line for line in server.errors().splitlines() if "Traceback" in line]
    if not alive or unforeseen:
        print(f"the server {'failed inside' if alive else 'has died'}: {server.errors()[-2000:]}")
        return 1
    print(f"{'0' if found.returncode == 0 else 'some'} mismatches (seed {seed})")
    return found.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

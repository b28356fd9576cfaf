"""Run the mix: `python -m tests.stress --seed 1 --seconds 30`, and once more until SIGTERM."""

import argparse
import asyncio
import tempfile

from tests.cli.process import Serving
from tests.stress.actors import Stage
from tests.stress.mix import at_rest, check, descriptors, play, play_until_stopped


def main() -> None:
    """Play with one server to the end, then stop it under load and see what its successor has."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0)
    wanted = parser.parse_args()
    with Serving("--memory") as server:
        before = descriptors(server)
        try:
            stage = asyncio.run(_played(server, before, wanted.seed, wanted.seconds))
            print(stage.did)
        finally:
            print(server.child.poll(), server.errors())
    with tempfile.TemporaryDirectory() as scratch:
        with Serving("--bucket", scratch) as server:
            stage = asyncio.run(play_until_stopped(server, wanted.seed, wanted.seconds / 2))
            print(stage.did, server.errors(), sep="\n")
        with Serving("--bucket", scratch) as server:
            stage.port = server.port
            asyncio.run(check(stage))


async def _played(server: Serving, before: int, seed: int, seconds: float) -> Stage:
    stage = await play(server, seed, seconds)
    await at_rest(server, before)
    return stage


main()

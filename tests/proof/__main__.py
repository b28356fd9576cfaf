"""The command: see the package."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random, SystemRandom
from typing import Final, NamedTuple

from bourn.cli.parser import leaves, make_parser
from tests.proof.content import Content
from tests.proof.ledger import Ledger
from tests.proof.processes import Served, clock
from tests.proof.rounds import TARGETS, Arena, Size, audit_of
from tests.proof.sabotage import SABOTAGES
from tests.s3server import REPOSITORY, moto_server

LOCAL: Final = "local[2]"
CLUSTER: Final = "local-cluster[2,1,1024]"
WHOLE_ROUNDS: Final = 10  # from so many on, the proof is the whole one
FLAGS: Final = ("--pipeline-backlog", "2MiB", "--pipeline-age", "1s", "--no-auth")
S3_BUCKET: Final = "proof"
S3_STREAMS_MAX: Final = 50
S3_ROUND_MEGABYTES: Final = 4
SMALL_KILLS: Final = (("driver", "server"), ("executor", "server"))


class Plan(NamedTuple):
    """How much of everything."""

    rounds: int
    streams: int
    megabytes: int
    s3_rounds: int
    is_whole: bool

    def size(self, number: int, rng: Random) -> Size:
        """Of a round; of a whole proof, the first one is without kills."""
        is_last = number == self.rounds - 1
        size_bytes = self.megabytes * 1_000_000 // self.rounds
        if not self.is_whole:
            return Size(size_bytes, SMALL_KILLS[number % len(SMALL_KILLS)], 1.0, is_last)
        kills = tuple(rng.choices(TARGETS, k=rng.randint(1, 3))) if number else ()
        return Size(size_bytes, kills, 1.0 if is_last or number == 0 else 0.25)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.proof", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="from 10 on: the whole proof (3)")
    parser.add_argument("--streams", type=int, help="streams (1,000; in a small proof 100)")
    parser.add_argument("--megabytes", type=int, help="bytes appended (1,000; in a small one 15)")
    parser.add_argument("--s3-rounds", type=int, help="rounds of these on S3 (a fifth, 1 at least)")
    parser.add_argument("--master", help=f"one Spark for all rounds ({LOCAL} and {CLUSTER})")
    parser.add_argument("--seed", type=int, help="repeat a plan; the moments stay the machine's")
    parser.add_argument("--directory", type=Path, help="where the bucket lies while it runs")
    parser.add_argument("--sabotage", choices=sorted(SABOTAGES), default="", help="it must fail")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    is_whole = options.rounds >= WHOLE_ROUNDS
    streams = options.streams or (1000 if is_whole else 100)
    megabytes = options.megabytes or (1000 if is_whole else 15)
    s3_rounds = options.s3_rounds
    if s3_rounds is None:
        s3_rounds = max(1, options.rounds // 5)
    return Plan(options.rounds, streams, megabytes, min(s3_rounds, options.rounds), is_whole)


class Proof:
    """Counts over all buckets."""

    def __init__(self, options: argparse.Namespace, directory: Path, seed: int) -> None:
        self._options = options
        self._directory = directory
        self._rng = Random(seed)
        self._seed = seed
        self._began = clock.monotonic()
        self._has_audit = any(leaf.prog == "bourn pipeline audit" for leaf in leaves(make_parser()))
        self.arenas: list[tuple[Arena, Ledger]] = []
        self.rounds = 0

    def say(self, line: str) -> None:
        """Tell of progress."""
        print(f"{clock.monotonic() - self._began:7.1f} s  {line}", flush=True)

    def run(self, name: str, bucket: str, environ: dict[str, str], plan: Plan) -> None:
        """Go through the rounds on one bucket."""
        ledger = Ledger(Content(self._seed), plan.streams)
        served = Served(bucket, self._directory / f"{name}.log", environ, FLAGS)
        audit = audit_of(bucket, environ) if self._has_audit else str
        rng = Random(self._rng.getrandbits(64))
        arena = Arena(served, ledger, rng, self.say, audit, self._options.sabotage)
        self.arenas.append((arena, ledger))
        try:
            arena.begin(self._master(0))
            self.say(f"{name}: {plan.streams:,} streams, {plan.megabytes:,} MB to come")
            for number in range(plan.rounds):
                arena.round(number, plan.size(number, rng), self._master(number))
                self.rounds += 1
                if ledger.violations:
                    break
            served.end(signal.SIGTERM)
        finally:
            served.close()

    def _master(self, number: int) -> str:
        if self._options.master:
            return str(self._options.master)
        return CLUSTER if number % 3 == 1 else LOCAL


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="bourn-proof-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, in {directory}", flush=True)
    plan = plan_of(options)
    proof = Proof(options, directory, seed)
    environ = {name: text for name, text in os.environ.items() if not name.startswith("BOURN_")}
    environ["PYTHONPATH"] = str(REPOSITORY)
    with ExitStack() as stack:
        if plan.rounds > plan.s3_rounds:
            rounds = plan.rounds - plan.s3_rounds
            proof.run("disk", str(directory / "bucket"), environ, plan._replace(rounds=rounds))
        if plan.s3_rounds and not any(ledger.violations for _, ledger in proof.arenas):
            server = stack.enter_context(moto_server())
            server.make_bucket(S3_BUCKET)
            on_s3 = environ | {
                "AWS_ENDPOINT_URL_S3": server.endpoint,
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": server.access_key_id,
                "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
            }
            on_moto = plan._replace(
                rounds=plan.s3_rounds,
                streams=min(plan.streams, S3_STREAMS_MAX),
                megabytes=S3_ROUND_MEGABYTES * plan.s3_rounds,
            )
            proof.run("s3", f"s3://{S3_BUCKET}/bourn", on_s3, on_moto)
    return conclude(proof, options, plan, directory, seed)


def conclude(
    proof: Proof, options: argparse.Namespace, plan: Plan, directory: Path, seed: int
) -> int:
    """Say what came of it."""
    violations = [what for _, ledger in proof.arenas for what in ledger.violations]
    for what in violations:
        print(f"VIOLATION {what}")
    if violations:
        print(
            f"kept in {directory}; again: python -m tests.proof --rounds {plan.rounds} "
            f"--streams {plan.streams} --megabytes {plan.megabytes} --seed {seed}"
        )
    elif options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    kills = {target: sum(arena.kills[target] for arena, _ in proof.arenas) for target in TARGETS}
    shown = ", ".join(f"{count} {target}" for target, count in kills.items())
    written = sum(arena.records_written for arena, _ in proof.arenas)
    reads = sum(ledger.reads for _, ledger in proof.arenas)
    read = sum(ledger.records_read for _, ledger in proof.arenas)
    print(
        f"{proof.rounds} rounds, {written:,} records, {reads:,} reads of {read:,} records, "
        f"{sum(kills.values())} kills ({shown}), {len(violations)} violations"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

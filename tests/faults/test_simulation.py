"""Random lives of a store by seed, each with every promise kept; and the same life twice.

`BOURN_SIM_SEEDS=5000` lives more of them, `BOURN_SIM_FIRST=100` begins elsewhere.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bourn.bucket.faults import Fault
from tests.faults.simulation import Outcome, live

SEEDS = int(os.environ.get("BOURN_SIM_SEEDS", "60"))
FIRST = int(os.environ.get("BOURN_SIM_FIRST", "0"))
CHUNK = 10
CHUNKS = [
    range(first, min(first + CHUNK, FIRST + SEEDS)) for first in range(FIRST, FIRST + SEEDS, CHUNK)
]
ROOT = Path(__file__).parent.parent.parent


def report(outcome: Outcome) -> str:
    """What went wrong, and how to see it again."""
    return "\n".join(
        [
            f"seed {outcome.seed} broke promises:",
            *outcome.violations[:10],
            "once more, with everything that happens:",
            f"    python -m tests.faults.simulation {outcome.seed} --trace",
        ]
    )


@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"seeds {seeds[0]} to {seeds[-1]}")
def test_every_promise_is_kept_whatever_happens(seeds: range) -> None:
    struck: Counter[Fault] = Counter()
    acked = refused = unknown = seen = nodes = 0
    for seed in seeds:
        outcome = live(seed)
        assert not outcome.violations, report(outcome)
        for (_, fault), count in outcome.injected.items():
            struck[fault] += count
        acked += outcome.acked
        refused += outcome.refused
        unknown += outcome.unknown
        seen += outcome.seen
        nodes += outcome.nodes
    if len(seeds) == CHUNK:  # many enough that a run without these would be a sham
        assert set(+struck) == set(Fault)
        assert acked > 100 * CHUNK
        assert refused > 10 * CHUNK
        assert unknown > CHUNK
        assert seen > acked
        assert nodes > 4 * CHUNK


def test_a_seed_is_one_life_and_another_seed_is_another() -> None:
    digests = [live(seed).digest for seed in (FIRST, FIRST + 1, FIRST, FIRST + 1)]
    assert digests[:2] == digests[2:]
    assert digests[0] != digests[1]


def test_a_seed_is_the_same_life_in_another_process() -> None:
    """What strings hash to, and where objects lie, is different there."""
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.simulation", str(FIRST)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    outcome = live(FIRST)
    assert ran.stdout.split()[:2] == [outcome.digest, str(outcome.events)]


def test_lives_hold_what_a_store_goes_through() -> None:
    """Snapshots and their end, commits collected, deaths, take-overs, starts that fail."""
    wanted = {
        " creates catalog/",
        " deletes catalog/",
        " deletes wal/",
        " dies",
        "chaos: take over",
        "start failed",
        "session failed",
        "the outcome is unknown",
        "another writer took over",
        "churned is deleted",
        "tier: version",
        "merge: version",
        "vacuum: history/",
        " of history/0",
    }
    for seed in range(FIRST, FIRST + 40):
        lines = live(seed, keep_trace=True).lines or []
        wanted -= {what for what in wanted if any(what in line for line in lines)}
        if not wanted:
            return
    assert not wanted

import pytest

from tests.spark.sink_world import Rules, World, live, violations

SEEDS = 400
MUTATIONS = {
    "no position is asked for": Rules(matches=False),
    "every attempt goes by its own rows": Rules(agrees=False),
    "a manifest may be replaced": Rules(creates_only=False),
    "no manifest is kept": Rules(keeps_manifests=False),
    "the tails are read when the manifest is put": Rules(
        tails_come_first=False, keeps_manifests=False
    ),
    "no record is marked": Rules(marks=False),
}


def lives(rules: Rules, *, exclusive: bool, strangers: bool, seeds: int = SEEDS) -> list[str]:
    found: list[str] = []
    for seed in range(seeds):
        world = World(seed, rules, exclusive=exclusive, strangers=strangers)
        live(world, crashes=6)
        found += [f"seed {seed}: {each}" for each in violations(world)]
    return found


@pytest.mark.parametrize("strangers", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_every_row_comes_once_and_in_order_whoever_dies_or_wakes_up_late(exclusive, strangers):
    assert lives(Rules(), exclusive=exclusive, strangers=strangers) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_model_notices_that(name):
    assert lives(MUTATIONS[name], exclusive=False, strangers=False) != []


def test_the_model_notices_that_nobody_is_fenced_off():
    assert lives(Rules(fences=False), exclusive=True, strangers=False) != []

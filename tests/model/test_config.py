"""Configs: what holds where nothing was said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.model.config import (
    SYSTEM_DEFAULT,
    Age,
    DeleteOnEmpty,
    Infinite,
    ResolvedStreamConfig,
    ResolvedTimestamping,
    StreamConfig,
    Timestamping,
    TimestampMode,
    as_requested,
    resolve,
)
from tests.model.configs import resolved_configs, stream_configs

NOTHING = StreamConfig()
BASIN = StreamConfig(
    storage_class="standard",
    retention_policy=Infinite(),
    timestamping=Timestamping(TimestampMode.ARRIVAL, uncapped=True),
    delete_on_empty=DeleteOnEmpty(60),
)


def test_a_stream_that_says_nothing_in_a_basin_that_says_nothing_gets_the_system_defaults() -> None:
    assert resolve(NOTHING, NOTHING) == ResolvedStreamConfig(
        storage_class="express",
        retention_policy=Age(604_800),
        timestamping=ResolvedTimestamping(TimestampMode.CLIENT_PREFER, uncapped=False),
        delete_on_empty=DeleteOnEmpty(0),
    )


def test_a_stream_that_says_nothing_gets_the_basins_default() -> None:
    assert as_requested(resolve(NOTHING, BASIN)) == BASIN


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (StreamConfig(storage_class="express"), ("express", Infinite(), "arrival", True, 60)),
        (StreamConfig(retention_policy=Age(1)), ("standard", Age(1), "arrival", True, 60)),
        (
            StreamConfig(timestamping=Timestamping(mode=TimestampMode.CLIENT_REQUIRE)),
            ("standard", Infinite(), "client-require", True, 60),
        ),
        (
            StreamConfig(timestamping=Timestamping(uncapped=False)),
            ("standard", Infinite(), "arrival", False, 60),
        ),
        (
            StreamConfig(delete_on_empty=DeleteOnEmpty(0)),
            ("standard", Infinite(), "arrival", True, 0),
        ),
    ],
)
def test_each_member_falls_back_by_itself(
    asked: StreamConfig, expected: tuple[object, ...]
) -> None:
    got = resolve(asked, BASIN)
    assert expected == (
        got.storage_class,
        got.retention_policy,
        got.timestamping.mode,
        got.timestamping.uncapped,
        got.delete_on_empty.min_age_secs,
    )


@given(resolved_configs, stream_configs)
def test_a_fully_asked_config_ignores_the_basins_default(
    config: ResolvedStreamConfig, basin_default: StreamConfig
) -> None:
    assert resolve(as_requested(config), basin_default) == config


@given(stream_configs, stream_configs)
def test_resolving_what_is_resolved_changes_nothing(
    asked: StreamConfig, basin_default: StreamConfig
) -> None:
    once = resolve(asked, basin_default)
    assert resolve(as_requested(once), NOTHING) == once


@given(stream_configs, stream_configs)
def test_every_member_comes_from_the_stream_the_basin_or_the_system(
    asked: StreamConfig, basin_default: StreamConfig
) -> None:
    got = as_requested(resolve(asked, basin_default))
    system = as_requested(SYSTEM_DEFAULT)
    for member in ("storage_class", "retention_policy", "delete_on_empty"):
        layers = [getattr(layer, member) for layer in (asked, basin_default, system)]
        assert getattr(got, member) == next(value for value in layers if value is not None)
    for member in ("mode", "uncapped"):
        layers = [getattr(layer.timestamping, member) for layer in (asked, basin_default, system)]
        assert getattr(got.timestamping, member) == next(v for v in layers if v is not None)


@given(st.lists(resolved_configs, min_size=2, max_size=2))
def test_equal_configs_hash_alike(configs: list[ResolvedStreamConfig]) -> None:
    first, second = configs
    assert (first == second) == (len({first, second}) == 1)

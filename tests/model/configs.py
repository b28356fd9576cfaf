"""Strategies for configs, as values and as the JSON that clients send."""

from typing import Any

from hypothesis import strategies as st

from bourn.limits import U64_MAX
from bourn.model.config import (
    Age,
    BasinConfig,
    Cipher,
    DeleteOnEmpty,
    Infinite,
    ResolvedStreamConfig,
    ResolvedTimestamping,
    StreamConfig,
    Timestamping,
    TimestampMode,
)

u64 = st.integers(0, U64_MAX)
ages = st.one_of(st.integers(1, 100), st.integers(1, U64_MAX))
storage_classes = st.sampled_from(["standard", "express", "glacier", "é" * 32])
policies = st.one_of(st.builds(Age, ages), st.just(Infinite()))
modes = st.sampled_from(TimestampMode)
empties = st.builds(DeleteOnEmpty, st.one_of(st.integers(0, 3), u64))

stream_configs = st.builds(
    StreamConfig,
    storage_class=st.none() | storage_classes,
    retention_policy=st.none() | policies,
    timestamping=st.builds(Timestamping, st.none() | modes, st.none() | st.booleans()),
    delete_on_empty=st.none() | empties,
)
resolved_configs = st.builds(
    ResolvedStreamConfig,
    storage_class=storage_classes,
    retention_policy=policies,
    timestamping=st.builds(ResolvedTimestamping, modes, st.booleans()),
    delete_on_empty=empties,
)
basin_configs = st.builds(
    BasinConfig,
    default_stream_config=stream_configs,
    stream_cipher=st.none() | st.sampled_from(Cipher),
    create_stream_on_append=st.booleans(),
    create_stream_on_read=st.booleans(),
)


def _object(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object in which each member is absent, null or a value."""
    optional = {name: st.none() | value for name, value in members.items()}
    unknown = st.fixed_dictionaries({}, optional={"someday": st.just({"a": [1]})})
    return st.builds(dict.__or__, st.fixed_dictionaries({}, optional=optional), unknown)


policy_json = st.one_of(st.builds(lambda secs: {"age": secs}, ages), st.just({"infinite": {}}))
stream_config_json = _object(
    storage_class=storage_classes,
    retention_policy=policy_json,
    timestamping=_object(mode=modes, uncapped=st.booleans()),
    delete_on_empty=_object(min_age_secs=st.one_of(st.integers(0, 3), u64)),
)
basin_config_json = _object(
    default_stream_config=stream_config_json,
    stream_cipher=st.sampled_from(Cipher),
    create_stream_on_append=st.booleans(),
    create_stream_on_read=st.booleans(),
)

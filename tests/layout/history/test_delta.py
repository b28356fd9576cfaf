"""The table's log: what we write is what we read, Delta's own readers agree, damage is named."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import Damaged, NewerFormat
from bourn.layout.history.checkpoint import decode_checkpoint
from bourn.layout.history.delta import (
    COMMIT_ID,
    WAL_APP_ID,
    Actions,
    Add,
    MetaData,
    Protocol,
    Remove,
    SegmentName,
    TableState,
    Txn,
    checkpoint_key,
    decode_actions,
    delta_key,
    encode_actions,
    from_checkpoint,
    parse_checkpoint_key,
    parse_delta_key,
    parse_segment_key,
    replay,
)
from bourn.layout.history.facts import SegmentFacts, add_of, first_actions, remove_of
from bourn.layout.history.schema import SCHEMA

GOLDEN = Path(__file__).parent.parent.parent / "golden"
TABLE_ID = "5d2f6f0c-0000-4000-8000-0123456789ab"
KEY = delta_key(3)

texts = st.text(max_size=20)
counts = st.integers(0, 2**63 - 1)
signed = st.integers(-(2**63), 2**63 - 1)
pairs = st.tuples(signed, signed).map(lambda two: (min(two), max(two)))


@st.composite
def facts(draw):
    first = draw(st.integers(0, 10**15))
    end = first + draw(st.integers(1, 10**6))
    nonce = f"{draw(st.integers(0, 2**64 - 1)):016x}"
    return SegmentFacts(
        str(SegmentName(first, end, draw(st.integers(0, 1200)), nonce)),
        first,
        end,
        draw(counts),
        draw(counts),
        draw(counts),
        draw(counts),
        draw(pairs),
        draw(pairs),
        draw(pairs),
        draw(pairs),
        draw(pairs.map(lambda two: (abs(two[0]), abs(two[1])))),
        draw(st.integers(1, 9)),
    )


adds = facts().map(lambda found: add_of(found, 1_700_000_000_000))


def metadata(**changes) -> MetaData:
    _, made = first_actions(TABLE_ID, 1)
    return msgspec.structs.replace(made, **changes)


def protocol(reader: int = 1) -> Protocol:
    return Protocol(min_reader_version=reader, min_writer_version=2)


def segment(number: int) -> SegmentFacts:
    name = SegmentName(number, number + 1, 0, f"{number:016x}")
    bounds = (number, number)
    arrivals = (1_700_000_000_123_000, 1_700_000_001_000_000)
    return SegmentFacts(
        str(name), number, number + 1, 100, 10, 5, 50, bounds, bounds, bounds, arrivals, bounds
    )


def decoded(data: bytes) -> Actions | str:
    """What the bytes say, or the key that their damage is said of."""
    try:
        return decode_actions(data, KEY)
    except Damaged as damaged:
        return damaged.key


def begun() -> TableState:
    return replay(TableState(), [(0, Actions(protocol=protocol(), metadata=metadata()))])


@given(
    st.lists(adds, max_size=4).map(tuple),
    st.lists(st.builds(Txn, app_id=texts, version=counts, last_updated=st.none() | counts)).map(
        tuple
    ),
    st.dictionaries(texts, texts, max_size=3),
    st.booleans(),
)
def test_a_version_is_read_as_it_was_written(added, txns, info, first):
    removed = tuple(remove_of(add, 5) for add in added)
    written = Actions(
        protocol=protocol() if first else None,
        metadata=metadata() if first else None,
        adds=added,
        removes=removed,
        txns=txns,
        info={**info, COMMIT_ID: "x"},
    )
    assert decode_actions(encode_actions(written), KEY) == written


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_bytes_that_are_no_version_are_named_damage(data):
    assert isinstance(decoded(data), Actions | str)


@given(adds, st.data())
def test_a_version_that_was_altered_is_never_read_wrongly_typed(add, data):
    encoded = bytearray(encode_actions(Actions(adds=(add,), info={"a": "b"})))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    found = decoded(bytes(encoded))
    if isinstance(found, Actions):
        for one in found.adds:
            assert isinstance(one.path, str)
            assert isinstance(one.size, int)
    else:
        assert found == KEY


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'{"add": {"path": "a"}}',
        b'{"add": []}',
        b'{"txn": {"appId": 3, "version": 1}}',
        b'{"txn": {"appId": "a", "version": "1"}}',
        b'{"txn": {"appId": "a", "version": 1e400}}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"commitInfo": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    ],
)
def test_hostile_lines_are_named_damage(line):
    with pytest.raises(Damaged, match=KEY):
        decode_actions(line, KEY)


def test_what_is_said_twice_or_not_at_all_is_damage():
    one = encode_actions(Actions(protocol=protocol()))
    with pytest.raises(Damaged, match="2 times"):
        decode_actions(one + one, KEY)
    with pytest.raises(Damaged, match="no action"):
        decode_actions(b"\n\n", KEY)


def test_actions_that_we_have_no_use_for_are_passed_over():
    more = b'{"domainMetadata":{"domain":"x","configuration":"{}","removed":false}}\n'
    wanted = Actions(adds=(add_of(segment(1), 5),), info={"a": 1})
    assert decode_actions(more + encode_actions(wanted) + more, KEY) == wanted


def test_replay_keeps_what_is_live_and_how_far_the_log_has_come():
    one, two, three = (add_of(segment(n), 5) for n in (1, 2, 3))
    state = replay(
        begun(),
        [
            (1, Actions(adds=(one, two), txns=(Txn(app_id=WAL_APP_ID, version=3),))),
            (2, Actions(adds=(three,), removes=(remove_of(one, 6), remove_of(two, 6)))),
        ],
    )
    assert list(state.live) == [three.path]
    assert (state.version, state.end_ordinal) == (2, 3)
    assert begun().live == {}, "a state is never changed"


@pytest.mark.parametrize(
    ("actions", "version", "what"),
    [
        (Actions(info={"a": 1}), 2, "missing"),
        (Actions(txns=(Txn(app_id=WAL_APP_ID, version=-1),)), 1, "back to -1"),
        (Actions(metadata=metadata(partition_columns=["basin"])), 1, "partitions"),
        (Actions(adds=(msgspec.structs.replace(add_of(segment(1), 5), path="../x"),)), 1, "outsi"),
        (Actions(adds=(msgspec.structs.replace(add_of(segment(1), 5), path="s3://x"),)), 1, "out"),
        (Actions(adds=(msgspec.structs.replace(add_of(segment(1), 5), size=-1),)), 1, "cannot"),
        (
            Actions(adds=(msgspec.structs.replace(add_of(segment(1), 5), deletion_vector={}),)),
            1,
            "cannot",
        ),
    ],
)
def test_a_version_that_does_not_follow_or_that_we_cannot_read_is_damage(actions, version, what):
    with pytest.raises(Damaged, match=what) as raised:
        replay(begun(), [(version, actions)])
    assert raised.value.key == delta_key(version)


def test_a_table_that_begins_without_saying_what_it_is_is_damage():
    with pytest.raises(Damaged, match="without saying"):
        replay(TableState(), [(0, Actions(protocol=protocol()))])


def test_a_table_that_was_given_newer_features_is_refused():
    with pytest.raises(NewerFormat):
        replay(begun(), [(1, Actions(protocol=protocol(3)))])


@given(st.integers(0, 2**63 - 1))
def test_keys_name_versions_in_order(version):
    assert parse_delta_key(delta_key(version)) == version
    assert parse_checkpoint_key(checkpoint_key(version)) == version
    assert parse_delta_key(checkpoint_key(version)) is None
    if version < 2**63 - 1:
        assert checkpoint_key(version) < delta_key(version) < checkpoint_key(version + 1)


@given(
    st.integers(0, 10**14), st.integers(0, 10**14), st.integers(0, 5000), st.integers(0, 2**64 - 1)
)
def test_segments_are_named_by_what_they_hold(first, end, part, nonce):
    name = SegmentName(first, end, part, f"{nonce:016x}")
    assert parse_segment_key(name.key) == parse_segment_key(name.index_key) == name
    assert parse_segment_key(name.key + "x") is None
    assert parse_segment_key(str(name)) is None


def test_tags_are_numbers_or_damage():
    add = add_of(segment(7), 5)
    assert (add.tag("first_ordinal"), add.tag("end_ordinal"), add.tag("index_bytes")) == (7, 8, 10)
    assert add.tag("rows") == 5
    assert add.index_key == f"history/_index/{segment(7).name}.idx"
    for tags in (None, {}, {"bourn.rows": "x"}, {"bourn.rows": None}, {"bourn.rows": "-1"}):
        with pytest.raises(Damaged, match=add.key):
            msgspec.structs.replace(add, tags=tags).tag("rows")


def test_statistics_say_the_bounds_of_what_a_reader_may_pass_over():
    stats = json.loads(add_of(segment(7), 5).stats or "")
    assert stats["numRecords"] == 5
    assert stats["minValues"] == {
        "stream_id": 7,
        "seq_num": 7,
        "timestamp": 7,
        "arrival": "2023-11-14T22:13:20.123Z",
    }
    assert stats["maxValues"]["arrival"] == "2023-11-14T22:13:21.000Z"


def test_deltas_own_reader_finds_our_columns_in_the_schema():
    _, made = first_actions(TABLE_ID, 1)
    theirs: Any = Schema.from_json(made.schema_string).to_arrow()
    arrow = pa.schema(theirs)
    assert arrow.names == SCHEMA.names
    assert [field.type for field in arrow][:6] == [field.type for field in SCHEMA][:6]
    assert not any(field.nullable for field in arrow)


def samples() -> dict[str, bytes]:
    made, described = first_actions(TABLE_ID, 1_700_000_000_000)
    one, two = add_of(segment(1), 1_700_000_000_001), add_of(segment(2), 1_700_000_000_002)
    txn = Txn(app_id=WAL_APP_ID, version=3, last_updated=1_700_000_000_002)
    return {
        "0": encode_actions(Actions(protocol=made, metadata=described, info={COMMIT_ID: "a"})),
        "1": encode_actions(Actions(adds=(one, two), txns=(txn,), info={COMMIT_ID: "b"})),
        "2": encode_actions(
            Actions(removes=(remove_of(one, 1_700_000_000_003, data_change=False),))
        ),
    }


def test_the_format_of_today_is_the_golden_one():
    golden = (GOLDEN / "history_delta_v1.txt").read_bytes()
    assert b"---\n".join(samples().values()) == golden
    versions = [decode_actions(part, KEY) for part in golden.split(b"---\n")]
    state = replay(TableState(), enumerate(versions))
    assert (state.version, state.end_ordinal, len(state.live)) == (2, 3, 1)


def test_a_checkpoint_of_deltalake_says_the_same_as_the_versions(tmp_path):
    for version, data in enumerate(samples().values()):
        path = tmp_path / delta_key(version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    DeltaTable(str(tmp_path / "history")).create_checkpoint()
    data = (tmp_path / checkpoint_key(2)).read_bytes()
    state = replay(
        TableState(),
        [(n, decode_actions(part, KEY)) for n, part in enumerate(samples().values())],
    )
    found = from_checkpoint(2, decode_checkpoint(data, checkpoint_key(2)))
    assert found.live == state.live
    assert (found.txns, found.version, found.protocol) == (state.txns, 2, state.protocol)
    assert found.metadata == state.metadata


@given(st.binary(max_size=300))
def test_bytes_that_are_no_checkpoint_are_named_damage(data):
    with pytest.raises(Damaged, match=checkpoint_key(4)):
        decode_checkpoint(data, checkpoint_key(4))


def test_removes_carry_what_vacuum_needs():
    add: Add = add_of(segment(1), 5)
    removed: Remove = remove_of(add, 9)
    assert (removed.path, removed.size, removed.deletion_timestamp) == (add.path, add.size, 9)

"""The snapshot object: what goes in comes out, and nothing else ever does."""

import io
import struct
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from threading import Event

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy import arange, array, int64

from bourn.errors import Damaged, NewerFormat
from bourn.layout import snapshot as module
from bourn.layout.columns import LARGE_BYTES_MIN, SCHEMA, joined
from bourn.layout.keys import LogPosition, snapshot_key
from bourn.layout.runs import NEVER_S, RUN_BYTES, RunIndex
from bourn.layout.snapshot import (
    Snapshot,
    SnapshotMeta,
    StreamColumns,
    StreamImage,
    decode_snapshot,
    encode_snapshot,
)
from bourn.limits import U64_MAX
from tests.layout.images import image, images, in_order

GOLDEN = Path(__file__).parents[1] / "golden"
POSITION = LogPosition(3, 12)
KEY = snapshot_key(POSITION)
META = SnapshotMeta(
    position=POSITION,
    next_ordinal=52,
    bases=[(1, 0), (3, 40)],
    next_resource_id=1000,
    created_at_ms=1_700_000_000_000,
    basins=[b"basin one", b"basin two"],
    extra={"tokens": b"\x00\xff"},
)


def golden_images() -> list[StreamImage]:
    """Return the streams in the golden file: one with everything, one new, one at every bound."""
    runs = RunIndex()
    runs.append(5, 2000, 1500, 41, 64, 300, 10, 250, 1_700_600_000)
    runs.append(20, 3000, 2000, 43, 4096, 120, 2, 80, NEVER_S)
    return [
        StreamImage(
            id=7,
            basin_id=1,
            name="tenant-1/ü",
            row=b"packed \x00 row",
            next_seq_num=22,
            last_timestamp=3000,
            fencing_token="writer-ß",
            trim_point=6,
            last_write_ms=1_699_999_999_999,
            runs=runs.to_bytes(),
            next_check_s=1_700_600_000,
        ),
        image(8, 1, "tenant-2", last_write_ms=5),
        image(
            U64_MAX,
            U64_MAX,
            "z",
            row=b"",
            next_seq_num=U64_MAX,
            last_timestamp=U64_MAX,
            trim_point=U64_MAX,
            last_write_ms=U64_MAX,
            next_check_s=0,
        ),
    ]


SMALL = encode_snapshot(META, StreamColumns.of(golden_images()))


def contents(snapshot: Snapshot) -> tuple[SnapshotMeta, list[StreamImage]]:
    columns = snapshot.columns
    return snapshot.meta, [columns.image(at) for at in range(len(columns))]


def parts(data: bytes) -> tuple[bytes, bytes]:
    """Cut an object into what stands before and behind the seal."""
    footer_bytes = struct.unpack("<I", data[-8:-4])[0]
    footer_at = len(data) - 8 - footer_bytes
    return data[: footer_at - 16], data[footer_at:]


def sealed_again(data: bytes) -> bytes:
    """Give a changed object a right seal, as a faulty writer would."""
    return module._sealed(memoryview(b"".join(parts(data))))


def parquet(table: pa.Table, value: str | None) -> bytes:
    """Write a sealed Parquet file of any columns, with any metadata."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
        if value is not None:
            writer.add_key_value_metadata({"bourn": value})
    return module._sealed(memoryview(sink.getvalue()))


def meta_value(data: bytes) -> str:
    return (pq.ParquetFile(io.BytesIO(data)).metadata.metadata or {})[b"bourn"].decode()


@settings(deadline=None)
@given(images())
def test_a_snapshot_survives_the_round_trip(streams: list[StreamImage]) -> None:
    data = encode_snapshot(META, StreamColumns.of(streams))
    assert contents(decode_snapshot(data, KEY)) == (META, in_order(streams))


def test_the_golden_file_still_says_what_it_said() -> None:
    """Its container is Parquet's, whose bytes differ between writers; what we define is exact.

    Born by `(GOLDEN / "snapshot_v1.parquet").write_bytes(SMALL)`.
    """
    golden = (GOLDEN / "snapshot_v1.parquet").read_bytes()
    assert contents(decode_snapshot(golden, KEY)) == (META, golden_images())
    assert meta_value(SMALL) == meta_value(golden)
    assert sealed_again(golden) == golden


def test_any_parquet_reader_opens_it_and_finds_the_columns_by_name() -> None:
    file = pq.ParquetFile(io.BytesIO(SMALL), page_checksum_verification=True)
    assert file.read().to_pylist() == [
        msgspec.to_builtins(i, builtin_types=(bytes,)) for i in golden_images()
    ]
    assert [field.name for field in file.schema_arrow] == SCHEMA.names
    assert not any(field.nullable for field in file.schema_arrow)
    assert all(value.isascii() for value in (file.metadata.metadata or {}).values())
    column = file.metadata.row_group(0).column(0)
    assert (file.metadata.num_row_groups, column.compression) == (1, "ZSTD")


def test_the_result_keeps_nothing_of_the_object() -> None:
    data = bytes(bytearray(SMALL))
    before = sys.getrefcount(data)
    snapshot = decode_snapshot(data, KEY)
    pause = Event()
    for _ in range(1000):  # a thread of Arrow's may be the last to let go, a moment later
        if sys.getrefcount(data) == before:
            break
        pause.wait(0.01)
    assert sys.getrefcount(data) == before
    assert len(snapshot.columns) == 3


def test_a_flipped_bit_is_found_wherever_it_stands() -> None:
    for at in range(len(SMALL)):
        for bit in range(8):
            flipped = bytearray(SMALL)
            flipped[at] ^= 1 << bit
            with pytest.raises(Damaged) as caught:
                decode_snapshot(bytes(flipped), KEY)
            assert caught.value.key == KEY


@settings(deadline=None)
@given(st.integers(0, len(SMALL) - 1), st.booleans())
def test_a_part_of_a_snapshot_is_refused(at: int, from_the_end: bool) -> None:
    part = SMALL[at + 1 :] if from_the_end else SMALL[:at]
    with pytest.raises(Damaged, match=KEY):
        decode_snapshot(part, KEY)


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", b"PAR1", SMALL, SMALL[-200:]]))
def test_random_bytes_are_refused_also_around_a_snapshot(data: bytes, other: bytes) -> None:
    for hostile in (data, data + b"\x00" + other, other + b"\x00" + data):
        with pytest.raises(Damaged, match=KEY):
            decode_snapshot(hostile, KEY)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, len(SMALL) - 9), st.integers(0, 7))
def test_behind_the_seal_a_flipped_bit_never_gives_other_values(at: int, bit: int) -> None:
    """The seal spares Parquet's parser; this is what holds where even the seal was made wrong."""
    flipped = bytearray(SMALL)
    flipped[at] ^= 1 << bit
    try:
        snapshot = decode_snapshot(sealed_again(bytes(flipped)), KEY)
    except Damaged:
        return
    assert contents(snapshot) == (META, golden_images())


def test_a_snapshot_of_a_newer_version_is_refused_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "VERSION", 2)
    newer = encode_snapshot(META, StreamColumns.of([]))
    monkeypatch.undo()
    with pytest.raises(NewerFormat, match=f"{KEY} has version 2, so a newer Bourn wrote it"):
        decode_snapshot(newer, KEY)


def test_a_newer_version_is_known_before_its_metadata_are_understood() -> None:
    envelope = msgspec.msgpack.encode([9, 0, "of a shape that this version cannot know", 4])
    value = b64encode(module._checksummed(envelope)).decode()
    with pytest.raises(NewerFormat):
        decode_snapshot(parquet(pa.table({"other": [1]}), value), KEY)


def test_the_object_must_be_the_one_that_its_key_names() -> None:
    with pytest.raises(Damaged, match="holds the state at"):
        decode_snapshot(SMALL, snapshot_key(LogPosition(3, 13)))


def resealed_meta(change: object) -> str:
    """Wrap other metadata as the format asks, around the right columns."""
    envelope = msgspec.msgpack.decode(b64decode(meta_value(SMALL))[8:])
    return b64encode(
        module._checksummed(msgspec.msgpack.encode([envelope[0], envelope[1], change]))
    ).decode()


def table() -> pa.Table:
    return pq.read_table(io.BytesIO(SMALL))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "no snapshot"),
        ("not base64", "no snapshot"),
        ("AAAA", "fails its checksum"),
        (b64encode(module._checksummed(b"\xc1")).decode(), "cannot be read"),
        (b64encode(module._checksummed(msgspec.msgpack.encode([0, 0, {}]))).decode(), "version 0"),
        (resealed_meta({}), "cannot be read"),
        (resealed_meta(replace(META, next_ordinal=-1)), "cannot be read"),
        (resealed_meta(replace(META, bases=[(3, 40), (1, 0)])), "out of order"),
    ],
)
def test_metadata_that_are_not_ours_are_refused(value: str | None, what: str) -> None:
    with pytest.raises(Damaged, match=what):
        decode_snapshot(parquet(table(), value), KEY)


def test_other_columns_are_refused() -> None:
    for other in (
        table().drop_columns(["runs"]),
        table().rename_columns([*SCHEMA.names[:-1], "next_check_ms"]),
        table().cast(pa.schema([pa.field(f.name, f.type, nullable=True) for f in SCHEMA])),
    ):
        with pytest.raises(Damaged, match="its columns are"):
            decode_snapshot(parquet(other, meta_value(SMALL)), KEY)


def test_streams_of_another_snapshot_are_refused() -> None:
    with pytest.raises(Damaged, match="the streams fail their checksum"):
        decode_snapshot(parquet(table().slice(1), meta_value(SMALL)), KEY)


def test_many_row_groups_are_read_as_one() -> None:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SCHEMA) as writer:
        writer.write_table(table(), row_group_size=1)
        writer.add_key_value_metadata({"bourn": meta_value(SMALL)})
    data = module._sealed(memoryview(sink.getvalue()))
    assert contents(decode_snapshot(data, KEY)) == (META, golden_images())


def taken(order: list[int]) -> StreamColumns:
    columns = StreamColumns.of(golden_images())
    return columns.splice(StreamColumns.of([]), array(order, int64))


def with_column(name: str, values: "pa.Array[pa.Scalar[pa.DataType]]") -> StreamColumns:
    arrays = list(StreamColumns.of(golden_images()).arrays)
    arrays[SCHEMA.get_field_index(name)] = values
    return StreamColumns(arrays)


def malformed_name() -> StreamColumns:
    raw = pa.array([b"\xff", b"b", b"z"], pa.large_binary())
    return with_column("name", pa.Array.from_buffers(pa.large_string(), 3, raw.buffers()))


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (taken([1, 0, 2]), "not in the order"),
        (taken([0, 2, 1]), "not in the order"),
        (taken([0, 0, 1]), "not in the order"),
        (with_column("id", pa.array([7, 8, 7], pa.uint64())), "two streams have one id"),
        (with_column("runs", pa.array([b"", b"x" * 55, b""], pa.large_binary())), "cut short"),
        (with_column("runs", pa.array([b"x", b"x" * 55, b""], pa.large_binary())), "cut short"),
        (with_column("runs", pa.array([b"\xff" * 56, b"", b""], pa.large_binary())), "impossible"),
        (malformed_name(), "column name holds malformed values"),
    ],
)
def test_values_that_break_the_format_are_refused_though_their_checksums_are_right(
    columns: StreamColumns, what: str
) -> None:
    with pytest.raises(Damaged, match=what):
        decode_snapshot(encode_snapshot(META, columns), KEY)


@given(values=st.lists(st.binary(max_size=40), max_size=20))
def test_large_values_become_the_column_that_arrow_makes_of_them(values: list[bytes]) -> None:
    column = joined(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.large_binary()))


@settings(deadline=None)
@given(data=st.data())
def test_rows_of_two_are_gathered_whether_their_values_are_large_or_small(
    data: st.DataObject,
) -> None:
    rows = st.sampled_from([b"", b"row", b"r" * LARGE_BYTES_MIN, b"s" * 3 * LARGE_BYTES_MIN])
    sizes = data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    both = [image(at, 1, f"n-{at}", row=data.draw(rows)) for at in range(sum(sizes))]
    mine, others = both[: sizes[0]], both[sizes[0] :]
    are_others = not both or data.draw(st.sampled_from([False, True]))
    orders = st.lists(st.sampled_from(range(len(both)))) if both else st.just([])
    order = list(range(len(mine), len(both))) if are_others else data.draw(orders)
    found = StreamColumns.of(mine).splice(StreamColumns.of(others), array(order, int64))
    assert [found.image(at) for at in range(len(found))] == [both[row] for row in order]
    for column in found.arrays:
        column.validate(full=True)


def test_streams_with_many_runs_come_back() -> None:
    runs = RunIndex()
    for number in range(3 * LARGE_BYTES_MIN // RUN_BYTES):
        runs.append(number, number, number, number, 64, 100, 1, 90, 1_700_000_000 + number)
    streams = [image(1, 1, "a", runs=runs.to_bytes()), image(2, 1, "b")]
    columns = StreamColumns.of(streams)
    assert [columns.image(0), columns.image(1)] == streams
    assert decode_snapshot(encode_snapshot(META, columns), KEY).columns.image(0) == streams[0]


def test_the_checksum_sees_where_one_value_ends_and_the_next_begins() -> None:
    one = StreamColumns.of([image(1, 1, "a", row=b"xy"), image(2, 1, "b", row=b"z")])
    other = StreamColumns.of([image(1, 1, "a", row=b"x"), image(2, 1, "b", row=b"yz")])
    assert one.checksum() != other.checksum()


def changed(value: int | str | bytes) -> int | str | bytes:
    if isinstance(value, int):
        return value - 1 if value else 1
    return value + "x" if isinstance(value, str) else value + b"x"


@pytest.mark.parametrize("name", SCHEMA.names)
@settings(deadline=None, max_examples=15)
@given(streams=images(most=4).filter(bool), data=st.data())
def test_the_checksum_sees_every_field(
    name: str, streams: list[StreamImage], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(streams) - 1))
    others = streams.copy()
    others[at] = replace(streams[at], **{name: changed(getattr(streams[at], name))})
    assert StreamColumns.of(others).checksum() != StreamColumns.of(streams).checksum()


def test_columns_of_slices_are_the_same_as_columns_of_copies() -> None:
    columns = StreamColumns.of(golden_images())
    sliced = StreamColumns([values[1:] for values in columns.arrays])
    copied = columns.splice(StreamColumns.of([]), arange(1, 3))
    assert sliced.checksum() == copied.checksum()
    assert [sliced.image(at) for at in range(2)] == golden_images()[1:]


def test_columns_must_be_complete() -> None:
    arrays = list(StreamColumns.of(golden_images()).arrays)
    with pytest.raises(ValueError, match="not those of the schema"):
        StreamColumns(arrays[:-1])
    with pytest.raises(ValueError, match="not complete"):
        StreamColumns([*arrays[:-1], arrays[-1][1:]])
    with pytest.raises(ValueError, match="not complete"):
        StreamColumns([*arrays[:-1], pa.array([1, None, 3], pa.uint32())])

"""What a sink takes: columns, rows and options, and what it says of others."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bourn.layout.arrow import HEADERS
from bourn.layout.codec import decode_append_input, decode_sequenced
from bourn.limits import BATCH_METERED_BYTES_MAX
from bourn.spark.options import OptionError
from bourn.spark.options_sink import SINK_OPTIONS, SinkOptions, parse_sink_options
from bourn.spark.sink import gathered
from bourn.spark.sink_manifest import Region
from bourn.spark.sink_parts import (
    Marking,
    RowLimits,
    checksum,
    decode_region,
    encode_part,
    metered_sizes,
)
from bourn.spark.sink_protocol import Marker
from bourn.spark.sink_rows import BadColumns, BadRow, RowCheck, check_columns


def pairs(kind: DataType, names: str = "name value") -> DataType:
    return ArrayType(StructType([StructField(name, kind) for name in names.split()]))


KINDS = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "time": TimestampType(),
    "map": MapType(StringType(), StringType()),
    "pairs": pairs(BinaryType()),
    "texts": pairs(StringType()),
    "wrong": pairs(StringType(), "a b"),
}
ALL = "stream string, body binary, headers pairs, timestamp long"


def schema(text: str) -> StructType:
    fields = [each.split() for each in text.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in fields])


FIELDS: "list[pa.Field[Any]]" = [
    pa.field("stream", pa.string()),
    pa.field("body", pa.binary()),
    pa.field("headers", HEADERS),
    pa.field("timestamp", pa.int64()),
]
ARROW = pa.schema(FIELDS)
BASIC = {"basin": "my-basin", "endpoint": "http://127.0.0.1:1"}
GOOD: dict[str, object] = {"stream": "s", "body": b"x", "headers": None, "timestamp": None}


def check(ddl: str, stream: str = "") -> None:
    check_columns(schema(ddl), stream)


@pytest.mark.parametrize(
    ("ddl", "stream", "text"),
    [
        ("body long", "s", "column `body` is bigint, not binary or string"),
        ("body string", "", "there is no column `stream`: add one, or set the option stream"),
        ("stream string", "", "there is no column `body`"),
        ("stream string, body string", "s", "drop one of them"),
        ("stream binary, body string", "", "column `stream` is binary, not string"),
        ("stream string, body string, colour int", "", "column `colour` has no place"),
        ("stream string, body string, timestamp double", "", "`timestamp` is double"),
        ("stream string, body string, headers map", "", "`headers` is map<"),
        ("stream string, body string, headers wrong", "", "`headers`"),
    ],
)
def test_a_column_that_is_wrong_is_named(ddl, stream, text):
    with pytest.raises(BadColumns) as raised:
        check(ddl, stream)
    assert text in str(raised.value)


def test_what_the_source_gives_can_be_written_as_it_is():
    check("basin string, seq_num long, metered_bytes int, " + ALL)
    check("body string, timestamp time, headers texts", "s")


def plain(*rows: dict[str, object], ddl: str = ALL) -> pa.RecordBatch:
    shape = check_columns(schema(ddl), "")
    return RowCheck(shape, 3).plain(pa.RecordBatch.from_pylist(list(rows), ARROW))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"stream": None}, "row 1 of partition 3, for stream None, has a null `stream`"),
        ({"stream": ""}, "row 1 of partition 3, for stream '', has no name of a stream"),
        ({"stream": ".."}, "for stream '..', has no name of a stream"),
        ({"stream": "x" * 513}, "has no name of a stream"),
        ({"body": None}, "row 1 of partition 3, for stream 's', has a null `body`"),
        ({"body": b"x" * 1_048_569}, "has a record of 1048577 metered bytes: at most 1048576"),
        ({"headers": [{"name": b"", "value": b"trim"}]}, "has a header without a name"),
        ({"headers": [{"name": None, "value": b"v"}]}, "has a header without a name"),
    ],
)
def test_a_row_that_no_stream_can_take_is_named(wrong, text):
    with pytest.raises(BadRow) as raised:
        plain(GOOD, GOOD | wrong)
    assert text in str(raised.value)


def test_rows_are_counted_over_all_batches_of_a_partition():
    shape = check_columns(schema(ALL), "")
    good = pa.RecordBatch.from_pylist([GOOD] * 10, ARROW)
    bad = pa.RecordBatch.from_pylist([GOOD, GOOD | {"body": None}], ARROW)
    with pytest.raises(BadRow, match="row 11 of partition 0"):
        list(gathered(iter([good, bad]), RowCheck(shape, 0)))


def test_a_time_before_1970_is_refused_and_others_become_milliseconds():
    shape = check_columns(schema("stream string, body string, timestamp time"), "")
    kind = pa.timestamp("us", "UTC")
    names = ["stream", "body", "timestamp"]

    def rows(micros: int | None) -> pa.RecordBatch:
        columns: list[pa.Array[Any]] = [
            pa.array(["s"]),
            pa.array(["b"]),
            pa.array([micros], pa.int64()).cast(kind),
        ]
        return pa.RecordBatch.from_arrays(columns, names)

    made = [RowCheck(shape, 0).plain(rows(micros)) for micros in (0, 1_234_567, None)]
    assert [each.column("timestamp")[0].as_py() for each in made] == [0, 1234, None]
    with pytest.raises(BadRow, match="a timestamp before 1970"):
        RowCheck(shape, 0).plain(rows(-1_000_000))


headers = st.none() | st.lists(
    st.fixed_dictionaries({"name": st.binary(min_size=1, max_size=4), "value": st.binary()}),
    max_size=3,
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "stream": st.sampled_from(("a", "b", "ü")),
            "body": st.binary(max_size=40),
            "headers": headers,
            "timestamp": st.none() | st.integers(-(2**63), 2**63 - 1),
        }
    ),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(rows, st.integers(1, 5), st.booleans(), st.integers(60, 200))
def test_what_is_staged_is_what_is_appended_and_only_the_marker_is_added(
    given_rows, records_max, is_record, metered_max
):
    batch = pa.RecordBatch.from_pylist(given_rows, ARROW)
    limits = RowLimits(records_max, metered_max)
    data, regions = encode_part(batch, limits)
    marking = Marking(b"mark", is_record)
    assert [region.stream for region in regions] == sorted({row["stream"] for row in given_rows})
    assert sum(region.rows for region in regions) == len(given_rows)
    for region in regions:
        piece = data[region.offset : region.offset + region.size_bytes]
        assert checksum(piece) == region.checksum
        own = [row for row in given_rows if row["stream"] == region.stream]
        seen = 0
        for chunk in decode_region(piece):
            some = own[seen : seen + chunk.rows]
            seen += chunk.rows
            marker = Marker("w", 1, seen, len(own))
            wanted = [expected(row) for row in some]
            assert appended(chunk.plain()) == wanted
            marked = appended(chunk.marked(marking, marker))
            if chunk.is_large:
                assert region.large
                assert marked == wanted
                continue
            assert sum(size for *_, size in wanted) <= metered_max
            assert len(some) <= records_max
            mark = (b"mark", marker.encode())
            if is_record:
                assert marked[:-1] == wanted
                assert marked[-1][:3] == (b"", (mark,), wanted[-1][2])
            else:
                body, heads, stamp, _ = wanted[-1]
                assert marked[:-1] == wanted[:-1]
                assert marked[-1][:3] == (body, (*heads, mark), stamp)
        assert seen == len(own) == region.rows


Appended = tuple[bytes, tuple[tuple[bytes, bytes], ...], int | None, int]


def expected(row: dict[str, object]) -> Appended:
    given_headers = row["headers"] or []
    assert isinstance(given_headers, list)
    heads = tuple((each["name"], each["value"]) for each in given_headers)
    body, stamp = row["body"], row["timestamp"]
    assert isinstance(body, bytes)
    size = 8 + len(body) + sum(2 + len(name) + len(value) for name, value in heads)
    return body, heads, stamp % 2**64 if isinstance(stamp, int) else None, size


def appended(message: bytes) -> list[Appended]:
    """The records of an AppendInput, as the server reads them."""
    batch = decode_append_input(message).batch
    stamps = batch.timestamps
    found = decode_sequenced(batch.payload, batch.count, 0, 0, 0, batch.count)
    missing = batch.missing
    return [
        (
            record.body,
            record.headers,
            None if stamps is None or (missing is not None and missing[at]) else int(stamps[at]),
            8
            + len(record.body)
            + sum(2 + len(name) + len(value) for name, value in record.headers),
        )
        for at, record in enumerate(found)
    ]


@settings(deadline=None)
@given(rows)
def test_rows_weigh_what_s2_says(given_rows):
    batch = pa.RecordBatch.from_pylist(given_rows, ARROW)
    assert metered_sizes(batch).tolist() == [expected(row)[3] for row in given_rows]
    assert metered_sizes(batch.slice(1)).tolist() == [expected(row)[3] for row in given_rows[1:]]


def test_a_marker_always_finds_the_room_that_was_left_for_it():
    for marking in (Marking(), Marking(b"m" * 64, is_record=True)):
        limits = RowLimits.with_marker(marking, "w" * 64, 10**12)
        body = b"x" * (limits.metered_max - 8)
        batch = pa.RecordBatch.from_pylist([GOOD | {"body": body}], ARROW)
        data, regions = encode_part(batch, limits)
        assert isinstance(regions[0], Region)
        (chunk,) = decode_region(data)
        marker = Marker("w" * 64, 10**12, 10**12 - 1, 10**12 - 1)
        sizes = [size for *_, size in appended(chunk.marked(marking, marker))]
        assert sum(sizes) <= BATCH_METERED_BYTES_MAX


def parse(is_streaming: bool = False, **more: str) -> SinkOptions:
    return parse_sink_options(BASIC | more, is_streaming=is_streaming, environ={})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"basin": "No"}, "option basin: "),
        ({"endpoint": "ftp://x"}, "option endpoint: "),
        ({"delivery": "twice"}, "option delivery: takes exactly-once or at-least-once"),
        ({"marker": "no"}, "option marker: takes header or record"),
        ({"markerName": "ü"}, "option markerName: takes 1 to 64"),
        ({"markerName": "x" * 65}, "option markerName: takes 1 to 64"),
        ({"exclusive": "yes"}, "option exclusive: takes true or false"),
        ({"exclusive": "true", "delivery": "at-least-once"}, "option exclusive: is for delivery"),
        ({"failOnDataLoss": "1"}, "option failOnDataLoss: takes true or false"),
        ({"stream": ".."}, "option stream: "),
        ({"writeId": "a b", "stagingLocation": "/x"}, "option writeId: takes 1 to 64"),
        ({"writeId": "a"}, "option stagingLocation: is required beside writeId"),
        ({"writeId": "a", "delivery": "at-least-once"}, "option writeId: is for delivery"),
        ({"stagingLocation": "ftp://x"}, "option stagingLocation: "),
        ({"stagingLocation": "memory:"}, "option stagingLocation: must outlive"),
        ({"retryTimeout": "-1"}, "option retryTimeout: takes 0 to 86400 seconds"),
        ({"encryptionKey": "zz"}, "option encryptionKey: takes 32 bytes as base64"),
        ({"accessToken": "a b"}, "option accessToken: takes visible ASCII"),
        ({"compression": "lz4"}, "option compression: takes none or zstd or gzip"),
        ({"startingOffsets": "latest"}, "option startingoffsets: is not known"),
        ({"exclusve": "true"}, "did you mean exclusive?"),
    ],
)
def test_an_option_that_is_wrong_is_named(more, text):
    with pytest.raises(OptionError) as raised:
        parse(**more)
    assert text in str(raised.value)


def test_every_option_that_can_be_wrong_is_refused_above():
    (mark,) = test_an_option_that_is_wrong_is_named.pytestmark
    assert {name for more, _ in mark.args[1] for name in more} >= set(SINK_OPTIONS)


@pytest.mark.parametrize(
    ("more", "staging"),
    [
        ({"checkpointLocation": "/ck/"}, "/ck/bourn"),
        ({"checkpointLocation": "file:/ck"}, "/ck/bourn"),
        ({"checkpointLocation": "file:///a%20b"}, "/a b/bourn"),
        ({"checkpointLocation": "s3a://bucket/ck"}, "s3://bucket/ck/bourn"),
        ({"checkpointLocation": "hdfs://x/ck", "stagingLocation": "/st"}, "/st"),
    ],
)
def test_rows_are_staged_beside_the_checkpoint_unless_told_otherwise(more, staging):
    assert parse(is_streaming=True, **more).staging == staging


def test_a_staging_place_that_cannot_be_guessed_is_asked_for():
    for more in ({}, {"checkpointLocation": "hdfs://x/ck"}):
        with pytest.raises(OptionError, match="option stagingLocation: is required"):
            parse(is_streaming=True, **more)
    with pytest.raises(OptionError, match="option writeId: is for batch writes"):
        parse(is_streaming=True, writeId="a", checkpointLocation="/ck", stagingLocation="/x")


def test_options_travel_and_show_no_secret():
    options = parse(accessToken="secret-token", BASIN="my-basin")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "secret-token" not in repr(options)
    assert len(set(SINK_OPTIONS)) == len(SINK_OPTIONS)

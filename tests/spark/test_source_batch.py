"""What a batch read has, from our own server and from another one where there is one."""

import base64
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from bourn.client import Client, ReadStart, Refused, Settings
from bourn.model.record import Record, trim_record
from bourn.spark.options import OptionError
from bourn.spark.source import DataLost
from tests.spark.readers import KEEP, fill, numbers, rows

KEY = base64.b64encode(bytes(range(32))).decode()


def wait_until_trimmed(client: Client, stream: str, first: int) -> None:
    while client.read(stream, ReadStart(seq_num=0), 1)[0].seq_num < first:
        pass


def test_every_start_every_end_and_every_selection(world: Client):
    fill(world, "events/a", 1200)
    fill(world, "events/b", 30)
    fill(world, "other", 3)
    world.create_stream("events/empty")
    assert numbers(world, "events/a") == list(range(1200))
    streams = "events/b, other"
    cases: list[tuple[dict[str, Any], dict[str, list[int]]]] = [
        ({}, {"events/b": [0, 29], "other": [0, 2]}),
        ({"startingOffsets": '{"other": 1}'}, {"events/b": [0, 29], "other": [1, 2]}),
        ({"startingOffsets": '{"events/b": "latest"}'}, {"other": [0, 2]}),
        ({"startingOffsets": "latest"}, {}),
        ({"endingOffsets": '{"events/b": 5}'}, {"events/b": [0, 4], "other": [0, 2]}),
        ({"startingTimestamp": 2}, {"events/b": [2, 29], "other": [2, 2]}),
        ({"endingTimestamp": 2}, {"events/b": [0, 1], "other": [0, 1]}),
        ({"startingTimestamp": 10, "endingTimestamp": 12}, {"events/b": [10, 11]}),
        ({"startingTimestamp": 10**18}, {}),
        ({"minPartitions": 5}, {"events/b": [0, 29], "other": [0, 2]}),
    ]
    for options, expected in cases:
        found: dict[str, list[int]] = {}
        for row in rows(world, streams, {"stream": StringType(), "seq_num": LongType()}, **options):
            found.setdefault(row["stream"], []).append(row["seq_num"])
        assert {name: [seen[0], seen[-1]] for name, seen in found.items()} == expected, options
        assert all(seen == list(range(seen[0], seen[-1] + 1)) for seen in found.values())
    seen = [row["stream"] for row in rows(world, "events/*")]
    assert (seen.count("events/a"), seen.count("events/b"), len(seen)) == (1200, 30, 1230)
    assert rows(world, "none*") == []


def test_columns_that_are_not_asked_for_are_not_there(world: Client):
    fill(world, "s", 2)
    first = rows(world, "s", includeHeaders="false", includeMetered="true")[0]
    assert first == {
        "basin": world.settings.basin,
        "stream": "s",
        "seq_num": 0,
        "timestamp": 0,
        "body": b"0",
        "metered_bytes": 13,
    }
    pruned = rows(world, "s", {"body": BinaryType(), "timestamp": LongType()})
    assert [list(row.items()) for row in pruned][1] == [("body", b"1"), ("timestamp", 1)]
    strict = StructType(
        [StructField("name", BinaryType(), False), StructField("value", BinaryType())]
    )
    found = rows(world, "s", {"headers": ArrayType(strict, False)})
    assert found[1] == {"headers": [{"name": b"n", "value": b"1"}]}
    with pytest.raises(OptionError, match=r"says that body is string: write binary, and cast"):
        rows(world, "s", {"body": StringType()})
    with pytest.raises(OptionError, match=r"schema: has 'key': take from basin, stream"):
        rows(world, "s", {"key": BinaryType()})


def test_hard_values_come_as_they_are(world: Client):
    name = "é/ ?#"
    world.create_stream(name, KEEP)
    headers = ((b"\xff", b""), (b"k", b"\0"), (b"k", b"v" * 300))
    world.append(name, [Record(b""), Record(b"\xff\xfe", headers, 5)])
    world.append(name, [Record(bytes(2**20 - 8), (), 2**64 - 1)])
    found = rows(world, name)
    assert [row["body"] for row in found] == [b"", b"\xff\xfe", bytes(2**20 - 8)]
    assert [tuple(header.values()) for header in found[1]["headers"]] == list(headers)
    assert found[0]["headers"] == []
    assert found[2]["timestamp"] == -1, "2^64 - 1 has the bits of -1"


def test_what_was_trimmed_is_a_loss_only_where_it_was_asked_for(world: Client):
    fill(world, "s", 100)
    world.append("s", [trim_record(40)])
    wait_until_trimmed(world, "s", 40)
    assert numbers(world, "s", endingOffsets='{"s": 60}') == list(range(40, 60))
    asked: dict[str, Any] = {"startingOffsets": '{"s": 10}', "endingOffsets": '{"s": 60}'}
    with pytest.raises(DataLost, match=r"records 10 to 39 of 's' are gone\. Set the option failOn"):
        rows(world, "s", **asked)
    assert numbers(world, "s", failOnDataLoss="false", **asked) == list(range(40, 60))
    gone: dict[str, Any] = {"startingOffsets": '{"s": 10}', "endingOffsets": '{"s": 20}'}
    with pytest.raises(DataLost, match=r"records 10 to 19 of 's' are gone"):
        rows(world, "s", **gone)
    assert rows(world, "s", failOnDataLoss="false", **gone) == []


def test_errors_of_a_plan_name_the_option(world: Client):
    fill(world, "s", 3)
    with pytest.raises(OptionError, match="option stream: there is no stream 'none' in basin"):
        rows(world, "s,none")
    with pytest.raises(
        OptionError, match="startingOffsets: 4 is behind the end of 's', which is 3"
    ):
        rows(world, "s", startingOffsets='{"s": 4}')
    with pytest.raises(OptionError, match="endingOffsets: 9 is behind the end of 's', which is 3"):
        rows(world, "s", endingOffsets='{"s": 9}')


def test_encrypted_streams_are_read_with_their_key(world: Client, endpoint: str):
    basin = f"{world.settings.basin}-sealed"
    world.create_basin(basin, {"stream_cipher": "aegis-256"})
    with Client(Settings.of(basin, endpoint, encryption_key=KEY, environ={})) as sealed:
        sealed.create_stream("s")
        sealed.append("s", [Record(b"hidden")])
        for compression in ("none", "zstd", "gzip"):
            found = rows(sealed, "s", encryptionKey=KEY, compression=compression)
            assert [row["body"] for row in found] == [b"hidden"]
        with pytest.raises(Refused, match="missing encryption key"):
            rows(sealed, "s")

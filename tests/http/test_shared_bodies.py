"""Bodies of events: encoded once for all followers, and never mistaken for one another."""

import orjson

from bourn.engine.batch import EntrySlice, ReadBatch
from bourn.engine.tail_cache import EncodedBatches
from bourn.http.events import SharedBodies
from bourn.layout.entry import Entry
from bourn.layout.records import encode_records
from bourn.limits import SHARED_BODIES_MAX, SHARED_BODY_BYTES_MAX
from bourn.model.record import Record, StreamPosition
from bourn.wire.json import Format

ENCODED = EncodedBatches(1 << 20)
TAIL = StreamPosition(9, 7)


def batch(*bodies, stream=1, seq_num=0, start=0, tail=TAIL, encoded=ENCODED):
    records = encode_records([Record(body) for body in bodies])
    entry = Entry(
        stream, seq_num, len(bodies), records.metered_bytes, 0, 0, 0, 7, 7, records.payload, False
    )
    count = len(bodies) - start
    return ReadBatch((EntrySlice(entry, start, len(bodies)),), count, 99, encoded, tail)


def found(shared, one, fmt=Format.RAW):
    parsed = orjson.loads(shared.body(one, fmt))
    return [record["body"] for record in parsed["records"]], parsed.get("tail")


def test_followers_of_one_stream_get_the_same_bytes():
    shared = SharedBodies()
    first = shared.body(batch(b"one"), Format.RAW)
    assert shared.body(batch(b"one"), Format.RAW) is first


def test_another_stream_place_slice_tail_or_format_is_another_body():
    shared = SharedBodies()
    assert found(shared, batch(b"one", b"two")) == (["one", "two"], {"seq_num": 9, "timestamp": 7})
    assert found(shared, batch(b"1", b"2", stream=2))[0] == ["1", "2"]
    assert found(shared, batch(b"3", b"4", seq_num=2))[0] == ["3", "4"]
    assert found(shared, batch(b"one", b"two", start=1))[0] == ["two"]
    assert found(shared, batch(b"one"))[0] == ["one"]
    assert found(shared, batch(b"one", b"two", tail=None))[1] is None
    assert found(shared, batch(b"one", b"two"), Format.BASE64)[0] == ["b25l", "dHdv"]


def test_what_is_not_shared_is_not_kept():
    shared = SharedBodies()
    assert found(shared, batch(b"sealed", encoded=None))[0] == ["sealed"]
    assert found(shared, batch(b"other", encoded=None))[0] == ["other"]
    assert not shared._bodies


def test_few_and_small_ones_are_kept():
    shared = SharedBodies()
    for seq_num in range(2 * SHARED_BODIES_MAX):
        shared.body(batch(b"x", seq_num=seq_num), Format.RAW)
    shared.body(batch(b"x" * SHARED_BODY_BYTES_MAX, seq_num=1000), Format.RAW)
    assert len(shared._bodies) == SHARED_BODIES_MAX
    assert max(map(len, shared._bodies.values())) < 200
    newest = batch(b"x", seq_num=2 * SHARED_BODIES_MAX - 1)
    assert (newest.place, newest.tail, Format.RAW) in shared._bodies

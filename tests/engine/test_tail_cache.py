"""The newest commits in memory: exact bounds, oldest out first."""

import ctypes
import gc

import hypothesis.strategies as st
from hypothesis import given

from bourn.engine.tail_cache import (
    COMMIT_OBJECT_BYTES,
    PLACES_ASKED_MAX,
    WIRE_BYTES_LARGE,
    EncodedBatches,
    TailCache,
)
from bourn.layout.codec import decode_sequenced, encode_sequenced
from bourn.layout.entry import Entry
from tests.support import batch


def entry(stream_id: int = 1, first_seq_num: int = 0, size: int = 10) -> Entry:
    records = batch(b"x" * size, b"y")
    return Entry(
        stream_id,
        first_seq_num,
        records.count,
        records.metered_bytes,
        records.header_count,
        0,
        0,
        7,
        7,
        records.payload,
        False,
    )


def test_commits_are_found_by_their_ordinals() -> None:
    cache = TailCache(10_000)
    cache.add(5, b"five")
    cache.add(6, b"and six")
    assert cache.get(5) == b"five"
    assert cache.get(6) == b"and six"
    assert 6 in cache
    assert cache.get(4) is None
    assert 7 not in cache
    assert cache.bytes_held == 11 + 2 * COMMIT_OBJECT_BYTES


def test_a_cache_of_no_size_holds_nothing() -> None:
    cache = TailCache(0)
    cache.add(0, b"x")
    assert cache.get(0) is None
    assert cache.bytes_held == 0


@given(st.lists(st.integers(0, 3000), max_size=40), st.integers(0, 6000))
def test_the_newest_commits_that_fit_are_held_and_no_others(sizes: list[int], limit: int) -> None:
    cache = TailCache(limit)
    weights = [size + COMMIT_OBJECT_BYTES for size in sizes]
    for ordinal, size in enumerate(sizes):
        cache.add(ordinal, bytes(size))
        assert cache.bytes_held <= limit
    held = [ordinal for ordinal in range(len(sizes)) if cache.get(ordinal) is not None]
    kept = len(held)
    assert held == list(range(len(sizes) - kept, len(sizes)))
    assert cache.bytes_held == sum(weights[len(sizes) - kept :])
    if kept < len(sizes):
        # One more would not have fitted, now or at the moment when it was let go.
        assert any(
            sum(weights[len(sizes) - kept - 1 : end]) > limit
            for end in range(len(sizes) - kept, len(sizes) + 1)
        )


def there(cache: TailCache) -> dict[int, bytes]:
    """What lies where the cache says that its commits are."""
    places = cache.places()
    words = places.words.reshape(-1, 2).tolist()
    found = {}
    for ordinal in range(places.first, places.end):
        address, size = words[ordinal % len(words)]
        found[ordinal] = ctypes.string_at(address, size)
    return found


@given(
    st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60),
    st.integers(0, 12_000),
    st.booleans(),
)
def test_commits_lie_where_the_cache_says(
    first: int, sizes: list[tuple[int, bool]], limit: int, goes_on: bool
) -> None:
    cache = TailCache(limit)
    for start in (first, first + 1000) if goes_on else (first,):
        for number, (size, is_asked) in enumerate(sizes):
            cache.add(start + number, bytes([number]) * size)
            if is_asked:
                assert there(cache) == cache._objects
    assert there(cache) == cache._objects


def test_more_commits_than_there_were_places_for() -> None:
    cache = TailCache(1 << 30)
    for ordinal in range(1000):
        cache.add(ordinal, b"%d" % ordinal)
        if ordinal % 100 == 0:
            assert len(there(cache)) == ordinal + 1
    assert there(cache) == {ordinal: b"%d" % ordinal for ordinal in range(1000)}


def shared(encoded: EncodedBatches, one: Entry) -> bytes:
    """What the second reader is given, and all who come behind it."""
    encoded.wire(one)
    return encoded.wire(one)


def test_an_encoding_is_shared_from_the_second_reader_on_and_is_what_the_codec_makes() -> None:
    encoded = EncodedBatches(10_000)
    one = entry(1, 100)
    wire = encoded.wire(one)
    assert wire == encode_sequenced(one.payload, one.count, 100, 7, 0, one.count)
    assert encoded.bytes_held == 0, "most have one reader"
    wire = encoded.wire(one)
    assert encoded.wire(one) is wire
    assert encoded.wire(entry(1, 100)) is wire, "the same batch, fetched again"
    assert shared(encoded, entry(2, 100)) is not wire
    assert encoded.bytes_held == 2 * len(wire)
    assert [r.seq_num for r in decode_sequenced(one.payload, 2, 100, 7, 0, 2)] == [100, 101]


def test_encodings_are_let_go_oldest_first() -> None:
    size = len(EncodedBatches(1).wire(entry(1, 200)))
    encoded = EncodedBatches(3 * size)
    batches = [entry(1, 200 + i) for i in range(6)]
    wires = [shared(encoded, one) for one in batches]
    assert encoded.bytes_held == 3 * size
    for newest in (3, 4, 5):
        assert encoded.wire(batches[newest]) is wires[newest]
    assert encoded.wire(batches[0]) is not wires[0]
    assert encoded.bytes_held == 3 * size


def test_an_encoding_larger_than_the_cache_is_still_shared_while_it_is_the_newest() -> None:
    encoded = EncodedBatches(1)
    one = entry()
    assert shared(encoded, one) is encoded.wire(one)
    shared(encoded, entry(1, 50))
    assert len(encoded._wires) == 1


def test_a_large_encoding_is_shared_though_many_small_ones_came_between() -> None:
    encoded = EncodedBatches(10 * WIRE_BYTES_LARGE)
    large = entry(1, 0, WIRE_BYTES_LARGE)
    once = encoded.wire(large)
    for seq_num in range(1, PLACES_ASKED_MAX + 10):
        encoded.wire(entry(1, seq_num))
    assert encoded.bytes_held == 0
    twice = encoded.wire(large)
    assert twice == once
    assert encoded.wire(large) is twice
    assert encoded.bytes_held == len(twice)


def test_one_reader_of_much_leaves_nothing_behind() -> None:
    encoded = EncodedBatches(1 << 20)
    for seq_num in range(PLACES_ASKED_MAX + 10):
        encoded.wire(entry(1, seq_num))
    assert (encoded.bytes_held, len(encoded._small.places)) == (0, PLACES_ASKED_MAX)
    encoded.wire(entry(1, 0))
    assert encoded.bytes_held == 0, "that is too long ago"
    newest = encoded.wire(entry(1, PLACES_ASKED_MAX))
    assert encoded.bytes_held == len(newest)


def test_the_cycle_collector_knows_of_no_cached_commit() -> None:
    gc.collect()
    cache, encoded = TailCache(1 << 30), EncodedBatches(1 << 20)
    known = len(gc.get_objects())
    for ordinal in range(1000):
        cache.add(ordinal, b"%d" % ordinal)
        shared(encoded, entry(1, ordinal))
    assert len(gc.get_objects()) - known < 100
    assert cache.get(999) is not None

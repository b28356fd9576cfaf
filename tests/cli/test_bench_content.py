"""The benchmark's content: made, checked, and every way in which it can be wrong."""

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.cli.bench import kernels
from bourn.cli.bench.content import Check, Source
from bourn.cli.bench.latencies import Latencies, bucket_of
from bourn.cli.failures import Refused
from bourn.layout.codec import decode_append_input, decode_sequenced, encode_sequenced
from bourn.model.record import StreamPosition
from bourn.wire.frames import FrameParser
from bourn.wire.protobuf import encode_tail

NOW = 5_000_000
POOL_BYTES = 200_000
pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture(scope="module")
def compiled():
    """The first call of each kernel takes its time."""
    fields(128, (0, 0))
    Check(128).batch(b"", NOW)
    kernels._bucket(1)


sizes = st.integers(128, 3000) | st.sampled_from([128, 256, 8192, 2**20 - 1])
counts = st.integers(1, 40)
stamps = st.integers(0, 2**40)


def appended(frame):
    """The batch that a server makes of a frame."""
    [found] = FrameParser().feed(frame)
    return decode_append_input(found.message()).batch


def stored(batch, first_seq_num=0):
    return encode_sequenced(
        batch.payload, batch.count, first_seq_num, batch.timestamps, 0, batch.count
    )


def fields(size, *positions):
    """Records of a source as ReadBatch fields, each with the sequence number that it is given."""
    source = Source(size, POOL_BYTES)
    made = [
        appended(source.frame(1, 1)) for _ in range(max(position[0] for position in positions) + 1)
    ]
    return b"".join(stored(made[number], seq_num) for number, seq_num in positions)


@settings(deadline=None)
@given(sizes, counts, stamps)
def test_a_frame_is_what_a_server_takes_and_weighs_what_it_should(size, count, stamp):
    count = min(count, 2**20 // size)
    batch = appended(Source(size, POOL_BYTES).frame(count, stamp))
    assert batch.count == count
    assert batch.metered_bytes == count * size
    assert batch.timestamps is not None
    assert batch.timestamps.tolist() == [stamp] * count


@settings(deadline=None)
@given(st.integers(128, 3000), st.lists(st.tuples(counts, stamps), min_size=1, max_size=5))
def test_what_was_made_is_checked_and_the_hashes_agree(size, batches):
    source, check = Source(size, POOL_BYTES), Check(size)
    total = 0
    for count, stamp in batches:
        message = stored(appended(source.frame(count, stamp)), total)
        total += count
        check.batch(message + encode_tail(StreamPosition(total, stamp)), NOW)
    assert check.records == check.latencies.total == total
    assert check.chain_hash == source.chain_hash != 0


def test_every_record_is_different():
    batch = appended(Source(128, POOL_BYTES).frame(1000, 1))
    found = decode_sequenced(batch.payload, 1000, 0, 1, 0, 1000)
    assert len({record.body for record in found}) == 1000


def test_the_pool_can_be_used_up_and_records_still_differ():
    source = Source(2**20 - 1, POOL_BYTES)
    bodies = [appended(source.frame(1, 1)).payload for _ in range(40)]
    assert len(set(map(bytes, bodies))) == 40
    assert all(one != other for one, other in pairwise(bodies))


@pytest.mark.parametrize(
    ("positions", "number", "said"),
    [
        ([(0, 0), (2, 2)], 1, "another record is in its place"),
        ([(0, 0), (2, 1)], 1, "its content or its order has changed"),
        ([(1, 0)], 0, "its content or its order has changed"),
        ([(0, 0), (0, 0)], 1, "another record is in its place"),
        ([(0, 0), (0, 1)], 1, "its content or its order has changed"),
        ([(0, 7)], 0, "another record is in its place"),
    ],
)
def test_a_record_that_is_missing_repeated_or_out_of_order_is_found(positions, number, said):
    with pytest.raises(Refused, match=f"record {number} is not what was appended: {said}"):
        Check(128).batch(fields(128, *positions), NOW)


def test_a_record_of_another_size_is_found():
    with pytest.raises(Refused, match="another size"):
        Check(129).batch(fields(128, (0, 0)), NOW)


@settings(deadline=None)
@given(st.data())
def test_every_flipped_bit_of_a_body_or_hash_is_found(data):
    message = bytearray(fields(200, (0, 0), (1, 1)))
    bodies = [at for at in range(len(message)) if bytes(message[at : at + 2]) == b"\x22\xb2"]
    start = bodies[0] + 3
    at = data.draw(st.integers(start, start + 177))
    message[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Refused, match="record 0"):
        Check(200).batch(bytes(message), NOW)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_hold_no_record(message):
    check = Check(128)
    with suppress(Refused):
        check.batch(message, NOW)
    assert check.records == 0


@settings(deadline=None)
@given(st.data())
def test_a_message_cut_short_is_never_taken_for_whole(data):
    message = fields(200, (0, 0), (1, 1))
    end = data.draw(st.integers(0, len(message) - 1))
    check = Check(200)
    try:
        check.batch(message[:end], NOW)
    except Refused:
        pass
    else:
        assert end in {0, len(fields(200, (0, 0)))}
    assert check.records < 2


@settings(deadline=None)
@given(st.integers(-5, 2**45))
def test_kernel_and_python_count_into_the_same_bucket(micros):
    assert kernels._bucket(micros) == bucket_of(micros)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 50)), min_size=1, max_size=60))
def test_percentiles_are_those_of_all_latencies_within_two_percent(found):
    latencies = Latencies()
    for micros, times in found:
        latencies.add(micros / 1e6 + 1e-9, times)
    every = np.sort(np.repeat([micros for micros, _ in found], [times for _, times in found]))
    percentiles = latencies.percentiles()
    assert percentiles is not None
    assert latencies.total == len(every)
    for percent, value in zip((50, 90, 99, 100), percentiles, strict=True):
        exact = every[-(-len(every) * percent // 100) - 1] / 1000
        assert value == pytest.approx(exact, rel=0.02, abs=0.0011)


def test_no_latencies_have_no_percentiles():
    assert Latencies().percentiles() is None

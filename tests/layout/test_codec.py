"""The batch codec against the protobuf library and against the plain Python path."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bourn.errors import BadProto, Invalid
from bourn.layout.codec import (
    AppendInput,
    Cut,
    cut,
    decode_append_input,
    decode_sequenced,
    encode_sequenced,
    metered_sizes,
    sequenced_size,
    sequenced_size_bound,
)
from bourn.layout.records import RecordBatch, encode_records
from bourn.limits import BATCH_METERED_BYTES_MAX, U64_MAX
from bourn.model.record import (
    Fence,
    Record,
    SequencedRecord,
    Trim,
    fence_record,
    metered_bytes,
    trim_record,
)
from tests.layout.record_samples import (
    GOLDEN,
    GOLDEN_BATCH,
    SIZE_EDGES,
    U64_EDGES,
    any_records,
    message_of,
    read_batch_of,
    records,
    small_records,
    u64s,
)


def weigh(items: list[Record]) -> list[int]:
    return [metered_bytes(record.headers, record.body) for record in items]


def is_batch(items: list[Record]) -> bool:
    return sum(weigh(items)) <= BATCH_METERED_BYTES_MAX


NO_LIMIT = 2**62
tokens = st.one_of(st.none(), st.text(max_size=12), st.just("x" * 37))


def column(values: Any) -> list[Any] | None:
    return None if values is None else values.tolist()


def facts_of(batch: RecordBatch) -> tuple[Any, ...]:
    """Everything in a batch, comparable."""
    return (
        batch.payload,
        batch.count,
        batch.metered_bytes,
        batch.header_count,
        column(batch.timestamps),
        column(batch.missing),
        batch.commands,
    )


def sequence(items: list[Record], first: int, stamps: list[int]) -> list[SequencedRecord]:
    return [
        SequencedRecord(first + index, stamp, record.body, record.headers)
        for index, (record, stamp) in enumerate(zip(items, stamps, strict=True))
    ]


def expected_of(items: list[Record], match: int | None, token: str | None) -> Any:
    """What the plain Python path makes of the records, and the rule for the token."""
    try:
        batch = encode_records(items)
    except Invalid as error:
        return error.message
    if token is not None and len(token.encode()) > 36:
        return "fencing token must not exceed 36 bytes in length"
    return facts_of(batch), match, token


def outcome_of(data: bytes) -> Any:
    try:
        batch, match, token = decode_append_input(data)
    except Invalid as error:
        return error.message
    return facts_of(batch), match, token


def test_the_vectors_of_the_specification_decode() -> None:
    batch, match, token = decode_append_input(bytes.fromhex("0a041a026869"))
    assert facts_of(batch) == facts_of(encode_records([Record(b"hi")]))
    assert (match, token) == (None, None)
    conditions = decode_append_input(bytes.fromhex("0a041a02686910001a00"))
    assert conditions[1:] == (0, "")


@settings(deadline=None, max_examples=300)
@given(st.lists(any_records, max_size=5), st.one_of(st.none(), u64s), tokens)
def test_a_message_decodes_to_what_the_python_path_makes_of_its_records(
    items: list[Record], match: int | None, token: str | None
) -> None:
    data = message_of(items, match, token).SerializeToString()
    assert outcome_of(data) == expected_of(items, match, token)


@settings(deadline=None)
@given(st.lists(small_records, min_size=1, max_size=4), st.integers(0, 7))
def test_a_message_may_be_a_slice_of_a_larger_buffer(items: list[Record], offset: int) -> None:
    data = message_of(items).SerializeToString()
    around = memoryview(bytes(offset) + data + b"\xff\xff")[offset : offset + len(data)]
    assert facts_of(decode_append_input(around).batch) == facts_of(encode_records(items))
    writable = memoryview(bytearray(around))
    assert facts_of(decode_append_input(writable).batch) == facts_of(encode_records(items))


@pytest.mark.parametrize("size", [*SIZE_EDGES, 16_370, 16_376, 16_377, 16_378, 16_379, 2**20 - 8])
def test_a_single_plain_record_takes_either_way_alike(size: int) -> None:
    record = Record(bytes(size))
    plain = message_of([record]).SerializeToString()
    # An unknown field changes nothing, but it is no plain message any more.
    by_kernel = plain + bytes.fromhex("3800")
    expected = facts_of(encode_records([record]))
    assert facts_of(decode_append_input(plain).batch) == expected
    assert facts_of(decode_append_input(by_kernel).batch) == expected


@settings(deadline=None, max_examples=200)
@given(
    st.lists(records, min_size=1, max_size=5),
    u64s,
    st.one_of(u64s, st.lists(u64s, min_size=5, max_size=5)),
    st.data(),
)
def test_entries_are_byte_equal_to_the_protobuf_library(
    items: list[Record], first: int, timestamps: int | list[int], data: st.DataObject
) -> None:
    assume(is_batch(items))
    payload = encode_records(items).payload
    count = len(items)
    first = min(first, U64_MAX + 1 - count)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    stamps = [timestamps] * count if isinstance(timestamps, int) else timestamps[:count]
    given_stamps = (
        timestamps if isinstance(timestamps, int) else np.array(timestamps[:count], np.uint64)
    )
    arguments = (payload, count, first, given_stamps, start, stop)
    wanted = sequence(items, first, stamps)[start:stop]
    encoded = encode_sequenced(*arguments)
    assert type(encoded) is bytes
    assert encoded == read_batch_of([(r.seq_num, r.timestamp, r.body, r.headers) for r in wanted])
    assert sequenced_size(*arguments) == len(encoded)
    assert decode_sequenced(*arguments) == wanted
    headers = sum(len(record.headers) for record in wanted)
    weight = sum(metered_bytes(record.headers, record.body) for record in wanted)
    assert len(encoded) <= sequenced_size_bound(weight, len(wanted), headers)


@pytest.mark.parametrize("first", [0, 1, 2**63, U64_MAX])
@pytest.mark.parametrize("timestamp", U64_EDGES)
@pytest.mark.parametrize("size", [0, 1, 127, 128, 247, 248, 16_370, 16_371, 70_000])
def test_a_single_record_is_byte_equal_at_every_edge(first: int, timestamp: int, size: int) -> None:
    record = Record(bytes(size))
    payload = encode_records([record]).payload
    wanted = read_batch_of([(first, timestamp, record.body, ())])
    assert encode_sequenced(payload, 1, first, timestamp, 0, 1) == wanted
    stamps = np.array([timestamp], np.uint64)
    assert encode_sequenced(memoryview(payload), 1, first, stamps, 0, 1) == wanted


def test_entries_of_several_batches_join_to_one_message() -> None:
    one, two = [Record(b"a"), Record(b"b", ((b"n", b"v"),))], [fence_record("t"), trim_record(3)]
    joined = encode_sequenced(encode_records(one).payload, 2, 0, 7, 0, 2) + encode_sequenced(
        encode_records(two).payload, 2, 2, 9, 0, 2
    )
    both = sequence(one + two, 0, [7, 7, 9, 9])
    assert joined == read_batch_of([(r.seq_num, r.timestamp, r.body, r.headers) for r in both])


@settings(deadline=None)
@given(st.lists(small_records, min_size=1, max_size=5), st.integers(0, 9), u64s)
def test_payload_and_timestamps_may_lie_at_any_address(
    items: list[Record], offset: int, timestamp: int
) -> None:
    count = len(items)
    payload = encode_records(items).payload
    shifted = memoryview(bytes(offset) + payload)[offset:]
    raw = bytes(offset) + timestamp.to_bytes(8, "little") * count
    stamps = np.frombuffer(raw, "<u8", offset=offset)
    assert encode_sequenced(shifted, count, 5, stamps, 0, count) == encode_sequenced(
        payload, count, 5, timestamp, 0, count
    )
    strided = np.full(2 * count, timestamp, np.uint64)[::2]
    assert sequenced_size(shifted, count, 5, strided, 0, count) == sequenced_size(
        payload, count, 5, timestamp, 0, count
    )


def test_a_full_batch_of_records_round_trips() -> None:
    items = [Record(bytes([index % 256]) * (index % 97), (), index) for index in range(1000)]
    batch = decode_append_input(message_of(items).SerializeToString()).batch
    assert facts_of(batch) == facts_of(encode_records(items))
    assert batch.timestamps is not None
    found = decode_sequenced(batch.payload, 1000, 10**6, batch.timestamps, 0, 1000)
    assert found == sequence(items, 10**6, list(range(1000)))
    encoded = encode_sequenced(batch.payload, 1000, 10**6, batch.timestamps, 0, 1000)
    assert encoded == read_batch_of([(r.seq_num, r.timestamp, r.body, r.headers) for r in found])


def test_the_golden_payload_is_read_by_both_ways() -> None:
    payload = (GOLDEN / "records_v1.bin").read_bytes()
    wanted = sequence(GOLDEN_BATCH, 3, [4] * 5)
    assert decode_sequenced(payload, 5, 3, 4, 0, 5) == wanted
    encoded = encode_sequenced(payload, 5, 3, 4, 0, 5)
    assert encoded == read_batch_of([(r.seq_num, r.timestamp, r.body, r.headers) for r in wanted])


# Limits


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "record batch must not be empty"),
        ([Record()] * 1000, None),
        ([Record()] * 1001, "record batch must not exceed 1000 records"),
        ([Record()] * 3000, "record batch must not exceed 1000 records"),
        ([Record(bytes(2**20 - 8))], None),
        ([Record(bytes(2**20 - 7))], "record must have metered size less than 1 MiB"),
        ([Record(bytes(2**20 - 16)), Record()], None),
        (
            [Record(bytes(2**20 - 15)), Record()],
            "record batch must not exceed a metered size of 1 MiB",
        ),
        ([Record(b"", ((b"n", b"v" * 3),) * 10_000)], None),
        ([Record(b"", ((b"n", b""),) * 65_536)], None),
        ([Record(b"", ((b"n", b"v" * 65_536),))], None),
        ([Record()] * 2500 + [Record(b"", ((b"", b"stop"),))], "unknown command"),
        (
            [Record()] * 1500 + [Record(b"", ((b"a", b""), (b"", b"")))],
            "invalid header: empty name",
        ),
        (
            [Record(b"", ((b"a", b""), (b"", b"")))] + [Record(b"", ((b"", b"stop"),))] * 1500,
            "invalid header: empty name",
        ),
        ([fence_record("t"), Record(b"", ((b"", b"x"),)), Record(bytes(2**20))], "unknown command"),
        (
            [fence_record("t"), Record(bytes(2**20)), Record(b"", ((b"", b"x"),))],
            "record must have metered size less than 1 MiB",
        ),
        ([Record(bytes(2**20), ((b"", b"x"),))], "unknown command"),
    ],
)
def test_both_ways_judge_a_batch_at_the_limits_alike(
    items: list[Record], message: str | None
) -> None:
    outcome = outcome_of(message_of(items).SerializeToString())
    assert outcome == expected_of(items, None, None)
    assert message is None or outcome == message


def test_a_long_fencing_token_is_refused_after_the_records() -> None:
    data = message_of([Record()], None, "é" * 19).SerializeToString()
    with pytest.raises(Invalid, match=r"^fencing token must not exceed 36 bytes in length$"):
        decode_append_input(data)
    with pytest.raises(Invalid, match=r"^record batch must not be empty$"):
        decode_append_input(message_of([], None, "é" * 19).SerializeToString())
    assert (
        decode_append_input(message_of([Record()], None, "é" * 18).SerializeToString())[2]
        == "é" * 18
    )


def test_a_broken_message_is_refused_before_its_records_are_judged() -> None:
    data = message_of([Record(b"", ((b"", b"stop"),))] * 1200).SerializeToString()
    with pytest.raises(BadProto, match=r"^Failed to decode protobuf: it ends inside of a field$"):
        decode_append_input(data + b"\x0a")


def test_commands_are_named_with_their_places() -> None:
    items = [Record(b"a"), fence_record("t", 5), trim_record(U64_MAX), fence_record("")]
    batch = decode_append_input(message_of(items).SerializeToString()).batch
    assert batch.commands == ((1, Fence("t")), (2, Trim(U64_MAX)), (3, Fence("")))


# Cuts


def cut_by_hand(
    items: list[SequencedRecord],
    start: int,
    records_max: int,
    metered_max: int,
    until: int | None,
    encoded_max: int,
) -> Cut:
    metered = encoded = 0
    stop = start
    for seq_num, timestamp, body, headers in items[start:]:
        metered += metered_bytes(headers, body)
        encoded += len(read_batch_of([(seq_num, timestamp, body, headers)]))
        if (
            stop - start >= records_max
            or metered > metered_max
            or encoded > encoded_max
            or (until is not None and timestamp >= until)
        ):
            return Cut(stop, metered - metered_bytes(headers, body))
        stop += 1
    return Cut(stop, metered)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(small_records, st.integers(0, 20)), min_size=1, max_size=8),
    st.integers(0, 9),
    st.integers(0, 10),
    st.one_of(st.integers(0, 300), st.just(NO_LIMIT), st.just(2**64)),
    st.one_of(st.none(), st.integers(0, 22)),
    st.one_of(st.integers(0, 300), st.just(NO_LIMIT), st.just(2**64)),
)
def test_a_cut_takes_as_many_records_as_keep_every_limit(
    pairs: list[tuple[Record, int]],
    start: int,
    records_max: int,
    metered_max: int,
    until: int | None,
    encoded_max: int,
) -> None:
    items = [record for record, _ in pairs]
    stamps = sorted(stamp for _, stamp in pairs)
    start = min(start, len(items))
    assert cut(
        encode_records(items).payload,
        len(items),
        np.array(stamps, np.uint64),
        start,
        records_max=records_max,
        metered_max=metered_max,
        until=until,
        encoded_max=encoded_max,
        first_seq_num=125,
    ) == cut_by_hand(
        sequence(items, 125, stamps), start, records_max, metered_max, until, encoded_max
    )


@pytest.mark.parametrize(
    ("timestamp", "until", "stop"),
    [(U64_MAX, None, 2), (U64_MAX, U64_MAX, 0), (U64_MAX - 1, U64_MAX, 2), (0, 0, 0), (0, 1, 2)],
)
def test_until_is_exclusive_over_the_whole_range(
    timestamp: int, until: int | None, stop: int
) -> None:
    payload = encode_records([Record(b"a"), Record(b"b")]).payload
    limits = {"records_max": 9, "metered_max": 999, "encoded_max": 999, "first_seq_num": 0}
    assert cut(payload, 2, timestamp, 0, until=until, **limits) == (stop, 9 * stop)


@settings(deadline=None)
@given(st.lists(records, min_size=1, max_size=5))
def test_metered_sizes_are_those_of_the_records(items: list[Record]) -> None:
    assume(is_batch(items))
    sizes = metered_sizes(encode_records(items).payload, len(items))
    assert sizes.tolist() == weigh(items)


@pytest.mark.parametrize(
    ("name_bytes", "value_bytes", "headers", "body_bytes"),
    [
        (1, 0, 300_000, 0),
        (1, 125, 7000, 0),
        (128, 128, 4000, 0),
        (60_000, 0, 1, 900_000),
        (1, 1, 1, 0),
    ],
)
def test_the_bound_holds_for_records_of_many_headers(
    name_bytes: int, value_bytes: int, headers: int, body_bytes: int
) -> None:
    record = Record(bytes(body_bytes), ((b"n" * name_bytes, b"v" * value_bytes),) * headers)
    batch = encode_records([record])
    size = sequenced_size(batch.payload, 1, U64_MAX, U64_MAX, 0, 1)
    bound = sequenced_size_bound(batch.metered_bytes, 1, batch.header_count)
    assert size <= bound <= size * 1.5 + 40


@pytest.mark.parametrize(
    "items",
    [
        [Record()] * 1000,
        [Record(b"b")] * 1000,
        [Record(b"", ((b"n", b"v"),) * 2500)],
        [Record(b"", ((b"n", b"v"),))] * 800,
        [Record(b"b", ((b"n" * 128, b"v" * 128),) * 60)],
        [Record(bytes(127), ((b"n", b"v" * 127),))] * 50,
        [fence_record("")] * 1000,
        [trim_record(U64_MAX)] * 800,
    ],
)
def test_small_batches_have_room_for_their_worst_case(items: list[Record]) -> None:
    count = len(items)
    payload = encode_records(items).payload
    assert len(payload) < 2**14 + 4000
    first = U64_MAX + 1 - count
    values = sequence(items, first, [U64_MAX] * count)
    wanted = read_batch_of([(r.seq_num, r.timestamp, r.body, r.headers) for r in values])
    assert encode_sequenced(payload, count, first, U64_MAX, 0, count) == wanted
    # A large neighbour, and at the latest a huge one, makes the same records take the other way.
    for size in (2**15, 2**18):
        larger = encode_records([*items[: count - 1], Record(bytes(size))]).payload
        assert encode_sequenced(larger, count, first, U64_MAX, 0, count - 1) == read_batch_of(
            [(r.seq_num, r.timestamp, r.body, r.headers) for r in values[:-1]]
        )


# Callers


@pytest.mark.parametrize(
    ("first", "start", "stop"), [(0, -1, 1), (0, 1, 0), (0, 0, 3), (-1, 0, 1), (U64_MAX, 0, 2)]
)
def test_a_range_that_is_none_is_a_bug_of_the_caller(first: int, start: int, stop: int) -> None:
    payload = encode_records([Record(b"a"), Record(b"b")]).payload
    for function in (encode_sequenced, sequenced_size, decode_sequenced):
        with pytest.raises(ValueError, match="no records"):
            function(payload, 2, first, 0, start, stop)


def test_timestamps_of_another_number_of_records_are_a_bug_of_the_caller() -> None:
    payload = encode_records([Record(b"a"), Record(b"b")]).payload
    with pytest.raises(ValueError, match="2 records, but timestamps of shape"):
        encode_sequenced(payload, 2, 0, np.zeros(3, np.uint64), 0, 2)


def test_conditions_have_defaults() -> None:
    batch = encode_records([Record()])
    assert AppendInput(batch) == (batch, None, None)

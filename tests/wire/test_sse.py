from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import BadHeader
from bourn.limits import U64_MAX
from bourn.model.record import SequencedRecord, StreamPosition, metered_bytes
from bourn.wire.json import Format, encode_error
from bourn.wire.sse import DONE, EventId, encode_batch, encode_ping, parse_event_id
from bourn.wire.sse import encode_error as encode_error_event
from tests.layout.read_batches import encode_read_batch

TAIL = StreamPosition(1042, 1_700_000_000_000)

u64 = st.integers(0, U64_MAX)
event_ids = st.builds(EventId, u64, u64, u64)


def test_a_batch_has_a_name_an_id_and_one_line_of_data() -> None:
    records = [SequencedRecord(1041, 1_700_000_000_000, b"hi")]
    batch = encode_read_batch(records, TAIL, Format.RAW)
    assert encode_batch(EventId(1041, 42, 9310), batch) == (
        b"event: batch\n"
        b"id: 1041,42,9310\n"
        b'data: {"records":[{"seq_num":1041,"timestamp":1700000000000,"body":"hi"}],'
        b'"tail":{"seq_num":1042,"timestamp":1700000000000}}\n'
        b"\n"
    )


def test_a_ping_has_no_id() -> None:
    assert encode_ping(1_700_000_012_345, TAIL) == (
        b"event: ping\n"
        b'data: {"timestamp":1700000012345,"tail":{"seq_num":1042,"timestamp":1700000000000}}\n'
        b"\n"
    )


def test_an_error_has_the_body_of_its_response() -> None:
    assert encode_error_event(encode_error("unavailable", "not now\n")) == (
        b'event: error\ndata: {"code":"unavailable","message":"not now\\n"}\n\n'
    )


def test_the_end_has_neither_name_nor_id() -> None:
    assert DONE == b"data: [DONE]\n\n"


def test_ids_count_what_was_delivered() -> None:
    size = metered_bytes((), b"")
    first = EventId(0, 0, 0).after(2, 3, 3 * size)
    second = first.after(4, 2, 2 * size)
    assert str(first) == "2,3,24"
    assert str(second) == "4,5,40"


def test_the_counters_saturate() -> None:
    assert EventId(1, U64_MAX, U64_MAX - 1).after(2, 1, 8) == EventId(2, U64_MAX, U64_MAX)


@given(event_ids)
def test_an_id_comes_back_with_either_separator(event_id: EventId) -> None:
    assert parse_event_id(str(event_id)) == event_id
    assert parse_event_id(str(event_id).replace(",", ":")) == event_id


def test_leading_zeros_are_harmless() -> None:
    assert parse_event_id("0" * 5000 + "7,00,0010") == EventId(7, 0, 10)


@pytest.mark.parametrize(
    "value",
    [
        *("", "1", "1,2", "1,2,3,4", ",,", "1,,3", "1,2,", ",1,2,3", "1,2:3", "1:2,3", "1;2;3"),
        *("-1,2,3", "+1,2,3", "1.0,2,3", "0x1,2,3", "1_0,2,3", "a,b,c", " 1,2,3", "1, 2,3"),
        *("1,2,3\n", "\u0661,2,3", "18446744073709551616,0,0", "0,18446744073709551616,0"),
        *("0,0,99999999999999999999", "0,0," + "9" * 5000, "1" * 21 + ",0,0"),
    ],
)
def test_a_malformed_id_is_refused(value: str) -> None:
    with pytest.raises(BadHeader, match="Invalid header `last-event-id`"):
        parse_event_id(value)


@given(st.text(max_size=40))
def test_any_text_gives_an_id_or_bad_header(value: str) -> None:
    with suppress(BadHeader):
        parse_event_id(value)

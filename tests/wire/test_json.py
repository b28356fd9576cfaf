import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import BadHeader
from bourn.layout import json_records
from bourn.limits import U64_MAX
from bourn.model.record import AppendAck, Record, SequencedRecord, StreamPosition
from bourn.wire.json import (
    Format,
    encode_append_ack,
    encode_error,
    encode_fencing_token_mismatch,
    encode_position,
    encode_seq_num_mismatch,
    encode_tail,
    parse_format,
)
from bourn.wire.json_input import decode_append_input
from tests.layout.read_batches import encode_read_batch

RAW, BASE64 = Format

json_records.warm(lambda _: None)  # which no example should wait for

u64 = st.integers(0, U64_MAX)
positions = st.builds(StreamPosition, u64, u64)


def compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, RAW),
        ("raw", RAW),
        ("json", RAW),
        ("utf8", RAW),
        ("utf-8", RAW),
        (" raw\t", RAW),
        ("base64", BASE64),
        ("json-binsafe", BASE64),
    ],
)
def test_a_format_has_its_names(value: str | None, expected: Format) -> None:
    assert parse_format(value) is expected


@pytest.mark.parametrize("value", ["", "RAW", "Base64", "raw,base64", "binary", "raw\n"])
def test_any_other_format_is_refused(value: str) -> None:
    with pytest.raises(BadHeader, match="Invalid header `s2-format`"):
        parse_format(value)


@given(positions, positions, positions)
def test_positions_and_acks_are_exact_and_in_order(
    start: StreamPosition, end: StreamPosition, tail: StreamPosition
) -> None:
    assert encode_position(start) == compact(start._asdict())
    assert encode_tail(tail) == compact({"tail": tail._asdict()})
    assert encode_append_ack(AppendAck(start, end, tail)) == compact(
        {"start": start._asdict(), "end": end._asdict(), "tail": tail._asdict()}
    )


def test_conditions_have_exactly_one_key() -> None:
    assert encode_seq_num_mismatch(7) == b'{"seq_num_mismatch":7}'
    assert encode_seq_num_mismatch(U64_MAX) == b'{"seq_num_mismatch":18446744073709551615}'
    assert encode_fencing_token_mismatch("") == b'{"fencing_token_mismatch":""}'
    assert encode_fencing_token_mismatch('"é\n') == '{"fencing_token_mismatch":"\\"é\\n"}'.encode()
    assert encode_tail(StreamPosition(0, 0)) == b'{"tail":{"seq_num":0,"timestamp":0}}'


def test_an_error_has_a_code_and_a_message() -> None:
    assert encode_error("invalid", "`x`\n") == b'{"code":"invalid","message":"`x`\\n"}'


def test_an_empty_batch() -> None:
    assert encode_read_batch([], None, RAW) == b'{"records":[]}'


def test_what_is_empty_is_left_out_and_the_rest_is_in_order() -> None:
    records = [
        SequencedRecord(1, 2, b"hi", ((b"k", b"v"), (b"", b""))),
        SequencedRecord(2, 3, b""),
        SequencedRecord(U64_MAX - 1, U64_MAX, b"x"),
    ]
    assert encode_read_batch(records, StreamPosition(4, 5), RAW) == (
        b'{"records":['
        b'{"seq_num":1,"timestamp":2,"headers":[["k","v"],["",""]],"body":"hi"},'
        b'{"seq_num":2,"timestamp":3},'
        b'{"seq_num":18446744073709551614,"timestamp":18446744073709551615,"body":"x"}'
        b'],"tail":{"seq_num":4,"timestamp":5}}'
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        # The maximal subparts of Unicode's own examples, tables 3-8 to 3-11.
        ("c0afe080bff0818241", "\ufffd" * 8 + "A"),
        ("eda080edbfbfedaf41", "\ufffd" * 8 + "A"),
        ("f4919293ff4180bf42", "\ufffd" * 5 + "A" + "\ufffd" * 2 + "B"),
        ("e180e2f09192f1bf41", "\ufffd" * 4 + "A"),
        ("0000000000000064", "\0" * 7 + "d"),
        ("ff", "\ufffd"),
    ],
)
def test_raw_output_replaces_each_maximal_invalid_subsequence(data: str, text: str) -> None:
    record = SequencedRecord(0, 0, bytes.fromhex(data), ((bytes.fromhex(data), b"\xff"),))
    [item] = json.loads(encode_read_batch([record], None, RAW))["records"]
    assert item["body"] == text
    assert item["headers"] == [[text, "\ufffd"]]


@given(st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30))
def test_base64_output_loses_nothing(name: bytes, value: bytes, body: bytes) -> None:
    record = SequencedRecord(0, 0, body, ((name, value),))
    [item] = json.loads(encode_read_batch([record], None, BASE64))["records"]
    assert base64.b64decode(item.get("body", "")) == body
    assert [base64.b64decode(text) for text in item["headers"][0]] == [name, value]


@given(
    st.lists(
        st.tuples(st.text(max_size=9), st.lists(st.tuples(st.text(), st.text()), max_size=2), u64),
        max_size=4,
    ),
    st.sampled_from(Format),
)
def test_what_is_read_can_be_appended_again(
    items: list[tuple[str, list[tuple[str, str]], int]], fmt: Format
) -> None:
    sequenced = [
        SequencedRecord(
            seq_num,
            timestamp,
            body.encode(),
            tuple((name.encode(), value.encode()) for name, value in headers),
        )
        for seq_num, (body, headers, timestamp) in enumerate(items)
    ]
    batch = encode_read_batch(sequenced, None, fmt)
    assert decode_append_input(batch, fmt).records == [
        Record(record.body, record.headers, record.timestamp) for record in sequenced
    ]


@given(st.text(), st.text())
def test_json_text_never_holds_a_raw_line_break(body: str, token: str) -> None:
    for text in (
        encode_read_batch([SequencedRecord(0, 0, body.encode())], None, RAW),
        encode_fencing_token_mismatch(token),
        encode_error("other", token),
    ):
        assert b"\n" not in text
        assert b"\r" not in text

"""Appends in JSON, straight to stored records: what the readers of single records make of them."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bourn.errors import BournError
from bourn.layout import json_records
from bourn.layout.codec import AppendInput
from bourn.layout.json_append import decode_json_append, surplus_bytes
from bourn.layout.kernels import input_facts
from bourn.layout.records import encode_records
from bourn.limits import BATCH_RECORDS_MAX, U64_MAX
from bourn.model.record import Record
from bourn.wire import json_check
from bourn.wire.json import Format
from bourn.wire.json_input import decode_append_input
from tests.layout.record_samples import names, plain_headers, stamps
from tests.wire.json_texts import Member, inputs, spell

RAW, BASE64 = Format
BLANKS = ("", "", "", " ", "\n\t", " \r ")

json_records.warm(lambda _: None)  # which no example should wait for
json_check.warm(lambda _: None)


def facts_of(found: AppendInput) -> tuple[Any, ...]:
    batch = found.batch
    stamps, missing = batch.timestamps, batch.missing
    return (
        found.match_seq_num,
        found.fencing_token,
        batch.payload,
        batch.count,
        batch.metered_bytes,
        batch.header_count,
        None if stamps is None else (stamps.dtype, stamps.tolist()),
        None if missing is None else (missing.dtype, missing.tolist()),
        batch.commands,
        batch.sealed_for,
    )


def expected(body: bytes, fmt: Format) -> tuple[Any, ...] | None:
    """Return what others make of it; None where they refuse it."""
    try:
        found = decode_append_input(body, fmt)
        batch = encode_records(found.records)
    except BournError:
        return None
    return facts_of(AppendInput(batch, found.match_seq_num, found.fencing_token))


def read(body: bytes | str, fmt: Format = RAW) -> AppendInput | None:
    body = body.encode() if isinstance(body, str) else body
    return decode_json_append(body, is_base64=fmt is BASE64)


def agrees(body: bytes, fmt: Format) -> bool:
    """Whether the text is read here; where it is, others read the same."""
    found = read(body, fmt)
    if found is not None:
        assert facts_of(found) == expected(body, fmt)
    return found is not None


def ordinary(body: bytes | str, fmt: Format = RAW) -> None:
    assert agrees(body.encode() if isinstance(body, str) else body, fmt)


# What clients write

# Runs of text that begin, end and meet anywhere in the words that the kernel looks at.
pieces = st.sampled_from(
    [
        "x" * 3, "y" * 7, "z" * 31, "w" * 64, '"', "\\", "/", "\n\t\r\b\f", "\0\x1f", "\x7f", ":",
        "é", "€ü", "😀", "\ufffd\u2028", "\\u0041", "\U0010ffff", "\ud7ff\ue000", "{}[],",
    ]
)  # fmt: skip
texts = st.lists(pieces, max_size=12).map("".join)


def spell_text(text: str, draw: Any) -> str:
    """Write a string by one of the ways that there are for each of its characters."""
    way = draw(st.integers(0, 3))
    if way < 2:
        return json.dumps(text, ensure_ascii=bool(way))
    if way == 2:
        return json.dumps(text).replace("/", "\\/")
    units = text.encode("utf-16-be").hex(" ", 2).split()
    digits = [unit.upper() if draw(st.booleans()) else unit for unit in units]
    return '"' + "".join(f"\\u{unit}" for unit in digits) + '"'


def spell_bytes(data: bytes, draw: Any) -> str:
    return json.dumps(base64.b64encode(data).decode())


def spell_input(
    records: Sequence[tuple[Any, Sequence[tuple[Any, Any]], int | None]],
    conditions: dict[str, str],
    spell_one: Any,
    draw: Any,
) -> str:
    """Write an AppendInput: members in any order, blanks anywhere, null for what is absent."""

    def blank() -> str:
        return draw(st.sampled_from(BLANKS))  # type: ignore[no-any-return]

    def joined(opening: str, items: Sequence[str], closing: str) -> str:
        inside = ",".join(blank() + item + blank() for item in items)
        return opening + (inside or blank()) + closing

    def members(fields: dict[str, str]) -> str:
        order = draw(st.permutations(list(fields)))
        return joined("{", [f'"{key}"{blank()}:{blank()}{fields[key]}' for key in order], "}")

    written: list[str] = []
    for body, headers, timestamp in records:
        pairs = [joined("[", [spell_one(half, draw) for half in pair], "]") for pair in headers]
        fields = {
            "body": spell_one(body, draw) if body else draw(st.sampled_from(['""', "null", ""])),
            "headers": joined("[", pairs, "]")
            if pairs
            else draw(st.sampled_from(["[]", "null", ""])),
            "timestamp": draw(st.sampled_from(["null", ""]))
            if timestamp is None
            else str(timestamp),
        }
        written.append(members({key: value for key, value in fields.items() if value}))
    everything = members({"records": joined("[", written, "]")} | conditions)
    return blank() + everything + blank()


numbers = st.integers(0, 10**19 - 1) | st.sampled_from([0, 9, 10, 2**63 - 1, 2**63, 10**19 - 1])
conditions = st.fixed_dictionaries(
    {},
    optional={
        "match_seq_num": numbers.map(str) | st.just("null"),
        "fencing_token": st.sampled_from(['""', '"t"', '"' + "é" * 18 + '"', "null", '"a:b}]"']),
    },
)
optional_numbers = st.none() | numbers


@given(
    st.lists(
        st.tuples(
            texts, st.lists(st.tuples(texts.filter(bool), texts), max_size=3), optional_numbers
        ),
        min_size=1,
        max_size=5,
    ),
    conditions,
    st.data(),
)
def test_what_clients_write_is_read_as_others_read_it(
    records: list[Any], given_conditions: dict[str, str], data: st.DataObject
) -> None:
    ordinary(spell_input(records, given_conditions, spell_text, data.draw))


blobs = st.binary(max_size=70)


@given(
    st.lists(
        st.tuples(
            blobs,
            st.lists(st.tuples(st.binary(min_size=1, max_size=9), blobs), max_size=3),
            optional_numbers,
        ),
        min_size=1,
        max_size=5,
    ),
    conditions,
    st.data(),
)
def test_so_it_is_in_base64(
    records: list[Any], given_conditions: dict[str, str], data: st.DataObject
) -> None:
    ordinary(spell_input(records, given_conditions, spell_bytes, data.draw), BASE64)


@settings(max_examples=30)
@given(st.lists(st.tuples(names, plain_headers, stamps), min_size=1, max_size=3))
def test_so_are_large_names_and_values(items: list[Any]) -> None:
    def text(value: bytes) -> str:
        return base64.b64encode(value).decode()

    records = [
        {
            "body": text(body),
            "headers": [[text(name), text(value)] for name, value in headers],
            **({} if stamp is None else {"timestamp": min(stamp, 10**19 - 1)}),
        }
        for body, headers, stamp in items
    ]
    for fmt in Format:
        body = json.dumps({"records": records}).encode()
        assert agrees(body, fmt) == (expected(body, fmt) is not None)


@pytest.mark.parametrize("odd", ["é", "\\n", '\\"', "\\u00e9", "\\ud83d\\ude00", "😀", "\\\\\\\\"])
@pytest.mark.parametrize("size", [*range(42), 63, 64, 65, 100])
def test_what_stands_for_something_else_may_stand_anywhere(odd: str, size: int) -> None:
    for at in range(0, size + 1, 1 if size < 20 else 7):
        text = "x" * at + odd + "y" * (size - at)
        ordinary(f'{{"records":[{{"body":"{text}"}}]}}')
        ordinary(f'{{"records":[{{"headers":[["{text}","{text}"]]}},{{"body":"{odd}"}}]}}')


@pytest.mark.parametrize("odd", ["é", "\\n", "\\u00e9", "\\ud83d\\ude00", "日本語", "\\\\\\\\"])
def test_so_it_may_in_a_long_text_that_others_follow(odd: str) -> None:
    for at in range(200):
        text = "x" * at + odd + "y" * (70 - at % 70) + odd + "z" * (200 - at)
        more = ",".join([f'{{"headers":[["{text}","{text}"]],"body":"{text}"}}'] * 2)
        ordinary(f'{{"records":[{{"body":"{text}"}},{more}]}}')


def test_very_many_headers_and_records_are_ordinary() -> None:
    pairs = ",".join(['["a",""]'] * 65_536)
    ordinary(f'{{"records":[{{"headers":[{pairs}]}}]}}')
    ordinary('{"records":[' + ",".join(["{}"] * BATCH_RECORDS_MAX) + "]}")


# What is left to others


@given(inputs, st.sampled_from(Format), st.data())
def test_a_text_is_read_as_others_read_it_or_left_to_them(
    document: Member, fmt: Format, data: st.DataObject
) -> None:
    body = bytearray(spell(document, data.draw).encode())
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + 1] = data.draw(
            st.sampled_from([b"", b":", b'"', b"0", b"-", b",", b"\xff", b"\\", b"}", b"]", b"\0"])
        )
    agrees(bytes(body), fmt)


@given(st.binary(max_size=80), st.sampled_from(Format))
@example(b"", RAW)
@example(b"\xed\xa0\x80", RAW)
@example(b"\xf4\x90\x80\x80" * 3, RAW)
@example(b"\xe2\x82", RAW)
def test_any_bytes_are_read_as_others_read_them_or_left_to_them(data: bytes, fmt: Format) -> None:
    agrees(data, fmt)
    agrees(b'{"records":[{"body":"' + data + b'"}]}', fmt)
    agrees(b'{"records":[{"headers":[["k","' + data + b'"]]}]}', fmt)


FULL = (
    '{"records":[{"timestamp":1,"headers":[["a\\n","b"],["c","\\u00e9"]],"body":"d"},{}],'
    '"match_seq_num":12,"fencing_token":"t"}'
)


def test_a_text_that_is_cut_or_goes_on_is_left_to_others() -> None:
    ordinary(FULL)
    for size in range(len(FULL)):
        assert read(FULL[:size]) is None
    for more in ("x", ",", "}", "{}", "\0"):
        assert read(FULL + more) is None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"records":[]}',
        '{"records":{}}',
        '{"records":null}',
        '{"match_seq_num":1}',
        '{"records":[{}],}',
        '{"records":[{},]}',
        '{"records":[,{}]}',
        '{"records":[{}]]}',
        '{"records":[1]}',
        '{"records":[{}],"x":1}',
        '{"records":[{}],"records":[{}]}',
        '{"records":[{}],"body":"x"}',
        '{"records" [{}]}',
        '{"record\\u0073":[{}]}',
        '{"recordz":[{}]}',
        '{"records":[{"x":1}]}',
        '{"records":[{"bodx":"x"}]}',
        '{"records":[{"headerz":[]}]}',
        '{"records":[{"timestams":1}]}',
        '{"records":[{"tim":1}]}',
        '{"records":[{"records":[]}]}',
        '{"records":[{}],"match_seq_nun":1}',
        '{"records":[{}],"fencing_tokem":"x"}',
        '{"records":[{}],"fencing_tokens":"x"}',
        '{"records":[{"b\\u006fdy":"x"}]}',
        '{"records":[{"body":"a","body":"b"}]}',
        '{"records":[{"body":null,"body":"b"}]}',
        '{"records":[{"timestamp":1,"timestamp":1}]}',
        '{"records":[{"headers":[],"headers":[]}]}',
        '{"records":[{"body":1}]}',
        '{"records":[{"body":nul}]}',
        '{"records":[{"body":nullx}]}',
        '{"records":[{"body":"\\x"}]}',
        '{"records":[{"body":"\\u12g4"}]}',
        '{"records":[{"body":"\\ud800"}]}',
        '{"records":[{"body":"\\ud800\\ud800"}]}',
        '{"records":[{"body":"\\ud800xudc00"}]}',
        '{"records":[{"body":"\\ud800\\xdc00"}]}',
        '{"records":[{"body":"\\udc00"}]}',
        '{"records":[{"body":"\\udc00\\udc00"}]}',
        '{"records":[{"body":"\n"}]}',
        '{"records":[{"body":"x";"timestamp":1}]}',
        '{"records":[{"timestamp":-0}]}',
        '{"records":[{"timestamp":01}]}',
        '{"records":[{"timestamp":1.0}]}',
        '{"records":[{"timestamp":1e3}]}',
        '{"records":[{"timestamp":"1"}]}',
        '{"records":[{"timestamp":18446744073709551616}]}',
        '{"records":[{"timestamp":18446744073709551615}]}',  # one that others do read
        '{"records":[{}],"match_seq_num":true}',
        '{"records":[{}],"fencing_token":1}',
        '{"records":[{}],"fencing_token":"\\n"}',
        '{"records":[{}],"fencing_token":"' + "x" * 37 + '"}',
        '{"records":[{"headers":{}}]}',
        '{"records":[{"headers":[{"name":"a","value":"b"}]}]}',
        '{"records":[{"headers":[[]]}]}',
        '{"records":[{"headers":[["a"]]}]}',
        '{"records":[{"headers":[["a",1]]}]}',
        '{"records":[{"headers":[["a","b","c"]]}]}',
        '{"records":[{"headers":[["a","b"],]}]}',
        '{"records":[{"headers":[["a","b"]["c","d"]]}]}',
        '{"records":[{"headers":[["","fence"]],"body":"t"}]}',  # a command
        '{"records":[{"headers":[["",""]]}]}',
        '{"records":[{"body":"' + "x" * 2**21 + '"}]}',
        '{"records":[' + ",".join(['{"body":"' + "x" * 2**19 + '"}'] * 3) + "]}",
        '{"records":[' + ",".join(["{}"] * (BATCH_RECORDS_MAX + 1)) + "]}",
    ],
    ids=lambda text: text[:60],
)
@pytest.mark.parametrize("fmt", Format)
def test_what_is_odd_is_left_to_others(text: str, fmt: Format) -> None:
    assert read(text, fmt) is None


# Base64


@pytest.mark.parametrize("size", range(70))
def test_base64_of_every_size_is_decoded(size: int) -> None:
    data = bytes(range(255, 255 - size, -1))
    text = base64.b64encode(data).decode()
    for body in (
        f'{{"records":[{{"body":"{text}"}}]}}',
        f'{{"records":[{{"body":"{text}"}},{{"body":"{text}","headers":[["AA==","{text}"]]}}]}}',
    ):
        ordinary(body, BASE64)
    found = read(f'{{"records":[{{"body":"{text}"}}]}}', BASE64)
    assert found is not None
    assert found.batch.payload == encode_records([Record(data)]).payload


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 30, 31, 32])
def test_a_byte_that_is_no_digit_is_found_anywhere(size: int) -> None:
    text = base64.b64encode(b"\xa5" * size)
    for at in range(len(text)):
        for byte in range(256):
            changed = text[:at] + bytes([byte]) + text[at + 1 :]
            body = b'{"records":[{"body":"%b"}]}' % changed
            is_read = agrees(body, BASE64)
            if byte in base64.b64encode(bytes(range(256))) and byte != ord("="):
                assert is_read == (expected(body, BASE64) is not None)
            body = b'{"records":[{"headers":[["%b","AAAA"],["AAAA","%b"]]}]}' % (changed, text)
            agrees(body, BASE64)


@given(st.text("AQgwBZ09az+/=-_ ", max_size=12))
def test_base64_is_read_where_it_is_what_we_would_write(text: str) -> None:
    body = f'{{"records":[{{"body":"{text}"}}]}}'.encode()
    assert agrees(body, BASE64) == (expected(body, BASE64) is not None)


def test_escapes_in_base64_are_left_to_others() -> None:
    body = '{"records":[{"body":"AA\\/A"}]}'
    assert read(body, BASE64) is None
    assert expected(body.encode(), BASE64) is not None


def test_the_table_joins_four_digits_to_three_bytes() -> None:
    table = np.frombuffer(input_facts.DIGITS, "<u4").reshape(4, 256)
    text = base64.b64encode(b"\x01\x82\xf3")
    joined = int(np.bitwise_or.reduce([table[place, byte] for place, byte in enumerate(text)]))
    assert joined.to_bytes(4, "little") == b"\x01\x82\xf3\0"
    assert all(int(entry) == input_facts.NO_DIGIT for entry in table[:, ord("=")])


# What a text costs


@pytest.mark.parametrize(
    ("text", "surplus"),
    [
        ('{"records":[{"body":"xyz"}]}', 25),
        ('{"records":[{"body":"xyz"}]} \n', 27),
        ('{"records":[{"body":"\\n\\u00e9é"}]}', 25 + 1 + 4),
        ('{"records":[{"headers":[["a","bc"]]}]}', 35),
        ('{"records":[{"timestamp":7}]}', 29),
    ],
)
def test_the_surplus_is_what_is_no_data(text: str, surplus: int) -> None:
    assert surplus_bytes(text.encode()) == surplus


def test_what_is_left_to_others_has_no_surplus() -> None:
    assert surplus_bytes(b'{"records":[{}],"x":1}') is None
    assert surplus_bytes(b'{"records":[]}') is None


def test_a_condition_of_19_digits_is_exact() -> None:
    for number in (2**63, 10**19 - 1):
        found = read(f'{{"records":[{{"timestamp":{number}}}],"match_seq_num":{number}}}')
        assert found is not None
        assert found.match_seq_num == number <= U64_MAX
        assert found.batch.timestamps is not None
        assert found.batch.timestamps.tolist() == [number]

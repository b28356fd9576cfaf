import base64
import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bourn.errors import BadJson, Invalid
from bourn.limits import U64_MAX
from bourn.model.record import Record, command_of, fence_record, metered_bytes, trim_record
from bourn.wire import json_check, json_input, json_kernel, json_words
from bourn.wire.json import Format
from bourn.wire.json_input import JsonAppendInput, decode_append_input, plain_body
from tests.wire.json_texts import Member, inputs, junk, repeats_a_key, spell

RAW, BASE64 = Format


def decode(text: str | bytes, fmt: Format = RAW) -> JsonAppendInput:
    return decode_append_input(text.encode() if isinstance(text, str) else text, fmt)


def records(text: str, fmt: Format = RAW) -> list[Record]:
    return decode(f'{{"records":[{text}]}}', fmt).records


def refusal(text: str | bytes, fmt: Format = RAW) -> str:
    with pytest.raises(BadJson) as caught:
        decode(text, fmt)
    return caught.value.message


# The vectors of the specification


def test_a_trim_command_in_base64() -> None:
    text = '{"headers":[["","dHJpbQ=="]],"body":"AAAAAAAAAGQ="}'
    assert records(text, BASE64) == [trim_record(100)]
    assert bytes.fromhex("0000000000000064") == trim_record(100).body


def test_a_fence_command_in_raw() -> None:
    [record] = records('{"headers":[["","fence"]],"body":"abc"}')
    assert record == fence_record("abc")
    assert metered_bytes(record.headers, record.body) == 18


def test_a_command_that_clears_the_fence() -> None:
    [record] = records('{"headers":[["","fence"]]}')
    assert record == fence_record("")
    assert command_of(record.headers, record.body)
    assert metered_bytes(record.headers, record.body) == 15


def test_an_empty_record() -> None:
    assert records("{}") == [Record()]


# Shape


def test_everything_at_once() -> None:
    decoded = decode(
        """ { "fencing_token" : "t", "match_seq_num":18446744073709551615, "records" : [
        {"body":"b\\u00e9","headers":[["k","v"],["k",""]],"timestamp":0},
        {"timestamp":18446744073709551615}, {"body":""} ] }
        """
    )
    assert decoded == JsonAppendInput(
        [
            Record("bé".encode(), ((b"k", b"v"), (b"k", b"")), 0),
            Record(timestamp=U64_MAX),
            Record(),
        ],
        U64_MAX,
        "t",
    )


def test_null_stands_for_absent() -> None:
    assert decode(
        '{"records":[{"headers":null,"body":null,"timestamp":null}],'
        '"match_seq_num":null,"fencing_token":null}'
    ) == JsonAppendInput([Record()], None, None)


def test_zero_and_empty_are_values() -> None:
    assert decode('{"records":[],"match_seq_num":0,"fencing_token":""}') == ([], 0, "")


def test_headers_may_be_pairs_or_objects_and_keep_order_and_repeats() -> None:
    text = '{"headers":[["a","1"],{"name":"b","value":"2"},{"value":"3","name":"a"},["a","1"]]}'
    expected = ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", b"1"))
    assert records(text)[0].headers == expected


def test_unknown_fields_are_ignored() -> None:
    assert decode(
        '{"x":{"records":1},"records":[{"body":"b","y":[1.5,-3,1e300,{"z":null}]},'
        '{"headers":[{"name":"n","value":"v","w":true}]}],"match_seq_nums":-1}'
    ) == JsonAppendInput([Record(b"b"), Record(headers=((b"n", b"v"),))], None, None)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "null",
        '"records"',
        "1",
        '{"records":null}',
        '{"records":{}}',
        '{"records":"[]"}',
        '{"records":[null]}',
        '{"records":[[]]}',
        '{"records":["body"]}',
        '{"records":[{"body":1}]}',
        '{"records":[{"body":["b"]}]}',
        '{"records":[{"body":true}]}',
        '{"records":[{"headers":{}}]}',
        '{"records":[{"headers":"ab"}]}',
        '{"records":[{"headers":["ab"]}]}',
        '{"records":[{"headers":[null]}]}',
        '{"records":[{"headers":[[]]}]}',
        '{"records":[{"headers":[["a"]]}]}',
        '{"records":[{"headers":[["a","b","c"]]}]}',
        '{"records":[{"headers":[["a",1]]}]}',
        '{"records":[{"headers":[["a",null]]}]}',
        '{"records":[{"headers":[{"name":"a"}]}]}',
        '{"records":[{"headers":[{"value":"a"}]}]}',
        '{"records":[{"headers":[{"name":null,"value":"a"}]}]}',
        '{"records":[{"timestamp":"1"}]}',
        '{"records":[{"timestamp":true}]}',
        '{"records":[{"timestamp":[]}]}',
        '{"records":[],"match_seq_num":"1"}',
        '{"records":[],"fencing_token":1}',
        '{"records":[],"fencing_token":["t"]}',
    ],
)
@pytest.mark.parametrize("fmt", Format)
def test_a_wrong_shape_is_bad_json(text: str, fmt: Format) -> None:
    assert refusal(text, fmt)


@pytest.mark.parametrize(
    "number",
    [
        *("-1", "-0", "-0.0", "0.0", "1.0", "1.5", "1e3", "1E3", "0e0", "1e-3", "1e999", "-1e999"),
        *("18446744073709551616", "-18446744073709551615", "99999999999999999999", "1" * 5000),
    ],
)
@pytest.mark.parametrize("field", ["timestamp", "match_seq_num"])
@pytest.mark.parametrize("fmt", Format)
def test_a_number_that_is_no_u64_is_bad_json(number: str, field: str, fmt: Format) -> None:
    text = {
        "timestamp": '{"records":[{"timestamp":1},{"timestamp":%s}]}',
        "match_seq_num": '{"records":[],"match_seq_num":%s}',
    }[field] % number
    assert refusal(text, fmt)


@given(st.integers(0, U64_MAX))
@example(U64_MAX)
@example(2**63)
@example(2**53 + 1)
@example(0)
def test_every_u64_is_exact(number: int) -> None:
    text = f'{{"records":[{{"timestamp":{number},"body":"-0"}}],"match_seq_num":{number}}}'
    decoded = decode(text)
    assert decoded.records == [Record(b"-0", (), number)]
    assert decoded.match_seq_num == number


def test_a_negative_zero_elsewhere_does_no_harm() -> None:
    assert decode('{"records":[{"timestamp":0}],"x":-0}').records == [Record(timestamp=0)]
    assert refusal('{"records":[{"timestamp":-0}],"x":0}')


def test_a_fencing_token_is_at_most_36_bytes_of_utf_8() -> None:
    text = '{"records":[],"fencing_token":"%s"}'
    assert decode(text % ("é" * 18)).fencing_token == "é" * 18
    for token in ("é" * 18 + "x", "x" * 37):
        message = refusal(text % token)
        assert message == "fencing token must not exceed 36 bytes in length"


@pytest.mark.parametrize("extra", ["", ',"x":1'])
def test_a_batch_may_have_1000_records_and_no_more(extra: str) -> None:
    def text(count: int) -> str:
        return '{"records":[' + ",".join(["{}"] * count) + "]" + extra + "}"

    assert len(decode(text(1000)).records) == 1000
    with pytest.raises(Invalid, match="record batch must not exceed 1000 records"):
        decode(text(1001))


# Text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"", "line 1 column 1"),
        (b"  ", "line 1 column 1"),
        (b'{"records":[}', "line 1 column 13"),
        (b'{"records":[]', "line 1 column 14"),
        (b'{"records":[]}x', "line 1 column 15"),
        (b'{\n"records":\n [,]}', "line 3 column 3"),
        (b'\xef\xbb\xbf{"records":[]}', "line 1 column 1"),
        (b'{"records":[{"body":"\xff"}]}', "line 1 column 22"),
        (b'{"records":\n[{"body":"ab\xed\xa0\x80"}]}', "line 2 column 13"),
        (b'{"records":[],"x":"\xc3"}', "line 1 column 20"),
        (b'{"records":[{"body":"\\ud800"}]}', "line 1 column 22"),
    ],
)
def test_the_message_names_the_place_where_the_text_goes_wrong(text: bytes, place: str) -> None:
    assert refusal(text).endswith(f" at {place}")


@pytest.mark.parametrize(
    "inside",
    [
        *('"\\ud800"', '"\\udc00"', '"\\ud800x"', '"\\ud800\\ud800"', '"\\udc00\\ud800"'),
        *('"\\x"', '"\\u12"', '"\n"', '"\x00"', '"\x1f"', "'a'", "01", "+1", ".5", "1.", "1e"),
        *("NaN", "Infinity", "tru", "True", "[1,]", '{"a":1,}', '{"a"}', "{1:2}", "/**/1", ""),
    ],
)
@pytest.mark.parametrize("shape", ['{"records":[{"body":%s}]}', '{"records":[],"unknown":%s}'])
def test_what_is_no_json_is_refused_wherever_it_stands(inside: str, shape: str) -> None:
    assert re.search(r" at line \d+ column \d+$", refusal(shape % inside))


def test_an_escaped_pair_of_surrogates_is_one_character() -> None:
    assert records('{"body":"\\ud83d\\ude00"}')[0].body == "😀".encode()


@pytest.mark.parametrize(
    "text",
    [
        '{"records":[],"records":[]}',
        '{"records":[{"body":"a","body":"a"}]}',
        '{"records":[{"body":null,"body":"a"}]}',
        '{"records":[{"timestamp":1,"timestamp":1}]}',
        '{"records":[{"headers":[],"headers":[]}]}',
        '{"records":[{"headers":[{"name":"a","value":"b","name":"c"}]}]}',
        '{"records":[],"fencing_token":"a","fencing_token":"a"}',
        '{"records":[],"match_seq_num":null,"match_seq_num":1}',
        '{"records":[{"body":"a","b\\u006fdy":"a"}]}',
        '{"records":[],"x":1,"x":1}',
        '{"records":[{"x":1,"x":1}]}',
        '{"records":[],"x":[{"y":{"z":1,"z":2}}]}',
        # The colon of the second key is hidden behind one that is written as an escape.
        '{"records":[{"body":"\\u003a","body":"\\u003a"}]}',
        '{"records":[{"body":"","body":"\\u003A"}]}',
        '{"records":[{"body":"x"},{"body":":","body":"\\u003a\\u003a"}]}',
    ],
)
def test_a_key_given_twice_is_refused_wherever_it_stands(text: str) -> None:
    assert re.fullmatch(r"duplicate field `\w+`", refusal(text))


def test_a_long_key_given_twice_is_named_in_short() -> None:
    key = "k" * 100_000
    assert len(refusal(f'{{"records":[],"{key}":1,"{key}":1}}')) < 100


@pytest.mark.parametrize(
    "body",
    [":", '{"a":"b"}', "12:30", "\\u003a", "\\u003A\\u003a:", "\\\\u003a", '\\"a\\":'],
    ids=repr,
)
@pytest.mark.parametrize("extra", ["", ',"fencing_token":"a:b"', ',"x":{"y:":"z:"}'])
def test_colons_in_strings_are_no_keys(body: str, extra: str) -> None:
    body = body if "\\" in body else json.dumps(body)[1:-1]
    text = f'{{"records":[{{"body":"{body}","headers":[["{body}",":"],{{"name":":","value":""}}]}}]'
    [record] = decode(text + extra + "}").records
    expected = json.loads(f'"{body}"').encode()
    assert record == Record(expected, ((expected, b":"), (b":", b"")))


nests = pytest.mark.parametrize(
    ("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")], ids=repr
)


@nests
def test_an_unknown_field_may_be_nested(opening: str, closing: str) -> None:
    text = '{"records":[],"x":' + opening * 100 + "0" + closing * 100 + "}"
    assert decode(text).records == []


@pytest.mark.parametrize("depth", [900, 1000, 1023, 1030, 5000, 200_000])
@nests
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"records":[],"x":', "}"),
        ("", ""),
        ('{"records":', "}"),
        ('{"records":[{"headers":', "}]}"),
        ('{"records":[{"body":', "}]}"),
    ],
)
def test_deep_nesting_is_read_or_refused_and_never_more(
    depth: int, opening: str, closing: str, before: str, after: str
) -> None:
    with suppress(BadJson):
        decode(before + opening * depth + "0" + closing * depth + after)
    assert refusal(before + opening * depth)


@given(st.binary(max_size=200))
def test_any_bytes_give_an_input_or_bad_json(data: bytes) -> None:
    for fmt in Format:
        for body in (data, b'{"records":[{"body":"' + data + b'"}]}'):
            with suppress(BadJson, Invalid):
                decode_append_input(body, fmt)


# Base64


@pytest.mark.parametrize(
    "text",
    [
        *(
            "A",
            "AA",
            "AAA",
            "AAAAA",
            "AA=",
            "A===",
            "====",
            "=AAA",
            "AA==AA==",
            "AAAA=",
            "AAAA====",
        ),
        *("AB==", "AAB=", "A-A=", "A_A=", "AA==\\n", " AA==", "A A=", "AA\\u0000=", "é==="),
    ],
)
@pytest.mark.parametrize(
    "shape", ['{"body":"%s"}', '{"headers":[["","%s"]]}', '{"headers":[["%s",""]]}']
)
def test_base64_that_is_not_canonical_is_invalid(text: str, shape: str) -> None:
    with pytest.raises(Invalid, match=r"^invalid Base64 encoding$"):
        records(shape % text, BASE64)


@given(st.text("AQgwBZ09az+/=-_ \n", max_size=12))
def test_base64_is_taken_exactly_where_it_is_what_we_would_write(text: str) -> None:
    try:
        data = base64.b64decode(text, validate=True)
        canonical = base64.b64encode(data).decode() == text
    except ValueError:
        canonical = False
    if canonical:
        assert records(json.dumps({"body": text}), BASE64) == [Record(data)]
    else:
        with pytest.raises(Invalid):
            records(json.dumps({"body": text}), BASE64)


def test_a_fencing_token_is_text_in_either_format() -> None:
    assert decode('{"records":[],"fencing_token":"not base64!"}', BASE64).fencing_token


@pytest.mark.parametrize(
    "text",
    [
        '{"records":[{"body":"!"},{"timestamp":-1}]}',
        '{"records":[{"body":"!"},{"timestamp":18446744073709551616}]}',
        '{"records":[{"body":"!"}],"fencing_token":"%s"}' % ("x" * 37),
        '{"records":[{"body":"!"},{"body":"","body":""}]}',
        '{"records":[{"body":"!"}]',
    ],
)
def test_bad_json_wins_over_invalid_base64(text: str) -> None:
    assert refusal(text, BASE64)


# Quick and exact agree


def expected_input(document: Member) -> JsonAppendInput:
    top = dict(document.members)

    def one(item: Member) -> Record:
        fields = dict(item.members)
        headers = [
            [value for _, value in pair.members] if isinstance(pair, Member) else pair
            for pair in fields.get("headers") or []
        ]
        return Record(
            (fields.get("body") or "").encode(),
            tuple((name.encode(), value.encode()) for name, value in headers),
            fields.get("timestamp"),
        )

    return JsonAppendInput(
        [one(item) for item in top["records"]], top.get("match_seq_num"), top.get("fencing_token")
    )


@given(inputs, st.data())
def test_an_input_is_read_as_written_unless_it_repeats_a_key(
    document: Member, data: st.DataObject
) -> None:
    text = spell(document, data.draw)
    if repeats_a_key(document):
        assert refusal(text).startswith("duplicate field")
    else:
        assert decode(text) == expected_input(document)


@given(inputs, st.data())
def test_what_is_read_quickly_is_what_is_read_exactly(
    document: Member, data: st.DataObject
) -> None:
    body = bytearray(spell(document, data.draw).encode())
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + 1] = data.draw(st.sampled_from([b"", b":", b'"', b"0", b"-", b",", b"\xff"]))
    quick = json_input._read_quickly(bytes(body))
    if quick is not None:
        assert quick == json_input._read_exactly(bytes(body))


@pytest.mark.parametrize(
    "text",
    [
        '{"records":[{"body":"b"}]}',
        '{"records":[{"body":"12:30"}],"match_seq_num":0}',
        '{"records":[{"timestamp":0,"headers":[["a","b:"],{"name":"a","value":"b"}]}]}',
        '{"records":[{"body":"2024-01-01"}],"fencing_token":"a:b"}',
        '{"records":[{"body":"\\u003c\\u00e9"}]}',
    ],
)
def test_what_clients_send_is_read_quickly(text: str) -> None:
    assert json_input._read_quickly(text.encode()) is not None


# The check of large texts


def test_the_check_carries_the_checksum_of_the_helpers_it_was_compiled_with() -> None:
    checksum = hashlib.sha256(Path(json_words.__file__).read_bytes()).hexdigest()[:16]
    assert checksum == json_kernel.HELPERS_CHECKSUM, "write this checksum into json_kernel.py"


NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")


def is_json(body: bytes) -> bool:
    while True:
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError as error:
            if "infinity" not in error.msg:
                return False
            # The other parser stops there: a smaller number in its place, and it looks at the rest.
            rest = NUMBER.sub("0", error.doc[error.pos :], count=1)
            body = (error.doc[: error.pos] + rest).encode()
        else:
            return True


def names_a_key_twice(body: bytes) -> bool:
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found |= len(dict(pairs)) < len(pairs)

    json.loads(body, object_pairs_hook=look)
    return found


texts = st.builds(lambda value, data: spell(value, data.draw).encode(), junk, st.data())
MUTATIONS = (
    b"",
    b":",
    b'"',
    b"0",
    b"-",
    b",",
    b"[",
    b"}",
    b"\\",
    b"\\u",
    b"d800",
    b"e",
    b".",
    b" ",
)


@given(texts, st.lists(st.tuples(st.floats(0, 0.999), st.sampled_from(MUTATIONS)), max_size=3))
@example(b'{"a":{"a":1},"b":[{"a":1},{"a":1}]}', [])
@example(b'{"\\u0061":1,"a":2}', [])
@example(b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":2}', [])
@example(b'{"":1,"\\u0000":2,"\\u0000\\u0000":3}', [])
@example(b'["\\ud800\\u0061"]', [])
@example(b"[1e]", [])
@example(b"-", [])
@example(b"0.", [])
@example(b"[tru]", [])
@example(b"nul", [])
@example(b"falsy", [])
@example(b"[1e309,1", [])
@example(b"[-1e309,1e309]", [])
def test_the_check_agrees_with_another_parser(
    body: bytes, changes: list[tuple[float, bytes]]
) -> None:
    for place, change in changes:
        at = int(place * len(body))
        body = body[:at] + change + body[at + 1 :]
    if is_json(body) and not names_a_key_twice(body):
        json_check.check(body)
    else:
        wanted = "duplicate field" if is_json(body) else r" at line \d+ column \d+$"
        with pytest.raises(BadJson, match=wanted):
            json_check.check(body)


@given(st.binary(max_size=60))
def test_the_check_answers_any_bytes(body: bytes) -> None:
    try:
        json_check.check(body)
    except BadJson:
        assert not is_json(body)
    else:
        assert is_json(body)


@pytest.mark.parametrize("number", [0, 1, U64_MAX, 10**19, 12345678901234567890])
def test_a_u64_passes_the_check_as_it_is(number: int) -> None:
    assert json.loads(json_check.check(b"[%d]" % number).text) == [number]


@pytest.mark.parametrize("number", ["-0", str(U64_MAX + 1), "99999999999999999999", "1" * 400])
def test_an_integer_that_is_no_u64_leaves_the_check_as_a_negative_one(number: str) -> None:
    assert json.loads(json_check.check(f"[{number},{number}]".encode()).text) == [-1, -1]


@pytest.mark.parametrize("length", [1, 2, 70, 5000])
def test_keys_that_differ_late_or_in_length_are_different(length: int) -> None:
    keys = [f"{'k' * length}{ending}" for ending in ("", "a", "b", "aa")]
    members = ",".join(f'"{key}":{{"{key}":0}}' for key in keys)
    json_check.check(f"{{{members}}}".encode())
    with pytest.raises(BadJson, match="duplicate field"):
        json_check.check(f'{{{members},"{keys[2]}":0}}'.encode())


@given(
    st.lists(st.sampled_from([b"[]", b'{"a":[1,2]}', b'"],["', b'"\\",["', b"1"])),
    st.integers(1, 9),
)
def test_the_pieces_of_an_array_are_the_array(elements: list[bytes], piece_bytes: int) -> None:
    array = b"[" + b" , ".join(elements) + b"]"
    whole: list[Any] = []
    for index, piece in json_check.pieces(array, piece_bytes):
        assert index == len(whole)
        whole += json.loads(piece)
    assert whole == json.loads(array)


def many_headers(last: str) -> str:
    headers = ",".join(['["a","b"]', '{"name":"c:","value":"d"}'] * 30_000)
    return f'{{"records":[{{}},{{"timestamp":7,"headers":[{headers}{last}],"body":"e"}}]}}'


def test_very_many_headers_are_read_as_few_are() -> None:
    first, second = decode(many_headers("")).records
    assert first == Record()
    assert second == Record(b"e", ((b"a", b"b"), (b"c:", b"d")) * 30_000, 7)


def test_what_is_wrong_among_very_many_headers_is_named() -> None:
    place = "`$.records[1].headers[60000]`"
    assert refusal(many_headers(",1")) == f"Expected `object | array`, got `int` - at {place}"
    message = refusal(many_headers("").replace('"e"', "1"))
    assert message == "Expected `str | null`, got `int` - at `$.records[1].body`"
    numbers = "0," * 50_000
    message = refusal(f'{{"records":[{{"headers":{{"x":[{numbers}0]}}}}]}}')
    assert message == "Expected `array | null`, got `object` - at `$.records[0].headers`"
    message = refusal(f'{{"records":[{{}},1],"x":[{numbers}0]}}')
    assert message == "Expected `object`, got `int` - at `$.records[1]`"
    assert refusal(f"[{numbers}0]") == "Expected `object`, got `array`"


def test_a_large_text_of_unknown_members_is_an_input() -> None:
    numbers = "-0," * 50_000
    decoded = decode(f'{{"records":[{{"timestamp":0,"x":[{numbers}1]}}],"match_seq_num":3}}')
    assert decoded == JsonAppendInput([Record(timestamp=0)], 3, None)


# One plain record


@given(st.text(st.characters(max_codepoint=0x100) | st.sampled_from('"\\\x00\x1f\x7f{}[]:,')))
@example("")
@example('"}]}')
@example('x"},{"body":"y')
def test_a_plain_record_is_what_the_whole_reader_makes_of_it(text: str) -> None:
    body = f'{{"records":[{{"body":"{text}"}}]}}'.encode()
    found = plain_body(body)
    if text.isascii() and text.isprintable() and not {'"', "\\"} & set(text):
        assert found is not None
    if found is not None:
        assert decode_append_input(body, Format.RAW) == ([Record(found)], None, None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"body":"}]}',  # the quotes at both ends are one
        b'{"records":[{"body":"x"}]} ',
        b'{"records":[{"body":"x"},{"body":"y"}]}',
        b'{"records":[{"body":"\xc3\xa4"}]}',
        b'{"records":[{"body":"\\n"}]}',
        b'{"records":[{"body":"\n"}]}',
        b'{"records":[{"body":"' + b"x" * 4096 + b'"}]}',
        b"",
    ],
)
def test_what_is_not_one_plain_record_is_left_to_the_whole_reader(body: bytes) -> None:
    assert plain_body(body) is None

"""Appends in JSON, small and large: which texts are read on the loop; all are read alike."""

import base64
import json
from typing import Any

import pytest

from bourn.errors import BadJson, BournError, Invalid
from bourn.http.data_plane import decode_json, is_quick_json
from bourn.layout import json_records
from bourn.limits import JSON_INLINE_BYTES_MAX, JSON_ORDINARY_INLINE_BYTES_MAX
from bourn.wire.json import Format
from tests.http.clients import Api

RAW, BASE64 = Format

json_records.warm(lambda _: None)


def text_of(*records: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"records": records, **more}, ensure_ascii=False).encode()


def padded(text: bytes, size: int) -> bytes:
    """Lengthen the first body, of one `x`, until the text is of this size."""
    assert text.count(b'"x"') == 1
    return text.replace(b'"x"', b'"%b"' % (b"x" * (size - len(text) + 1)))


ONE = text_of({"body": "x"})
HEADERS = [[str(number), "v"] for number in range(4000)]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[" * JSON_INLINE_BYTES_MAX,
        ONE,
        padded(ONE, JSON_INLINE_BYTES_MAX + 1),
        padded(ONE, JSON_ORDINARY_INLINE_BYTES_MAX),
        text_of(*[{"body": "y" * 1024}] * 100),
        text_of(*[{"body": "\n" + "é" * 512, "headers": [["k", "v"]], "timestamp": 1}] * 100),
        padded(text_of({"body": "x", "headers": HEADERS}, match_seq_num=1), 2**18),
        padded(b" " * 60_000 + ONE, 2**18),
    ],
    ids=lambda text: f"{len(text)} {text[:40]!r}",
)
def test_a_small_text_or_an_ordinary_one_is_read_on_the_loop(text: bytes) -> None:
    assert is_quick_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * (JSON_INLINE_BYTES_MAX + 1),
        padded(ONE, JSON_ORDINARY_INLINE_BYTES_MAX + 1),
        padded(text_of({"body": "x"}, unknown=1), 2**18),
        padded(text_of({"body": "x"})[:-1], 2**18),
        padded(text_of({"body": "x", "headers": [["", "fence"]]}), 2**18),
        padded(text_of({"body": "x", "headers": [*HEADERS, *HEADERS]}), 2**18),
        padded(text_of({"body": "x"}, fencing_token="\n"), 2**18),
        padded(b" " * JSON_INLINE_BYTES_MAX + ONE, 2**18),
        text_of({"body": "\n" * (JSON_INLINE_BYTES_MAX + 1)}),
        text_of({"body": "x" * 66_000}, *[{}] * 1000),
    ],
    ids=lambda text: f"{len(text)} {text[:40]!r}",
)
def test_a_large_text_that_is_odd_is_read_beside_it(text: bytes) -> None:
    assert not is_quick_json(text)


@pytest.mark.parametrize("size", [1, 100, 4096, 5000, 70_000])
def test_a_record_is_the_same_however_it_is_read(size: int) -> None:
    body = "x" * size
    quick = decode_json(
        json.dumps({"records": [{"body": body}]}, separators=(",", ":")).encode(), RAW
    )
    whole = decode_json(text_of({"body": body}), RAW)
    exact = decode_json(text_of({"body": body}, unknown=[]), RAW)
    coded = decode_json(text_of({"body": base64.b64encode(body.encode()).decode()}), BASE64)
    assert quick.batch.payload == whole.batch.payload == exact.batch.payload == coded.batch.payload
    assert quick[1:] == whole[1:] == exact[1:] == coded[1:] == (None, None)


@pytest.mark.parametrize("size", [1, 70_000])
@pytest.mark.parametrize(
    ("text", "fmt", "error"),
    [
        (text_of({"body": "x"}, {"body": 1}), RAW, BadJson("Expected `str | null`, got `int`")),
        (text_of({"body": "x"}) + b"}", RAW, BadJson("unexpected text behind the document")),
        (text_of({"body": "x"}, match_seq_num=-1), RAW, BadJson("Expected `int` >= 0")),
        (text_of({"body": "x"}, {"headers": [["", ""]]}), RAW, Invalid("unknown command")),
        (text_of({"body": "x"}, *[{}] * 1000), RAW, Invalid("record batch must not exceed 1000")),
        (text_of({"body": "x"}, {"body": "A"}), BASE64, Invalid("invalid Base64 encoding")),
        (text_of({"body": "x"}, {"body": "AB=="}), BASE64, Invalid("invalid Base64 encoding")),
    ],
)
def test_what_is_wrong_is_named_by_those_who_know_it_all(
    text: bytes, fmt: Format, error: BournError, size: int
) -> None:
    text = padded(text, len(text) - 1 + size)
    with pytest.raises(type(error)) as caught:
        decode_json(text, fmt)
    assert caught.value.message.startswith(error.message)


@pytest.mark.parametrize("more", [{}, {"unknown": 1}], ids=["ordinary", "odd"])
@pytest.mark.parametrize("fmt", Format)
def test_large_texts_are_appended_and_read_back(
    api: Api, stream: str, more: dict[str, Any], fmt: Format
) -> None:
    bodies = [f"{number}:" + "né\n" * 400 for number in range(100)]
    if fmt is BASE64:
        bodies = [base64.b64encode(body.encode()).decode() for body in bodies]
    records = [{"timestamp": 7, "headers": [["bmFt", "dmFsdWU="]], "body": body} for body in bodies]
    path, headers = f"/v1/streams/{stream}/records", {"s2-format": fmt.value}
    reply = api.post(path, {"records": records, **more}, headers=headers)
    assert reply.status == 200, reply
    reply = api.get(f"{path}?seq_num=0", headers=headers)
    found = [{key: record[key] for key in records[0]} for record in reply.json["records"]]
    assert found == records

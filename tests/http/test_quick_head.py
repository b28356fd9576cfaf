"""Heads that the quick way takes: plain ones, and no others."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.http.quick_head import QuickFields, parse_quick_head
from bourn.limits import QUICK_CONFIG_BYTES_MAX, QUICK_HEAD_BYTES_MAX, QUICK_HEADS_KEPT
from bourn.model.access import Op
from bourn.wire.compression import Compression
from tests.http.test_quick import BASIN, append, basin_config, config, ensure, read, tail

PLAIN_HEAD = append("a")[: append("a").index(b"\r\n\r\n") + 4]


def test_the_plain_head_is_taken() -> None:
    found = parse_quick_head(PLAIN_HEAD, cors=True)
    assert found is not None
    assert (found.basin, found.stream, found.length) == (BASIN, "a", 26)


@pytest.mark.parametrize(
    ("head", "op"),
    [
        (PLAIN_HEAD, Op.APPEND),
        (read("a"), Op.READ),
        (read("a", "seq_num=0&wait=5"), Op.READ),
        (tail("a"), Op.CHECK_TAIL),
        (tail("a").replace(b"/tail", b"/tail?x=y"), Op.CHECK_TAIL),
        (config("a"), Op.GET_STREAM_CONFIG),
        (config("").replace(b"s/ ", b"s "), Op.LIST_STREAMS),
        (config("").replace(b"s/ ", b"s?limit=1 "), Op.LIST_STREAMS),
        (config("").replace(b"/streams/", b"/basins"), Op.LIST_BASINS),
        (basin_config("some-basin"), Op.GET_BASIN_CONFIG),
        (
            basin_config("some-basin").replace(b"s2-basin: quick-basin\r\n", b""),
            Op.GET_BASIN_CONFIG,
        ),
        (ensure("a"), Op.CREATE_STREAM),
        (ensure("a", b"{}"), Op.CREATE_STREAM),
        (ensure("a", b"{" + b" " * (QUICK_CONFIG_BYTES_MAX - 2) + b"}"), Op.CREATE_STREAM),
        (ensure("a", b"{" + b" " * (QUICK_CONFIG_BYTES_MAX - 1) + b"}"), None),
        (ensure("a", b"{}").replace(b"content-type", b"accept"), None),
        (ensure("a", b"{}").replace(b"application/json", b"application/protobuf"), None),
        (ensure("a").replace(b"s2-basin: quick-basin\r\n", b""), None),
        (ensure("a").replace(b"/streams/a", b"/streams"), None),
        (ensure("a").replace(b"/streams/a", b"/streams/a/records"), None),
        (ensure("a", b"", "s2-request-token: x"), None),
        (basin_config("some-basin").replace(b"GET", b"PUT"), None),
        (basin_config("Some_Basin"), None),
        (basin_config("some-basin", "content-length: 0"), None),
        (config("").replace(b"s/ ", b"s ").replace(b"s2-basin: quick-basin\r\n", b""), None),
        (config(""), None),
        (tail("a").replace(b"GET", b"POST"), None),
        (config("a").replace(b"GET", b"DELETE"), None),
        (config("a", "content-type: application/json"), None),
        (tail("a", "content-length: 0"), None),
        (append("a").replace(b"/records", b"/records/tail"), None),
        (append("a").replace(b"/records", b""), None),
    ],
)
def test_a_head_says_what_is_to_be_done(head: bytes, op: Op | None) -> None:
    found = parse_quick_head(head[: head.index(b"\r\n\r\n") + 4], cors=True)
    assert (None if found is None else found.op) is op
    if found is not None:
        assert (found.wanted is None) == (op is Op.APPEND)


def test_a_basin_in_the_path_is_the_one_that_is_meant() -> None:
    found = parse_quick_head(basin_config("some-basin"), cors=True)
    assert found is not None
    assert (found.basin, found.stream) == ("some-basin", "")


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip, deflate, br, zstd", Compression.ZSTD),
        ("gzip, deflate", Compression.GZIP),
        ("deflate, br", Compression.NONE),
        ("identity", Compression.NONE),
        ("*", Compression.ZSTD),
    ],
)
def test_a_head_says_which_coding_is_wanted(accepted: str, coding: Compression) -> None:
    found = parse_quick_head(read("a", "seq_num=0", f"accept-encoding: {accepted}"), cors=True)
    assert found is not None
    assert found.coding is coding


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"HTTP/1.1", b"HTTP/1.1 "),
        (b"POST ", b"POST  "),
        (b"POST", b"post"),
        (b" /v1", b" http://here/v1"),
        (b" /v1", b" /v1/../v1"),
        (b"/records", b"/records#x"),
        (b"/records", b"/records/"),
        (b"host: here\r\n", b""),
        (b"host: here", b"host : here"),
        (b"host: here", b" host: here"),
        (b"host: here", b"host: here\r\n folded"),
        (b"host: here", b"host: he\x00re"),
        (b"host: here", b"host: he\xffre"),
        (b"host: here", b"host: here\nx: y"),
        (b"host: here\r\n", b"host: here\n"),
        (b"host: here\r\n", b"host: here\r"),
        (b"host: here\r\n", b"host: here\r\nhost: there\r\n"),
        (b"content-length: 26", b"content-length: +26"),
        (b"content-length: 26", b"content-length: 26, 26"),
        (b"content-length: 26", b"content-length: 26\r\nContent-Length: 26"),
        (b"content-length: 26", b"content-length: 2 6"),
        (b"content-length: 26", b"content-length:"),
        (b"content-length: 26", b"content-length: 26\r\ntransfer-encoding: chunked"),
        (b"content-length: 26", b"transfer-encoding: chunked"),
        (b"content-length: 26", b"content-length: 26\r\nexpect: 100-continue"),
        (b"content-length: 26", b"content-length: 26\r\nconnection: close"),
        (b"content-length: 26", b"content-length: 26\r\nupgrade: h2c"),
        (b"content-length: 26", b"content-length: 26\r\nx-unknown: 1"),
        (b"application/json", b"s2s/proto"),
        (b"content-type: application/json\r\n", b""),
        (b"s2-basin: quick-basin\r\n", b""),
        (b"quick-basin", b"Quick_Basin"),
        (b"/a/", b"/%ff/"),
        (b"/a/", b"//"),
        (b"content-length: 26", b"s2-format: odd\r\ncontent-length: 26"),
        (b"content-length: 26", b"authorization: Basic eA==\r\ncontent-length: 26"),
        (b"host: here", b"host: " + b"h" * QUICK_HEAD_BYTES_MAX),
    ],
)
def test_a_head_that_is_not_plain_is_left_to_who_knows_the_rules(old: bytes, new: bytes) -> None:
    assert old in PLAIN_HEAD
    assert parse_quick_head(PLAIN_HEAD.replace(old, new, 1), cors=True) is None


def test_fields_that_are_known_say_nothing_about_stream_length_or_verb() -> None:
    known: dict[bytes, QuickFields] = {}
    reading = read("b", "seq_num=3", "secret")
    heads = [
        PLAIN_HEAD,
        PLAIN_HEAD.replace(b"/a/", b"/b/").replace(b": 26", b": 2600"),
        PLAIN_HEAD.replace(b"content-length: 26", b"Content-Length:\t26"),
        PLAIN_HEAD.replace(b"content-length: 26", b"content-length: 26\r\ncontent-length:\t26"),
        PLAIN_HEAD.replace(b"content-length: 26\r\n", b""),
        PLAIN_HEAD.replace(b"POST", b"GET"),
        reading,
        reading.replace(b"seq_num=3", b"seq_num=4"),
        reading.replace(b"GET", b"POST"),
    ]
    for head in [*heads, *heads]:
        assert parse_quick_head(head, cors=True, known=known) == parse_quick_head(head, cors=True)
    assert len(known) == 3
    for number in range(100):
        other = PLAIN_HEAD.replace(b"host: here", b"host: here-%d" % number)
        assert parse_quick_head(other, cors=True, known=known) is not None
        assert len(known) <= QUICK_HEADS_KEPT


@settings(max_examples=300)
@given(st.data())
def test_altered_heads_never_break_it_nor_move_its_end(data: st.DataObject) -> None:
    head = bytearray(PLAIN_HEAD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(head) - 1))
        head[at] = data.draw(st.integers(0, 255))
    found = parse_quick_head(bytes(head), cors=True)
    if found is not None:
        lengths = re.findall(rb"(?im)^content-length:[ \t]*([0-9]+)[ \t]*\r$", bytes(head))
        assert [found.length] == [int(length) for length in lengths]

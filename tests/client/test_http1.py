"""HTTP/1.1 as bytes: every way to cut a response, and what is none."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.client.failures import NotS2
from bourn.client.http1 import ResponseParser, chunk_head, encode_request

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Name:  value \r\n\r\n"
    b"3\r\nabc\r\n00A;ext=1\r\n0123456789\r\n0\r\ntrailer: x\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 13\r\nConnection: close\r\n\r\nabc0123456789"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
OPEN = b"HTTP/1.0 200 OK\r\n\r\nabc0123456789"


def fed(data: bytes, cuts: list[int], *, is_closed: bool = False) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    body = b""
    bounds = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    for start, end in itertools.pairwise(bounds):
        body += b"".join(map(bytes, parser.feed(memoryview(data[start:end]))))
    if is_closed:
        parser.finish()
    return parser, body


@given(st.sampled_from([CHUNKED, SIZED, INTERIM + SIZED, OPEN]), st.lists(st.integers(0, 300)))
def test_a_response_is_the_same_however_it_is_cut(data, cuts):
    parser, body = fed(data, cuts, is_closed=True)
    assert body == b"abc0123456789"
    assert parser.is_ended
    assert parser.head is not None
    assert parser.head.status == (404 if data.endswith(SIZED) else 200)
    assert parser.head.will_close == (data != CHUNKED)


@given(st.sampled_from([CHUNKED, SIZED]), st.integers(1, 200))
def test_a_response_that_is_cut_short_has_not_ended(data, cut):
    parser, _ = fed(data[: -min(cut, len(data) - 1)], [], is_closed=True)
    assert not parser.is_ended


def test_headers_are_found_in_any_case_and_the_first_counts():
    data = b"HTTP/1.1 204 No\r\nA: 1\r\na: 2\r\nB:\r\n\r\n"
    parser, _ = fed(data, [])
    assert parser.head is not None
    assert parser.head.headers == {"a": "1", "b": ""}
    assert parser.is_ended


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"0" * 5000,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    ],
)
def test_what_is_no_response_is_refused(data):
    with pytest.raises(NotS2):
        fed(data, [])


@given(st.binary(max_size=80))
def test_any_bytes_are_taken_or_refused(data):
    with contextlib.suppress(NotS2):
        fed(CHUNKED[: len(CHUNKED) - len(data)] + data, [7, 60])


def test_a_header_cannot_smuggle_a_line():
    with pytest.raises(ValueError, match="line break"):
        encode_request("GET", "/", {"authorization": "Bearer a\r\nx: y"})
    assert encode_request("GET", "/a", {"b": "c"}) == b"GET /a HTTP/1.1\r\nb: c\r\n\r\n"
    assert chunk_head(255) == b"ff\r\n"

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import Invalid
from bourn.limits import RECORD_METERED_BYTES_MAX, U64_MAX
from bourn.model.record import (
    Fence,
    Headers,
    Record,
    Trim,
    check_record_size,
    command_of,
    fence_record,
    metered_bytes,
    parse_fencing_token,
    trim_record,
)

octets = st.binary(max_size=12)
headers = st.lists(st.tuples(octets, octets), max_size=4).map(tuple)


# Metering


def test_an_empty_record_weighs_8() -> None:
    assert metered_bytes((), b"") == 8


def test_headers_weigh_their_bytes_and_two_each() -> None:
    assert metered_bytes(((b"a", b"bc"), (b"d", b"")), b"xyz") == 8 + 4 + (1 + 2 + 1 + 0) + 3 == 19


@given(headers, octets)
def test_a_record_weighs_the_same_as_its_parts_added_up(headers: Headers, body: bytes) -> None:
    expected = 8 + len(body)
    for name, value in headers:
        expected += 2 + len(name) + len(value)
    assert metered_bytes(headers, body) == expected


@given(st.text(max_size=36).filter(lambda token: len(token.encode()) <= 36))
def test_a_fence_weighs_15_and_its_token(token: str) -> None:
    record = fence_record(token)
    assert metered_bytes(record.headers, record.body) == 15 + len(token.encode())


@given(st.integers(0, U64_MAX))
def test_a_trim_weighs_22(seq_num: int) -> None:
    record = trim_record(seq_num)
    assert metered_bytes(record.headers, record.body) == 22


def test_the_largest_body_without_headers_has_1048568_bytes() -> None:
    check_record_size(metered_bytes((), bytes(1_048_568)))
    with pytest.raises(Invalid, match=r"^record must have metered size less than 1 MiB$"):
        check_record_size(metered_bytes((), bytes(1_048_569)))
    check_record_size(RECORD_METERED_BYTES_MAX)


# Commands


def test_a_trim_to_100_has_these_bytes() -> None:
    record = trim_record(100)
    assert record == Record(bytes.fromhex("0000000000000064"), ((b"", b"trim"),), None)


def test_a_fence_has_these_bytes() -> None:
    assert fence_record("abc", 5) == Record(b"abc", ((b"", b"fence"),), 5)
    assert fence_record("") == Record(b"", ((b"", b"fence"),), None)


@given(st.integers(0, U64_MAX), st.none() | st.integers(0, U64_MAX))
def test_a_trim_comes_back(seq_num: int, timestamp: int | None) -> None:
    record = trim_record(seq_num, timestamp)
    assert record.timestamp == timestamp
    assert command_of(record.headers, record.body) == Trim(seq_num)


@given(st.text(max_size=36).filter(lambda token: len(token.encode()) <= 36))
def test_a_fence_comes_back(token: str) -> None:
    record = fence_record(token)
    assert command_of(record.headers, record.body) == Fence(token)


def test_an_empty_fence_clears() -> None:
    assert command_of(((b"", b"fence"),), b"") == Fence("")


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"fence", b""),),
        ((b"fence", b"fence"),),
        ((b"a", b""), (b"b", b"")),
        ((b"a", b"trim"), (b"a", b"trim")),
        ((b"\x00", b"fence"),),
    ],
)
def test_a_record_whose_headers_all_have_names_is_no_command(headers: Headers) -> None:
    assert command_of(headers, b"anything") is None


@pytest.mark.parametrize(
    "headers",
    [
        ((b"", b"fence"), (b"a", b"b")),
        ((b"a", b"b"), (b"", b"fence")),
        ((b"", b"trim"), (b"", b"trim")),
        ((b"", b""), (b"", b"")),
    ],
)
def test_an_empty_name_among_several_headers_is_invalid(headers: Headers) -> None:
    with pytest.raises(Invalid, match=r"^invalid header: empty name$"):
        command_of(headers, bytes(8))


@pytest.mark.parametrize("op", [b"", b"Fence", b"fence ", b"trims", b"tri", b"\xff"])
def test_an_unknown_command_is_invalid(op: bytes) -> None:
    with pytest.raises(Invalid, match=r"^unknown command$"):
        command_of(((b"", op),), bytes(8))


@pytest.mark.parametrize("size", [0, 1, 7, 9, 100])
def test_a_trim_takes_exactly_8_bytes(size: int) -> None:
    with pytest.raises(Invalid) as caught:
        command_of(((b"", b"trim"),), bytes(size))
    assert caught.value.message == (
        f"invalid `trim` command: earliest sequence number to trim to was {size} bytes, must be 8"
    )


@pytest.mark.parametrize("token", ["x" * 37, "é" * 19])
def test_a_fence_takes_at_most_36_bytes(token: str) -> None:
    assert parse_fencing_token(token.encode()[:36].ljust(36, b"x"))
    with pytest.raises(Invalid) as caught:
        command_of(((b"", b"fence"),), token.encode())
    assert caught.value.message == (
        "invalid `fence` command: fencing token must not exceed 36 bytes in length"
    )


@pytest.mark.parametrize("body", [b"\xff", b"a\xc3", b"\xed\xa0\x80"])
def test_a_fence_takes_only_utf_8(body: bytes) -> None:
    with pytest.raises(Invalid, match="invalid `fence` command: fencing token must be valid UTF-8"):
        command_of(((b"", b"fence"),), body)


@given(headers, octets)
def test_any_record_is_ordinary_a_command_or_invalid(headers: Headers, body: bytes) -> None:
    try:
        command = command_of(headers, body)
    except Invalid:
        assert any(not name for name, _ in headers)
    else:
        assert (command is None) == all(name for name, _ in headers)

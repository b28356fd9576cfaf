"""Names: every rule of the grammar, at its edges."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import BadName
from bourn.model import names

BASIN_CHARACTERS = "abcxyz0189-"


@pytest.mark.parametrize("name", ["a" * 8, "a" * 48, "0basin-0", "a------z", "12345678"])
def test_a_basin_name_of_8_to_48_letters_digits_and_hyphens_is_valid(name: str) -> None:
    assert names.basin_name(name) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "at least 8 bytes"),
        ("a" * 7, "at least 8 bytes"),
        ("a" * 49, "not exceed 48 bytes"),
        ("-abcdefg", "begin with"),
        ("abcdefg-", "end with"),
        ("Abcdefgh", "only lowercase"),
        ("abcd_efgh", "only lowercase"),
        ("abcd.efgh", "only lowercase"),
        ("abcdefgh\n", "only lowercase"),
        ("abcdéfgh", "only lowercase"),
        ("abcdefg\uff11", "only lowercase"),
    ],
)
def test_an_invalid_basin_name_is_refused_with_its_reason(name: str, text: str) -> None:
    with pytest.raises(BadName, match=text):
        names.basin_name(name)


@pytest.mark.parametrize("prefix", ["", "a", "a-", "0" * 48, "abc-def"])
def test_a_basin_prefix_may_be_short_and_may_end_with_a_hyphen(prefix: str) -> None:
    assert names.basin_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["-", "-a", "A", "a" * 49, "a_", " "])
def test_an_invalid_basin_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(BadName):
        names.basin_prefix(prefix)


@given(st.text(BASIN_CHARACTERS + "A_", max_size=60))
def test_basin_names_are_those_of_the_grammar(name: str) -> None:
    valid = re.fullmatch(r"[a-z0-9]([a-z0-9-]{6,46})[a-z0-9]", name) is not None
    if valid:
        assert names.basin_name(name) == name
    else:
        with pytest.raises(BadName):
            names.basin_name(name)


@given(st.text(BASIN_CHARACTERS, min_size=8, max_size=48))
def test_every_beginning_of_a_basin_name_is_a_basin_prefix(name: str) -> None:
    name = f"a{name[1:-1]}z"
    for length in range(len(name) + 1):
        assert names.basin_prefix(name[:length]) == name[:length]


@pytest.mark.parametrize(
    "name", ["a", "...", "a/b", " ", "?#%", "\n\x01\x7f", "😀" * 128, "x" * 512, ".hidden"]
)
def test_a_stream_name_is_almost_any_text(name: str) -> None:
    assert names.stream_name(name) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "not be empty"),
        (".", "`.` or `..`"),
        ("..", "`.` or `..`"),
        ("a\0b", "NUL"),
        ("x" * 513, "not exceed 512 bytes"),
        ("é" * 257, "not exceed 512 bytes"),
        ("a\ud800", "UTF-8"),
    ],
)
def test_an_invalid_stream_name_is_refused_with_its_reason(name: str, text: str) -> None:
    with pytest.raises(BadName, match=text):
        names.stream_name(name)


@pytest.mark.parametrize("prefix", ["", ".", "..", "é" * 256])
def test_a_stream_prefix_may_be_empty_or_dots(prefix: str) -> None:
    assert names.stream_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["\0", "x" * 513, "\udfff"])
def test_an_invalid_stream_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(BadName):
        names.stream_prefix(prefix)


def test_access_token_ids_follow_the_rules_of_stream_names_within_96_bytes() -> None:
    assert names.access_token_id("é" * 48) == "é" * 48
    for bad in ("", ".", "..", "\0", "x" * 97):
        with pytest.raises(BadName, match="access token id"):
            names.access_token_id(bad)


def test_access_token_prefixes_may_be_empty_or_dots_within_96_bytes() -> None:
    for good in ("", ".", "..", "x" * 96):
        assert names.access_token_prefix(good) == good
    for bad in ("\0", "x" * 97):
        with pytest.raises(BadName):
            names.access_token_prefix(bad)


@pytest.mark.parametrize("name", ["aws:us-east-1", "local", "A.b:c-9", "x" * 64])
def test_a_location_name_holds_letters_digits_colons_hyphens_and_dots(name: str) -> None:
    assert names.location_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a/b", "é", "a_b", "local\n"])
def test_an_invalid_location_name_is_refused(name: str) -> None:
    with pytest.raises(BadName, match="location name"):
        names.location_name(name)


@pytest.mark.parametrize("token", ["", "a", "9" * 36, "c9d5-~!", "a b\t"])
def test_a_request_token_is_up_to_36_printable_characters(token: str) -> None:
    assert names.request_token(token) == token


@pytest.mark.parametrize("token", ["x" * 37, "é", "a\n", "\x7f", "\0"])
def test_an_invalid_request_token_is_refused(token: str) -> None:
    with pytest.raises(BadName, match="request token"):
        names.request_token(token)


def test_a_storage_class_is_any_label_of_1_to_64_bytes() -> None:
    for good in ("standard", "express", "é" * 32):
        assert names.storage_class(good) == good
    for bad in ("", "x" * 65, "é" * 33):
        with pytest.raises(BadName, match="storage class"):
            names.storage_class(bad)


@pytest.mark.parametrize(
    ("limit", "page"),
    [(None, 1000), (0, 1000), (1, 1), (999, 999), (1000, 1000), (1001, 1000), (2**64 - 1, 1000)],
)
def test_a_list_limit_out_of_range_means_the_largest_page(limit: int | None, page: int) -> None:
    assert names.list_limit(limit) == page


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_either_a_name_or_refused_as_the_requests_fault(text: str) -> None:
    for grammar in (
        names.basin_name,
        names.basin_prefix,
        names.stream_name,
        names.stream_prefix,
        names.access_token_id,
        names.access_token_prefix,
        names.location_name,
        names.request_token,
        names.storage_class,
    ):
        with suppress(BadName):
            assert grammar(text) == text

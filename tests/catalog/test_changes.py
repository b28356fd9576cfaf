"""Changes: their bytes, across versions."""

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.catalog.changes import VERSION, Change, decode_change, encode_change
from bourn.errors import Undecodable
from tests.catalog.samples import GOLDEN, SAMPLES, changes, golden_text

GOLDEN_FILES = Path(__file__).parents[1] / "golden"


def golden_file(version: int) -> str:
    return (GOLDEN_FILES / f"catalog_changes_v{version}.txt").read_text()


@given(changes)
def test_a_change_survives_its_bytes(change: Change) -> None:
    encoded = encode_change(change)
    assert decode_change(encoded) == change
    assert decode_change(memoryview(encoded)) == change


@pytest.mark.parametrize("version", SAMPLES)
def test_changes_are_written_as_they_have_always_been(version: int) -> None:
    assert golden_text(version) == golden_file(version)


@pytest.mark.parametrize("version", SAMPLES)
def test_changes_written_long_ago_are_read(version: int) -> None:
    lines = [line.split() for line in golden_file(version).splitlines()]
    found = {name: decode_change(bytes.fromhex(data)) for name, data in lines}
    assert found == SAMPLES[version]


@pytest.mark.parametrize("version", SAMPLES)
def test_a_change_says_the_first_version_that_knows_it(version: int) -> None:
    for change in SAMPLES[version].values():
        assert encode_change(change)[0] == version


@given(changes, st.data())
def test_a_truncated_change_is_undecodable(change: Change, data: st.DataObject) -> None:
    encoded = encode_change(change)
    with pytest.raises(Undecodable):
        decode_change(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(changes, st.binary(min_size=1, max_size=8))
def test_a_change_with_bytes_behind_it_is_undecodable(change: Change, more: bytes) -> None:
    with pytest.raises(Undecodable):
        decode_change(encode_change(change) + more)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_change_or_undecodable(data: bytes) -> None:
    for attempt in (data, b"\x01" + data, b"\x01\x92\x01" + data, b"\x01\x92\x03" + data):
        with suppress(Undecodable):
            decode_change(attempt)


@given(changes, st.data())
def test_altered_bytes_are_a_change_or_undecodable(change: Change, data: st.DataObject) -> None:
    altered = bytearray(encode_change(change))
    altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Undecodable):
        assert isinstance(decode_change(bytes(altered)), Change)


@pytest.mark.parametrize("version", [0, VERSION + 1, 255])
def test_a_change_of_another_version_is_refused_and_named(version: int) -> None:
    body = encode_change(GOLDEN["drop-basin"])[1:]
    with pytest.raises(Undecodable, match=f"has version {version}"):
        decode_change(bytes([version]) + body)


@pytest.mark.parametrize("kind", [0, 99, "1", None])
def test_a_change_of_an_unknown_kind_is_refused(kind: object) -> None:
    with pytest.raises(Undecodable):
        decode_change(bytes([VERSION]) + msgspec.msgpack.encode([kind, 1, 1]))


def test_no_bytes_are_no_change() -> None:
    with pytest.raises(Undecodable):
        decode_change(b"")

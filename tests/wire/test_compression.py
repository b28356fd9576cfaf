import resource
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from bourn.errors import BadCompression, NotAcceptable, UnsupportedEncoding
from bourn.limits import KIB, MIB, ZSTD_WINDOW_BYTES_MAX
from bourn.wire.compression import (
    Compression,
    choose_frame_compression,
    choose_response_encoding,
    compress,
    decompress,
    parse_content_encoding,
)

NONE, ZSTD, GZIP = Compression

Pack = Callable[[bytes], bytes]

texts = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda piece, times: piece * times, st.binary(max_size=20), st.integers(0, 5000)),
)


def unsized_zstd(data: bytes, level: int = 3) -> bytes:
    return zstandard.ZstdCompressor(level=level, write_content_size=False).compress(data)


def zstd_bomb(size: int, *, window_exponent: int = 7) -> bytes:
    """A frame of `size` zeros, unsized: 4 bytes for every 128 KiB of them."""
    block = 128 * KIB
    count = size // block
    head = bytes.fromhex("28b52ffd") + bytes((0, window_exponent << 3))
    repeated = (block << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    last = (block << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\x00"
    return head + repeated * (count - 1) + last


def gzip_bomb(size: int) -> bytes:
    """A member of `size` zeros, made of one compressed MiB over and over."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = deflate.compress(bytes(MIB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    again = deflate.compress(bytes(MIB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return start + again * (size // MIB - 1) + deflate.flush()


ways = [
    pytest.param(ZSTD, lambda data: compress(data, ZSTD), id="zstd"),
    pytest.param(ZSTD, unsized_zstd, id="zstd-unsized"),
    pytest.param(GZIP, lambda data: compress(data, GZIP), id="gzip"),
]


@pytest.mark.parametrize("compression", Compression)
@given(data=texts)
@example(data=b"")
def test_what_was_compressed_comes_back(compression: Compression, data: bytes) -> None:
    packed = compress(data, compression)
    assert decompress(packed, compression, len(data)) == data
    assert decompress(memoryview(bytearray(packed)), compression, 10**7) == data


@given(data=texts, level=st.sampled_from([1, 3, 19]))
@example(data=b"", level=3)
def test_a_zstd_frame_may_leave_out_its_content_size(data: bytes, level: int) -> None:
    assert decompress(unsized_zstd(data, level), ZSTD, len(data)) == data


def test_large_data_comes_back_from_any_encoder() -> None:
    data = Random(3).randbytes(300_000) * 5
    for packed in (compress(data, ZSTD), unsized_zstd(data), unsized_zstd(data, 19)):
        assert decompress(packed, ZSTD, 2 * MIB) == data
    for level in (1, 6, 9):
        member = zlib.compressobj(level, zlib.DEFLATED, 31)
        assert decompress(member.compress(data) + member.flush(), GZIP, 2 * MIB) == data


@pytest.mark.parametrize(("compression", "pack"), [pytest.param(NONE, bytes, id="none"), *ways])
@pytest.mark.parametrize("size", [1, 1000, 128 * KIB, 128 * KIB + 1, MIB])
def test_the_cap_is_exact(compression: Compression, pack: Pack, size: int) -> None:
    packed = pack(bytes(size))
    assert decompress(packed, compression, size) == bytes(size)
    with pytest.raises(BadCompression, match=f"decompressed size exceeds {size - 1} bytes"):
        decompress(packed, compression, size - 1)


@pytest.mark.parametrize(("compression", "pack"), ways)
@pytest.mark.parametrize("data", [b"", b"some text, some text, some text", bytes(range(256)) * 5])
def test_every_truncation_is_refused(compression: Compression, pack: Pack, data: bytes) -> None:
    packed = pack(data)
    for end in range(len(packed)):
        with pytest.raises(BadCompression):
            decompress(packed[:end], compression, 10_000)


@pytest.mark.parametrize(("compression", "pack"), ways)
@pytest.mark.parametrize("data", [b"", b"text"])
@pytest.mark.parametrize("more", [b"\x00", b"garbage", None], ids=["zero", "garbage", "again"])
def test_nothing_may_follow_the_first_frame_or_member(
    compression: Compression, pack: Pack, data: bytes, more: bytes | None
) -> None:
    packed = pack(data)
    with pytest.raises(BadCompression):
        decompress(packed + (packed if more is None else more), compression, 10_000)


@pytest.mark.parametrize(("compression", "pack"), ways)
@given(data=st.binary(max_size=200), draw=st.data())
def test_altered_bytes_give_data_within_the_cap_or_bad_compression(
    compression: Compression, pack: Pack, data: bytes, draw: st.DataObject
) -> None:
    packed = bytearray(pack(data))
    for _ in range(draw.draw(st.integers(1, 3))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    with suppress(BadCompression):
        assert len(decompress(bytes(packed), compression, 1000)) <= 1000


@pytest.mark.parametrize("compression", [ZSTD, GZIP])
@given(data=st.binary(max_size=100))
def test_any_bytes_give_data_or_bad_compression(compression: Compression, data: bytes) -> None:
    magic = bytes.fromhex("28b52ffd") if compression is ZSTD else bytes.fromhex("1f8b08")
    for hostile in (data, magic + data):
        with suppress(BadCompression):
            assert len(decompress(hostile, compression, 1000)) <= 1000


@pytest.mark.parametrize(
    ("compression", "bomb"),
    [
        pytest.param(ZSTD, zstd_bomb(1024 * MIB), id="zstd"),
        pytest.param(ZSTD, zstd_bomb(1024 * MIB, window_exponent=13), id="zstd-8-MiB-window"),
        pytest.param(GZIP, gzip_bomb(1024 * MIB), id="gzip"),
    ],
)
def test_a_bomb_of_a_gibibyte_is_refused_in_little_memory(
    compression: Compression, bomb: bytes
) -> None:
    assert len(bomb) < 2 * MIB
    resident_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(BadCompression, match="decompressed size exceeds"):
            decompress(bomb, compression, 2 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * MIB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident_kib < 32 * KIB


def test_the_bombs_are_real() -> None:
    assert decompress(zstd_bomb(4 * MIB), ZSTD, 4 * MIB) == bytes(4 * MIB)
    assert zlib.decompressobj(31).decompress(gzip_bomb(4 * MIB)[:-8]) == bytes(4 * MIB)


def test_a_declared_size_above_the_cap_is_refused_before_anything_is_made() -> None:
    bomb = zstandard.ZstdCompressor().compressobj(size=2**40)
    head = bomb.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) or bomb.compress(b"x" * 200_000)
    with pytest.raises(BadCompression, match="decompressed size exceeds 1000 bytes"):
        decompress(head, ZSTD, 1000)


def test_a_zstd_frame_that_asks_for_too_large_a_window_is_refused() -> None:
    largest = ZSTD_WINDOW_BYTES_MAX.bit_length() - 1 - 10
    assert len(decompress(zstd_bomb(MIB, window_exponent=largest), ZSTD, MIB)) == MIB
    with pytest.raises(BadCompression, match="zstd"):
        decompress(zstd_bomb(MIB, window_exponent=largest + 1), ZSTD, MIB)


@pytest.mark.parametrize("bad", [b"", b"garbage", unsized_zstd(b"text")[:-1]])
def test_a_refusal_does_not_spoil_the_next_call(bad: bytes) -> None:
    for _ in range(3):
        with pytest.raises(BadCompression):
            decompress(bad, ZSTD, 1000)
        assert decompress(compress(b"good", ZSTD), ZSTD, 1000) == b"good"
        assert decompress(unsized_zstd(b"good"), ZSTD, 1000) == b"good"


def test_threads_do_not_share_a_context() -> None:
    def work(seed: int) -> bool:
        data = Random(seed).randbytes(5000) * 20
        return all(
            decompress(pack(data), ZSTD, len(data)) == data
            for _ in range(20)
            for pack in (unsized_zstd, lambda data: compress(data, ZSTD))
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


# Negotiation


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], NONE),
        ([""], NONE),
        (["zstd"], ZSTD),
        (["gzip"], GZIP),
        (["GZip"], GZIP),
        (["gzip, zstd"], ZSTD),
        (["gzip;q=1, zstd;q=0.001"], ZSTD),
        (["gzip", "zstd"], ZSTD),
        (["zstd;q=0, gzip"], GZIP),
        (["zstd;q=0.000,gzip;q=0"], NONE),
        (["*"], NONE),
        (["br, deflate, identity"], NONE),
        (["zstd;q=2"], NONE),
        (["zstd;q"], NONE),
        ([" zstd ; q=0.5 "], ZSTD),
    ],
)
def test_a_session_takes_zstd_else_gzip_else_none(values: list[str], expected: Compression) -> None:
    assert choose_frame_compression(values) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], NONE),
        ([""], NONE),
        (["identity"], NONE),
        (["br, deflate"], NONE),
        (["gzip"], GZIP),
        (["x-gzip"], GZIP),
        (["gzip, deflate, br, zstd"], ZSTD),
        (["gzip, zstd;q=0.9"], GZIP),
        (["gzip;q=0.8", "zstd;q=0.9"], ZSTD),
        (["gzip;q=0.5, zstd;q=0.500"], ZSTD),
        (["gzip;q=0.123, zstd;q=0.12"], GZIP),
        (["*"], ZSTD),
        (["*;q=0.5, gzip"], GZIP),
        (["*, zstd;q=0"], GZIP),
        (["*;q=0"], None),
        (["*;q=0, identity"], NONE),
        (["*;q=0, gzip"], GZIP),
        (["gzip;q=0"], NONE),
        (["identity, gzip;q=0.5"], NONE),
        (["identity;q=0.5, gzip;q=0.5"], GZIP),
        (["identity;q=0"], None),
        (["identity;q=0, br"], None),
        (["identity;q=0, gzip;q=0.1"], GZIP),
        (["identity;q=0, *"], ZSTD),
        (["identity;q=0, *;q=0"], None),
        (["gzip;q=nonsense"], NONE),
        (["gzip;q=1.001"], NONE),
        (["gzip;q=0.1234"], NONE),
        (["gzip;Q=0."], NONE),
        (["gzip;q=1.000"], GZIP),
        ([",, gzip ,"], GZIP),
        (["gzip;q=0, gzip"], GZIP),
        (["gzip, gzip;q=0"], GZIP),
    ],
)
def test_a_response_takes_the_coding_of_the_highest_weight(
    values: list[str], expected: Compression | None
) -> None:
    if expected is None:
        with pytest.raises(NotAcceptable):
            choose_response_encoding(values)
    else:
        assert choose_response_encoding(values) is expected


@given(st.lists(st.text(max_size=30), max_size=3))
def test_any_accept_encoding_has_an_answer(values: list[str]) -> None:
    assert choose_frame_compression(values) in Compression
    with suppress(NotAcceptable):
        assert choose_response_encoding(values) in Compression


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], NONE),
        ([""], NONE),
        (["identity"], NONE),
        (["gzip"], GZIP),
        (["X-GZIP"], GZIP),
        (["zstd"], ZSTD),
        ([" ZSTD "], ZSTD),
        (["identity, gzip"], GZIP),
        (["gzip", "identity"], GZIP),
        (["br"], None),
        (["deflate"], None),
        (["*"], None),
        (["gzip;q=1"], None),
        (["gzip, zstd"], None),
        (["gzip", "gzip"], None),
        (["identity, br"], None),
    ],
)
def test_a_request_body_has_at_most_one_coding_that_we_know(
    values: list[str], expected: Compression | None
) -> None:
    if expected is None:
        with pytest.raises(UnsupportedEncoding):
            parse_content_encoding(values)
    else:
        assert parse_content_encoding(values) is expected

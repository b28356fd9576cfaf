from itertools import cycle, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import BadFrame
from bourn.limits import FRAME_LENGTH_MAX, FRAME_PAYLOAD_BYTES_MAX
from bourn.wire.compression import Compression, compress
from bourn.wire.frames import (
    Frame,
    FrameParser,
    Terminal,
    decode_terminal,
    encode_frame,
    encode_terminal,
    frame_head,
    frame_pieces,
)

regular = st.builds(
    encode_frame,
    st.one_of(st.binary(max_size=40), st.binary(min_size=1000, max_size=1100)),
    st.sampled_from(Compression),
    reconnect=st.booleans(),
)
terminal = st.builds(encode_terminal, st.integers(0, 65535), st.binary(max_size=40))
frame_bytes = st.one_of(regular, terminal)


def whole(data: bytes) -> list[Frame]:
    parser = FrameParser()
    frames = parser.feed(data)
    parser.finish()
    return frames


def chunked(data: bytes, cuts: list[int]) -> list[Frame]:
    parser = FrameParser()
    bounds = [0, *sorted(cuts), len(data)]
    frames = [frame for start, end in pairwise(bounds) for frame in parser.feed(data[start:end])]
    parser.finish()
    return frames


# The vectors of the specification


def test_the_frame_of_one_append_input() -> None:
    message = bytes.fromhex("0a041a026869")
    assert encode_frame(message).hex() == "00000700" + "0a041a026869"
    assert whole(bytes.fromhex("00000700" + "0a041a026869")) == [Frame(message)]


def test_the_frame_of_a_heartbeat() -> None:
    assert encode_frame(bytes.fromhex("1200")).hex() == "00000300" + "1200"


def test_the_frame_of_a_heartbeat_that_advises_to_reconnect() -> None:
    message = bytes.fromhex("120408071009")
    data = bytes.fromhex("00000710" + "120408071009")
    assert encode_frame(message, reconnect=True) == data
    assert whole(data) == [Frame(message, reconnect=True)]


def test_the_terminal_frame_of_a_failed_condition() -> None:
    data = encode_terminal(412, b'{"seq_num_mismatch":7}')
    assert data == bytes.fromhex("00001980019c") + b'{"seq_num_mismatch":7}'
    [frame] = whole(data)
    assert frame.terminal
    assert decode_terminal(frame) == Terminal(412, b'{"seq_num_mismatch":7}')


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "0190"),
        (403, "0193"),
        (409, "0199"),
        (412, "019c"),
        (422, "01a6"),
        (500, "01f4"),
        (503, "01f7"),
    ],
)
def test_a_terminal_frame_carries_its_status_in_two_bytes(status: int, expected: str) -> None:
    assert encode_terminal(status, b"")[4:].hex() == expected


@pytest.mark.parametrize(
    ("compression", "flag"),
    [(Compression.NONE, 0x00), (Compression.ZSTD, 0x20), (Compression.GZIP, 0x40)],
)
def test_the_flag_names_the_compression(compression: Compression, flag: int) -> None:
    data = encode_frame(bytes(2000), compression)
    assert data[3] == flag
    [frame] = whole(data)
    assert frame.compression is compression
    assert frame.message() == bytes(2000)


# Encoding


@given(st.lists(st.binary(max_size=600), max_size=5), st.sampled_from(Compression), st.booleans())
def test_a_message_in_pieces_makes_the_same_frame_as_the_whole(
    pieces: list[bytes], compression: Compression, reconnect: bool
) -> None:
    views = [memoryview(piece) for piece in pieces]
    expected = encode_frame(b"".join(pieces), compression, reconnect=reconnect)
    assert encode_frame(pieces, compression, reconnect=reconnect) == expected
    assert encode_frame(tuple(views), compression, reconnect=reconnect) == expected


@pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.GZIP])
def test_only_a_message_at_the_threshold_is_compressed(compression: Compression) -> None:
    [below] = whole(encode_frame(bytes(1023), compression))
    [at] = whole(encode_frame(bytes(1024), compression))
    assert below.compression is Compression.NONE
    assert at.compression is compression


@pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.GZIP])
def test_a_message_that_compression_makes_too_large_goes_out_plain(
    compression: Compression,
) -> None:
    message = Random(5).randbytes(FRAME_PAYLOAD_BYTES_MAX)
    [frame] = whole(encode_frame(message, compression))
    assert frame == Frame(message)


@pytest.mark.parametrize("compression", Compression)
def test_the_largest_message_fits_and_one_byte_more_does_not(compression: Compression) -> None:
    [frame] = whole(encode_frame(bytes(FRAME_PAYLOAD_BYTES_MAX), compression))
    assert frame.message() == bytes(FRAME_PAYLOAD_BYTES_MAX)
    with pytest.raises(ValueError, match="cannot carry"):
        encode_frame(bytes(FRAME_PAYLOAD_BYTES_MAX + 1), compression)
    with pytest.raises(ValueError, match="cannot carry"):
        frame_head(FRAME_PAYLOAD_BYTES_MAX + 1)


def test_a_terminal_body_that_fits_no_frame_is_refused() -> None:
    assert len(encode_terminal(500, bytes(FRAME_LENGTH_MAX - 3))) == FRAME_LENGTH_MAX + 3
    with pytest.raises(ValueError, match="cannot carry"):
        encode_terminal(500, bytes(FRAME_LENGTH_MAX - 2))


@given(st.binary(max_size=50), st.booleans())
def test_a_head_and_its_payload_make_the_frame(payload: bytes, reconnect: bool) -> None:
    assert frame_head(len(payload), reconnect=reconnect) + payload == encode_frame(
        payload, reconnect=reconnect
    )


# Parsing


@given(st.lists(frame_bytes, max_size=6), st.data())
def test_frames_are_the_same_however_the_body_is_cut(
    parts: list[bytes], data: st.DataObject
) -> None:
    body = b"".join(parts)
    expected = [frame for part in parts for frame in whole(part)]
    assert whole(body) == expected
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=30))
    assert chunked(body, cuts) == expected


def test_frames_are_the_same_at_every_single_cut_and_every_pair_of_cuts() -> None:
    parts = [encode_frame(b"ab"), encode_frame(b""), encode_terminal(400, b"{}"), encode_frame(b"")]
    body = b"".join(parts)
    expected = whole(body)
    assert len(expected) == 4
    for first in range(len(body) + 1):
        for second in range(first, len(body) + 1):
            assert chunked(body, [first, second]) == expected
    assert chunked(body, list(range(len(body)))) == expected


@given(st.lists(frame_bytes, min_size=1, max_size=4))
def test_chunks_may_be_any_kind_of_buffer(parts: list[bytes]) -> None:
    body = b"".join(parts)
    middle = len(body) // 2
    parser = FrameParser()
    frames = parser.feed(memoryview(body)[:middle])
    reused = bytearray(body[middle:])
    frames += parser.feed(reused)
    reused[:] = bytes(len(reused))
    assert frames == whole(body)
    assert all(type(frame.payload) is bytes for frame in frames)


@given(st.integers(0, 15), st.sampled_from([0x00, 0x10, 0x20, 0x40, 0x80]))
def test_reserved_bits_are_ignored(reserved: int, flag: int) -> None:
    [plain] = whole(bytes((0, 0, 3, flag)) + b"ab")
    [marked] = whole(bytes((0, 0, 3, flag | reserved)) + b"ab")
    assert plain == marked


def test_an_empty_payload_is_a_frame() -> None:
    assert whole(bytes.fromhex("00000100")) == [Frame(b"")]


def test_the_largest_frame_is_taken_and_a_larger_length_is_refused() -> None:
    body = FRAME_LENGTH_MAX.to_bytes(3, "big") + b"\x00" + bytes(FRAME_PAYLOAD_BYTES_MAX)
    assert len(whole(body)[0].payload) == FRAME_PAYLOAD_BYTES_MAX
    parser = FrameParser()
    assert parser.feed((FRAME_LENGTH_MAX + 1).to_bytes(3, "big")) == []
    assert str(parser.error) == "frame length 2097153 exceeds 2097152 bytes"


def test_a_parser_may_have_a_lower_limit() -> None:
    parser = FrameParser(limit=5)
    assert parser.feed(encode_frame(b"four")) == [Frame(b"four")]
    parser.feed(encode_frame(b"fives"))
    assert str(parser.error) == "frame length 6 exceeds 5 bytes"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("000000", "empty frame payload"),
        ("ffffff", "frame length 16777215 exceeds 2097152 bytes"),
        ("00000160", "unknown frame compression"),
        ("000005e0", "unknown frame compression"),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_a_bad_frame_is_refused_at_its_head_after_the_good_ones_before_it(
    bad: str, message: str, step: int
) -> None:
    body = encode_frame(b"one") + encode_frame(b"two") + bytes.fromhex(bad)
    parser = FrameParser()
    frames = []
    for start in range(0, len(body), step):
        frames += parser.feed(body[start : start + step])
    assert frames == [Frame(b"one"), Frame(b"two")]
    assert parser.error is not None
    for call in (lambda: parser.feed(encode_frame(b"three")), parser.finish, parser.finish):
        with pytest.raises(BadFrame, match=message):
            call()


@given(regular, st.data())
def test_a_body_that_ends_inside_a_frame_is_refused(frame: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(1, len(frame) - 1))
    parser = FrameParser()
    assert parser.feed(frame[:end]) == []
    with pytest.raises(BadFrame, match="body ended inside a frame"):
        parser.finish()
    with pytest.raises(BadFrame, match="body ended inside a frame"):
        parser.feed(b"more")


@given(st.lists(frame_bytes | st.binary(max_size=9), max_size=4))
def test_a_lone_frame_is_what_feeding_it_gives_and_all_else_is_left(chunks: list[bytes]) -> None:
    parser, other = FrameParser(), FrameParser()
    for chunk in chunks:
        message = parser.lone(chunk)
        if other.error is not None:
            assert message is None
            return
        frames = other.feed(chunk)
        if message is None:
            assert parser.feed(chunk) == frames
        else:
            assert frames == [Frame(message)]
        assert parser.error is None or other.error is not None


def test_a_lone_frame_is_one_of_the_parser_s_limit() -> None:
    assert FrameParser(5).lone(encode_frame(b"1234")) == b"1234"
    assert FrameParser(4).lone(encode_frame(b"1234")) is None


def test_an_empty_body_ends_well() -> None:
    parser = FrameParser()
    assert parser.feed(b"") == []
    parser.finish()


@given(st.lists(st.one_of(st.binary(max_size=60), frame_bytes), max_size=8))
def test_any_bytes_give_frames_or_bad_frame(chunks: list[bytes]) -> None:
    parser = FrameParser(limit=2000)
    try:
        for chunk in chunks:
            for frame in parser.feed(chunk):
                assert len(frame.payload) < 2000
                frame.message()
            assert held_bytes(parser) < 2003
        parser.finish()
    except BadFrame:
        pass


@given(
    st.lists(st.sampled_from([0, 1, 300, 65_535, 65_536, 70_000]), max_size=6),
    st.sampled_from(list(Compression)),
    st.booleans(),
)
def test_the_pieces_of_a_frame_are_the_frame_and_large_buffers_are_not_copied(
    sizes: list[int], compression: Compression, reconnect: bool
) -> None:
    buffers = [Random(seed).randbytes(size) for seed, size in enumerate(sizes)]
    pieces = frame_pieces(buffers, compression, reconnect=reconnect)
    assert b"".join(pieces) == encode_frame(buffers, compression, reconnect=reconnect)
    if compression is Compression.NONE:
        large = [buffer for buffer in buffers if len(buffer) >= 65_536]
        assert len([piece for piece in pieces if any(piece is one for one in large)]) == len(large)
        assert len(pieces) <= 2 * len(large) + 1


def held_bytes(parser: FrameParser) -> int:
    return len(parser._head) + sum(map(len, parser._parts)) + len(parser._small)


def test_a_parser_holds_no_more_than_one_frame_and_lets_go_of_it() -> None:
    parser = FrameParser()
    body = encode_frame(bytes(FRAME_PAYLOAD_BYTES_MAX)) + b"\x00"
    for start in range(0, len(body) - 1000, 1000):
        assert parser.feed(body[start : start + 1000]) == []
    assert held_bytes(parser) <= FRAME_LENGTH_MAX + 3
    [frame] = parser.feed(body[start + 1000 :])
    assert len(frame.payload) == FRAME_PAYLOAD_BYTES_MAX
    assert parser._head == b"\x00"
    assert held_bytes(parser) == 1


@given(st.data())
def test_a_large_frame_is_the_same_however_its_chunks_are_cut(data: st.DataObject) -> None:
    payloads = [Random(seed).randbytes(size) for seed, size in enumerate((30_000, 0, 9_000))]
    body = b"".join(map(encode_frame, payloads))
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=12).map(sorted))
    kind = data.draw(st.sampled_from([bytes, bytearray, memoryview]))
    parser = FrameParser()
    found = []
    for start, end in pairwise([0, *cuts, len(body)]):
        found += parser.feed(kind(body[start:end]))
    parser.finish()
    assert [frame.payload for frame in found] == payloads


def test_a_frame_of_tiny_chunks_is_held_in_few_pieces() -> None:
    parser = FrameParser()
    body = encode_frame(Random(1).randbytes(200_000))
    sizes = cycle([2, 5_000, 3, 3, 7])
    at = 0
    while at < len(body) - 1:
        size = min(next(sizes), len(body) - 1 - at)
        assert parser.feed(body[at : at + size]) == []
        at += size
        assert len(parser._parts) <= 2 * (at // 4096 + 1)
    [frame] = parser.feed(body[at:])
    assert frame.payload == body[4:]


# Messages


@pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.GZIP])
def test_a_message_that_decompresses_beyond_the_limit_is_refused(compression: Compression) -> None:
    fits = Frame(compress(bytes(FRAME_PAYLOAD_BYTES_MAX), compression), compression=compression)
    assert len(fits.message()) == FRAME_PAYLOAD_BYTES_MAX
    above = Frame(compress(bytes(FRAME_LENGTH_MAX), compression), compression=compression)
    with pytest.raises(BadFrame, match="decompressed size exceeds 2097151 bytes"):
        above.message()


@given(st.binary(max_size=60), st.sampled_from([Compression.ZSTD, Compression.GZIP]))
def test_a_payload_that_is_not_compressed_as_it_says_is_refused(
    payload: bytes, compression: Compression
) -> None:
    with pytest.raises(BadFrame):
        Frame(payload, compression=compression).message()


# Terminal frames


@given(st.integers(0, 65535), st.binary(max_size=60))
def test_a_terminal_frame_comes_back(status: int, body: bytes) -> None:
    [frame] = whole(encode_terminal(status, body))
    assert decode_terminal(frame) == (status, body)


@pytest.mark.parametrize("frame", [Frame(b"", terminal=True), Frame(b"\x01", terminal=True)])
def test_a_terminal_frame_without_a_status_is_refused(frame: Frame) -> None:
    with pytest.raises(BadFrame, match="status"):
        decode_terminal(frame)


def test_a_compressed_terminal_frame_is_refused() -> None:
    with pytest.raises(BadFrame, match="compressed"):
        decode_terminal(Frame(b"\x01\x90{}", terminal=True, compression=Compression.ZSTD))

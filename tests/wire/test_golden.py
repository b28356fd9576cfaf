"""The wire formats, byte for byte as they were when each version was born.

A golden file is a line per example, `name: hex` or for text formats `name: text`. It is written
once, when a version is born: (GOLDEN / name).write_text(lines(examples)).
"""

from pathlib import Path

import pytest

from bourn.model.record import (
    AppendAck,
    Record,
    SequencedRecord,
    StreamPosition,
    fence_record,
    trim_record,
)
from bourn.wire import json, protobuf, sse
from bourn.wire.compression import Compression
from bourn.wire.frames import Frame, FrameParser, encode_frame, encode_terminal
from bourn.wire.json import Format
from bourn.wire.json_input import JsonAppendInput, decode_append_input
from tests.layout.read_batches import encode_read_batch

GOLDEN = Path(__file__).parent.parent / "golden"

ZERO = StreamPosition(0, 0)
TAIL = StreamPosition(1042, 1_700_000_000_000)
LAST = StreamPosition(2**64 - 1, 2**64 - 1)
ACK = AppendAck(StreamPosition(1040, 1_700_000_000_000), TAIL, StreamPosition(1050, TAIL.timestamp))
RECORDS = [
    SequencedRecord(1040, 1_700_000_000_000, b"hi", ((b"k", b"v"), (b"k", b""))),
    SequencedRecord(1041, 1_700_000_000_000, b"\x00\xff"),
    SequencedRecord(1042, 2**64 - 1, b""),
]
INPUT = [Record(b"hi", ((b"k", b"v"),), 0), Record(), fence_record("abc"), trim_record(100, 7)]
LONG = b"a message long enough to be compressed. " * 40

frames = {
    "empty": encode_frame(b""),
    "message": encode_frame(protobuf.encode_append_ack(ACK)),
    "heartbeat": encode_frame(protobuf.encode_tail(ZERO)),
    "reconnect": encode_frame(protobuf.encode_tail(TAIL), reconnect=True),
    "terminal": encode_terminal(412, json.encode_seq_num_mismatch(7)),
}
messages = {
    "ack": protobuf.encode_append_ack(ACK),
    "ack of zeros": protobuf.encode_append_ack(AppendAck(ZERO, ZERO, ZERO)),
    "ack of the last": protobuf.encode_append_ack(AppendAck(LAST, LAST, LAST)),
    "tail": protobuf.encode_tail(TAIL),
    "input": protobuf.encode_append_input(INPUT),
    "conditions": protobuf.encode_append_input([], 0, ""),
}
texts = {
    "position": json.encode_position(TAIL),
    "tail": json.encode_tail(ZERO),
    "ack": json.encode_append_ack(ACK),
    "batch": encode_read_batch(RECORDS, None, Format.RAW),
    "batch in base64": encode_read_batch(RECORDS, TAIL, Format.BASE64),
    "empty batch": encode_read_batch([], None, Format.RAW),
    "seq_num mismatch": json.encode_seq_num_mismatch(7),
    "fencing token mismatch": json.encode_fencing_token_mismatch("é"),
    "error": json.encode_error("invalid", "record batch must not be empty"),
}
events = {
    "batch": sse.encode_batch(sse.EventId(1042, 3, 38), texts["batch"]),
    "ping": sse.encode_ping(1_700_000_012_345, TAIL),
    "error": sse.encode_error(texts["error"]),
    "done": sse.DONE,
}


def lines(examples: dict[str, bytes]) -> str:
    return "".join(f"{name}: {data.hex()}\n" for name, data in examples.items())


def text_lines(examples: dict[str, bytes]) -> str:
    return "".join(f"{name}: {data.decode()}\n" for name, data in examples.items())


def examples(name: str) -> dict[str, bytes]:
    pairs = (line.split(": ") for line in (GOLDEN / name).read_text().splitlines())
    return {name: bytes.fromhex(data) for name, data in pairs}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wire_frames_v1.txt", lines(frames)),
        ("wire_protobuf_v1.txt", lines(messages)),
        ("wire_json_v1.txt", text_lines(texts)),
        ("wire_sse_v1.txt", text_lines(events)),
    ],
)
def test_the_format_is_what_the_golden_file_says(name: str, text: str) -> None:
    assert (GOLDEN / name).read_bytes() == text.encode()


def test_the_golden_frames_still_decode() -> None:
    parser = FrameParser()
    parsed = parser.feed(b"".join(examples("wire_frames_v1.txt").values()))
    parser.finish()
    assert parsed == [
        Frame(b""),
        Frame(messages["ack"]),
        Frame(bytes.fromhex("1200")),
        Frame(messages["tail"], reconnect=True),
        Frame(b'\x01\x9c{"seq_num_mismatch":7}', terminal=True),
    ]


def test_the_golden_compressed_frames_still_decode() -> None:
    # What a compressor makes may change with its version; what it made must stay readable.
    found = examples("wire_compressed_frames_v1.txt")
    assert found.keys() == {"zstd", "zstd of unknown size", "gzip"}
    for name, data in found.items():
        [frame] = FrameParser().feed(data)
        assert frame.compression is Compression[name.split()[0].upper()]
        assert frame.message() == LONG


def test_the_golden_messages_still_decode() -> None:
    found = examples("wire_protobuf_v1.txt")
    assert protobuf.decode_append_ack(found["ack"]) == ACK
    assert protobuf.decode_append_ack(found["ack of zeros"]) == AppendAck(ZERO, ZERO, ZERO)
    assert protobuf.decode_append_ack(found["ack of the last"]) == AppendAck(LAST, LAST, LAST)
    assert protobuf.decode_read_batch(found["tail"]) == ([], TAIL)


def test_the_golden_inputs_still_decode() -> None:
    plain = JsonAppendInput(INPUT[:3], 2**64 - 1, "abc")
    assert decode_append_input((GOLDEN / "wire_input_v1.json").read_bytes(), Format.RAW) == plain
    binary = JsonAppendInput(INPUT, None, None)
    found = (GOLDEN / "wire_input_base64_v1.json").read_bytes()
    assert decode_append_input(found, Format.BASE64) == binary

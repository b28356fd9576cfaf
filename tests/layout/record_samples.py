"""Records to try, the message that appends them, and what reading them must give.

The golden files are written once, when a version of the format is born:

    python -m tests.layout.record_samples
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from bourn.layout.records import encode_record, encode_records
from bourn.limits import U64_MAX
from bourn.model.record import Headers, Record, fence_record, trim_record
from tests.wire.schema import AppendInput, ReadBatch

GOLDEN = Path(__file__).parents[1] / "golden"

U64_EDGES = [0, 1, 127, 128, 2**14, 2**28, 2**32, 2**63 - 1, 2**63, U64_MAX - 1, U64_MAX]
SIZE_EDGES = [0, 1, 127, 128, 246, 247, 248, 249, 16_383, 16_384, 65_527, 65_528, 65_535, 65_536]

u64s = st.one_of(st.sampled_from(U64_EDGES), st.integers(0, U64_MAX))
blobs = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda size, byte: bytes([byte]) * size, st.sampled_from(SIZE_EDGES), st.integers(0, 255)
    ),
)
names = st.one_of(st.binary(min_size=1, max_size=20), st.just(b"n" * 65_536))
plain_headers = st.lists(st.tuples(names, blobs), max_size=4).map(tuple)
stamps = st.one_of(st.none(), u64s)
commands = st.one_of(
    st.builds(fence_record, st.text(max_size=9), stamps), st.builds(trim_record, u64s, stamps)
)
records = st.one_of(st.builds(Record, blobs, plain_headers, stamps), commands)
small_records = st.one_of(
    st.builds(
        Record,
        st.binary(max_size=300),
        st.lists(
            st.tuples(st.binary(min_size=1, max_size=5), st.binary(max_size=5)), max_size=3
        ).map(tuple),
        stamps,
    ),
    commands,
)
# Also what no client may append.
any_headers = st.lists(
    st.tuples(st.binary(max_size=2), st.sampled_from([b"", b"fence", b"trim", b"fences"])),
    max_size=3,
).map(tuple)
any_records = st.one_of(
    records,
    st.builds(Record, st.binary(max_size=40), any_headers, stamps),
    st.builds(Record, st.just(bytes(2**20 - 8)), any_headers, stamps),
)


def message_of(
    items: Sequence[Record], match_seq_num: int | None = None, fencing_token: str | None = None
) -> Any:
    """Return the AppendInput of the protobuf library."""
    message = AppendInput(match_seq_num=match_seq_num, fencing_token=fencing_token)
    for body, headers, timestamp in items:
        record = message.records.add(body=body, timestamp=timestamp)
        for name, value in headers:
            record.headers.add(name=name, value=value)
    return message


def records_in(message: Any) -> list[Record]:
    """Return the records of an AppendInput of the protobuf library."""
    return [
        Record(
            record.body,
            tuple((header.name, header.value) for header in record.headers),
            record.timestamp if record.HasField("timestamp") else None,
        )
        for record in message.records
    ]


def read_batch_of(items: Sequence[tuple[int, int, bytes, Headers]]) -> bytes:
    """Return the ReadBatch of these sequenced records, as the protobuf library writes it."""
    message = ReadBatch()
    for seq_num, timestamp, body, headers in items:
        record = message.records.add(seq_num=seq_num, timestamp=timestamp, body=body)
        for name, value in headers:
            record.headers.add(name=name, value=value)
    data: bytes = message.SerializeToString()
    return data


GOLDEN_RECORDS = {
    "empty": Record(),
    "body": Record(b"hi"),
    "headers": Record(b"xyz", ((b"a", b"bc"), (b"d", b""))),
    "two-byte size": Record(bytes(248)),
    "three-byte size": Record(bytes(65_528)),
    "largest body": Record(bytes(2**20 - 8)),
    "wide value": Record(b"w", ((b"name", bytes(65_536)),)),
    "wide count": Record(b"c", ((b"n", b""),) * 65_536),
    "fence": fence_record("abc"),
    "no fence": fence_record(""),
    "trim": trim_record(100),
}
GOLDEN_BATCH = [GOLDEN_RECORDS[name] for name in ("body", "headers", "fence", "empty", "trim")]


def golden_text() -> str:
    """Return a line for each golden record: name, size, first bytes, digest."""
    lines = []
    for name, (body, headers, _) in GOLDEN_RECORDS.items():
        stored = encode_record(headers, body)
        lines.append(
            f"{name} | {len(stored)} | {stored[:32].hex()} | {sha256(stored).hexdigest()}\n"
        )
    return "".join(lines)


if __name__ == "__main__":
    (GOLDEN / "records_v1.txt").write_text(golden_text())
    (GOLDEN / "records_v1.bin").write_bytes(encode_records(GOLDEN_BATCH).payload)

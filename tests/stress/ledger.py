"""What was promised about a stream, and whether what it holds keeps to it."""

import gzip
import json
import random
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import zstandard

from tests.stress.speakers import Ask, Fields, Reply
from tests.wire.schema import AppendAck, AppendInput, ReadBatch

JSON: Final = ("content-type", "application/json")
PROTO: Final = ("content-type", "application/protobuf")
PROTO_BACK: Final = ("accept", "application/protobuf")


class Found(NamedTuple):
    """A record as a client sees it."""

    seq_num: int
    body: str


@dataclass
class Promise:
    """Bodies that were sent together, and where they are, once that was said."""

    bodies: list[str]
    start: int | None = None


class Ledger:
    """Every append to one stream."""

    def __init__(self, basin: str, stream: str) -> None:
        self.basin = basin
        self.stream = stream
        self.path = f"/v1/streams/{stream}/records"
        self.fields: Fields = (("s2-basin", basin),)
        self.promises: list[Promise] = []
        self.tail = 0  # the highest that anybody was told

    def offer(self, bodies: list[str]) -> Promise:
        """Note an append before it is sent: until its ack nobody knows what becomes of it."""
        promise = Promise(bodies)
        self.promises.append(promise)
        return promise

    def acked(self, promise: Promise, start: int, end: int) -> None:
        """Note an ack."""
        assert end - start == len(promise.bodies), f"{start} to {end}: {promise}"
        promise.start = start
        self.tail = max(self.tail, end)

    def check(self, found: list[Found]) -> None:
        """Every ack is kept, nothing is there twice, nothing is there that nobody sent."""
        assert [record.seq_num for record in found] == list(range(len(found)))
        bodies = [record.body for record in found]
        assert len(set(bodies)) == len(bodies), "a record is there twice"
        possible = set()
        for promise in self.promises:
            possible.update(promise.bodies)
            if promise.start is not None:
                there = bodies[promise.start : promise.start + len(promise.bodies)]
                assert there == promise.bodies, f"{self.stream} at {promise.start}"
        assert possible.issuperset(bodies)
        last: dict[str, int] = {}
        for body in bodies:
            writer, number, _ = body.split(".", 2)
            assert last.get(writer, -1) < int(number), f"{writer} is out of order"
            last[writer] = int(number)


class Pen:
    """Makes bodies: by whom, the how many-eth, and some more."""

    def __init__(self, writer: str, rng: random.Random) -> None:
        self._writer = writer
        self._rng = rng
        self._count = 0

    def take_another(self) -> None:
        """Write as somebody else: between two connections there is no order."""
        self._writer += "'"

    def bodies(self, size_max: int = 300) -> list[str]:
        """One to four of them, mostly small."""
        made = []
        for _ in range(self._rng.choice((1, 1, 1, 2, 4))):
            size = self._rng.randrange(size_max)
            if self._rng.random() < 0.01:
                size = self._rng.choice((9_000, 70_000))
            made.append(f"{self._writer}.{self._count}.{'é' if size % 7 == 0 else 'x'}{'y' * size}")
            self._count += 1
        return made


def message(bodies: list[str], **conditions: Any) -> bytes:
    """An append as protobuf."""
    wanted = AppendInput(records=[{"body": body.encode()} for body in bodies], **conditions)
    encoded: bytes = wanted.SerializeToString()
    return encoded


def trim(ledger: Ledger, point: int) -> Ask:
    """A command."""
    record = {"headers": [{"name": b"", "value": b"trim"}], "body": point.to_bytes(8, "big")}
    body: bytes = AppendInput(records=[record]).SerializeToString()
    return Ask("POST", ledger.path, (*ledger.fields, PROTO), body)


def append(ledger: Ledger, bodies: list[str], rng: random.Random, **conditions: Any) -> Ask:
    """An append in any of the forms that there are."""
    fields = list(ledger.fields)
    if rng.random() < 0.5:
        fields.append(JSON)
        body = json.dumps({"records": [{"body": text} for text in bodies], **conditions}).encode()
    else:
        fields.append(PROTO)
        body = message(bodies, **conditions)
    if rng.random() < 0.3:
        fields.append(PROTO_BACK)
    form = rng.random()
    if form < 0.1:
        fields.append(("content-encoding", "gzip"))
        body = gzip.compress(body)
    elif form < 0.2:
        fields.append(("content-encoding", "zstd"))
        body = zstandard.compress(body)
    return Ask("POST", ledger.path, tuple(fields), body)


def ack_of(reply: Reply) -> tuple[int, int, int]:
    """Start, end and tail."""
    assert reply.status == 200, reply
    if reply.fields["content-type"] == "application/protobuf":
        ack = AppendAck.FromString(reply.body)
        return ack.start.seq_num, ack.end.seq_num, ack.tail.seq_num
    found = json.loads(reply.body)
    start, end, tail = (found[name]["seq_num"] for name in ("start", "end", "tail"))
    return start, end, tail


def read(ledger: Ledger, query: str, *more: tuple[str, str]) -> Ask:
    """A unary read."""
    return Ask("GET", f"{ledger.path}?{query}", (*ledger.fields, *more))


def forms(rng: random.Random) -> Fields:
    """How an answer is wanted."""
    fields: list[tuple[str, str]] = []
    if rng.random() < 0.4:
        fields.append(PROTO_BACK)
    if rng.random() < 0.2:
        fields.append(("accept-encoding", rng.choice(("gzip", "zstd", "identity"))))
    return tuple(fields)


def records_of(reply: Reply) -> list[Found]:
    """The records of a read."""
    assert reply.status == 200, reply
    body = reply.body
    match reply.fields.get("content-encoding"):
        case "gzip":
            body = gzip.decompress(body)
        case "zstd":
            body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    if reply.fields["content-type"] == "application/protobuf":
        return of_batch(ReadBatch.FromString(body))
    return of_json(json.loads(body))


def of_batch(batch: Any) -> list[Found]:
    """The records of a batch as protobuf."""
    return [
        Found(record.seq_num, record.body.decode("latin-1" if record.headers else "utf-8"))
        for record in batch.records
    ]


def of_json(document: Any) -> list[Found]:
    """The records of a batch as JSON, commands among them without their bodies."""
    return [Found(record["seq_num"], record.get("body", "")) for record in document["records"]]

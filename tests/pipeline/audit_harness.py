"""What the tests of the audit share: an audit whose tasks run here, a full bucket, and vandals."""

import base64
import hashlib
import random
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from bourn.bucket.delta_log import read_table
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import Clock, SystemClock
from bourn.engine.node import Node
from bourn.layout.audits import AuditReport, Violation
from bourn.layout.commit import Commit, decode_commit, encode_commit
from bourn.layout.history.delta import Actions, Add, SegmentName, delta_key, encode_actions
from bourn.layout.history.facts import add_of, facts_of, remove_of
from bourn.layout.history.schema import SCHEMA
from bourn.layout.history.segment import encode_segment
from bourn.model.config import Age, BasinConfig, Cipher, Infinite, StreamConfig, Timestamping
from bourn.model.keys import CustomerKey
from bourn.model.record import Record, fence_record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.audit import Audit
from bourn.pipeline.audit_commits import CommitsAudit, CommitsOutcome, CommitsTask
from bourn.pipeline.audit_facts import Facts, Findings, together
from bourn.pipeline.audit_segments import SegmentAudit, SegmentOutcome, SegmentTask
from bourn.pipeline.audit_streams import Standard, check_streams
from bourn.pipeline.audit_work import Known, sharded
from bourn.pipeline.job import Tools
from bourn.pipeline.progress import Progress
from bourn.pipeline.session import Spark
from bourn.settings import PipelineSettings
from tests.pipeline.harness import NOWHERE, InProcessTier, quiet, retry
from tests.support import batch, node_on

BASIN = "audited-basin"
KEY = CustomerKey(base64.b64encode(hashlib.sha256(b"a key").digest()).decode())
KEPT = BasinConfig(
    default_stream_config=StreamConfig(
        retention_policy=Infinite(), timestamping=Timestamping(uncapped=True)
    )
)
STAMPS = (0, 1, 1_700_000_000_000, 2**63 - 1, 2**63, 2**64 - 1)


class InlineWork:
    """The steps of an audit, done here one after the other."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._ranges: list[bytes] = []

    async def commits(
        self, tasks: Sequence[CommitsTask], progress: Progress
    ) -> list[CommitsOutcome]:
        _ = progress
        return [await self._kept(CommitsAudit(task)) for task in tasks]

    async def segments(
        self, tasks: Sequence[SegmentTask], known: Known, progress: Progress
    ) -> list[SegmentOutcome]:
        _ = progress
        return [await self._kept(SegmentAudit(task, *known)) for task in tasks]

    async def _kept(self, audit):
        found = await audit.run(self._bucket, retry())
        self._ranges.append(found.ranges)
        return found._replace(ranges=b"")

    async def streams(
        self, streams: Facts, standard: Standard, shards: int, progress: Progress
    ) -> list[Findings]:
        _ = progress
        parts: dict[int, list[bytes]] = {shard: [] for shard in range(shards)}
        for ranges in self._ranges:
            for shard, part in sharded(ranges, shards):
                parts[shard].append(part)
        return [
            check_streams(
                together(found), streams[streams["stream_id"] % shards == shard], standard
            )
            for shard, found in parts.items()
        ]

    async def close(self) -> None:
        self._ranges = []


def audit_on(bucket: Bucket, clock: Clock | None = None, work: InlineWork | None = None) -> Audit:
    tools = Tools(
        bucket,
        NOWHERE,
        Spark(PipelineSettings()),
        clock or SystemClock(),
        random.Random(7),
        retry(),
        PipelineSettings(),
    )
    return Audit(tools, work or InlineWork(bucket))


async def audited(bucket: Bucket, clock: Clock | None = None) -> AuditReport:
    return await audit_on(bucket, clock).audit(quiet())


async def tiered(bucket: Bucket) -> None:
    await InProcessTier(bucket, random.getrandbits(32)).run(quiet())


async def hard_records(node: Node) -> None:
    """Append every kind of record that is hard to keep."""
    await node.create_basin(CreateBasin(BASIN, KEPT))
    for stream in ("plain", "large", "headers", "commands"):
        await node.create_stream(BASIN, CreateStream(stream))
    for stamp in STAMPS:
        records = [
            Record(body, ((b"\xff\x00", b"\xfe"),), stamp) for body in (b"", b"\x00\xff", b"x")
        ]
        await node.append(BASIN, "plain", batch(*records))
    await node.append(BASIN, "large", batch(Record(bytes(range(256)) * 4095)))
    await node.append(BASIN, "large", batch(Record(b"")))
    many = tuple((b"%d" % number, b"") for number in range(10_000))
    await node.append(BASIN, "headers", batch(Record(b"body", many)))
    await node.append(BASIN, "commands", batch(fence_record("token"), Record(b"after")))
    sealed = BasinConfig(
        default_stream_config=StreamConfig(retention_policy=Infinite()),
        stream_cipher=Cipher.AES_256_GCM,
    )
    await node.create_basin(CreateBasin("sealed-basin", sealed))
    await node.create_stream("sealed-basin", CreateStream("secret"))
    sealer = await node.sealer("sealed-basin", "secret", KEY)
    assert sealer is not None
    await node.append("sealed-basin", "secret", sealer.seal(batch(b"hidden", b"")))


async def a_bucket(*, tier: bool = True, tail: bool = True) -> MemoryBucket:
    """A bucket with two epochs, a snapshot, a table, and a tail that is in the log alone."""
    bucket = MemoryBucket()
    async with node_on(bucket) as node:
        await node.create_basin(CreateBasin(BASIN, KEPT))
        for stream in ("one", "two", "three"):
            await node.create_stream(BASIN, CreateStream(stream))
        for number in range(6):
            for stream in ("one", "two", "three"):
                records = [Record(b"%d" % n, (), 10 * number + n) for n in range(4)]
                await node.append(BASIN, stream, batch(*records))
    if tier:
        await tiered(bucket)
    if tail:
        async with node_on(bucket) as node:
            for number in range(3):
                for stream in ("one", "two"):
                    await node.append(BASIN, stream, batch(Record(b"late", (), 100 + number)))
    return bucket


# Vandals

OURS = {"operation": "WRITE", "engineInfo": "bourn"}


async def flipped(bucket: Bucket, key: str, at: int = -40) -> None:
    data = bytearray(await bucket.get(key))
    data[at] ^= 0x10
    await bucket.put(key, bytes(data))


async def live(bucket: Bucket) -> list[Add]:
    return list((await read_table(bucket)).live.values())


async def keys_in(bucket: Bucket, prefix: str) -> list[str]:
    return [info.key async for info in bucket.list(prefix)]


async def commits_in(bucket: Bucket) -> list[str]:
    """The keys of the commits that hold records."""
    keys = await keys_in(bucket, "wal/")
    return [key for key in keys if decode_commit(await bucket.get(key), key).runs]


async def forge_commit(bucket: MemoryBucket, key: str, change: Callable[[Commit], Commit]) -> None:
    """Replace a commit by another one, whose checksums hold."""
    commit = change(decode_commit(await bucket.get(key), key))
    groups = [(location.stream_id, entries) for location, entries in commit.runs]
    data, _ = encode_commit(commit.header, commit.changes, groups)
    await bucket.put(key, data)


async def rows_of(bucket: Bucket, add: Add) -> pa.Table:
    return pq.read_table(pa.BufferReader(await bucket.get(add.key))).cast(SCHEMA)


async def forge_segment(
    bucket: Bucket,
    rows: pa.Table,
    *,
    instead_of: Add | None = None,
) -> Add:
    """Add a segment of these rows to the table, well-formed in every way."""
    state = await read_table(bucket)
    segment = encode_segment(rows)
    name = SegmentName(0, state.end_ordinal, 9, f"{random.getrandbits(64):016x}")
    ids = rows.column("stream_id").to_numpy().tolist()
    add = add_of(facts_of(name, segment, (min(ids), max(ids))), 1)
    await bucket.put(name.key, segment.parquet)
    await bucket.put(name.index_key, segment.index)
    removes = () if instead_of is None else (remove_of(instead_of, 1),)
    version = state.version + 1
    actions = Actions(adds=(add,), removes=removes, info=OURS)
    await bucket.put(delta_key(version), encode_actions(actions))
    return add


FINITE = BasinConfig(default_stream_config=StreamConfig(retention_policy=Age(60)))


def only(report: AuditReport, kind: str) -> Violation:
    """The first violation of a kind, which must be there."""
    found = [violation for violation in report.violations if violation.kind == kind]
    assert found, report.violations
    return found[0]

"""Encrypted streams over restarts, and that neither keys nor plaintext ever reach the bucket."""

import asyncio
import base64
import hashlib

import pytest

from bourn.bucket.port import Bucket
from bourn.engine.node import Node
from bourn.engine.sealing import sealed_stream
from bourn.errors import (
    BadHeader,
    DecryptionFailed,
    FencingTokenMismatch,
    StreamReplaced,
)
from bourn.http.problems import problem_of
from bourn.layout.records import RecordBatch, encode_records
from bourn.log.cursor import make_request
from bourn.model.config import BasinConfig, Cipher
from bourn.model.keys import CustomerKey
from bourn.model.record import AppendAck, Record, SequencedRecord, fence_record, trim_record
from bourn.model.resource import CreateBasin, CreateStream
from tests.engine.harness import Storage, eventually
from tests.support import BASIN, STREAM, batch, from_start, node_on

RAW_KEY = hashlib.sha256(b"a customer's key").digest()
KEY = CustomerKey(base64.b64encode(RAW_KEY).decode())
OTHER_KEY = CustomerKey(base64.b64encode(bytes(32)).decode())
PLAINTEXT = [b"PLAINTEXT-BODY-%d" % number for number in range(40)]
NAME, VALUE = b"PLAINTEXT-NAME", b"PLAINTEXT-VALUE"


@pytest.fixture(params=Cipher)
def cipher(request: pytest.FixtureRequest) -> Cipher:
    found: Cipher = request.param
    return found


async def with_cipher(node: Node, cipher: Cipher) -> None:
    await node.create_basin(CreateBasin(BASIN, config=BasinConfig(stream_cipher=cipher)))
    await node.create_stream(BASIN, CreateStream(STREAM))


async def append(node: Node, records: RecordBatch, fencing_token: str | None = None) -> AppendAck:
    sealer = await node.sealer(BASIN, STREAM, KEY)
    assert sealer is not None
    return await node.append(BASIN, STREAM, sealer.seal(records), fencing_token=fencing_token)


async def records_of(node: Node, key: CustomerKey = KEY) -> list[SequencedRecord]:
    request = make_request(seq_num=0, wait=0)
    found: list[SequencedRecord] = []
    async with node.read_session(BASIN, STREAM, request, None, key) as batches:
        async for one in batches:
            found += one.records()
    return found


async def objects_of(bucket: Bucket) -> dict[str, bytes]:
    return {found.key: await bucket.get(found.key) async for found in bucket.list("")}


def mixed(start: int) -> RecordBatch:
    """Envelopes with commands between them."""
    bodies = PLAINTEXT[start : start + 4]
    return encode_records(
        [
            Record(bodies[0]),
            Record(bodies[1], ((NAME, VALUE),)),
            fence_record(f"token-{start}"),
            Record(bodies[2]),
            trim_record(start),
            Record(bodies[3]),
        ]
    )


def test_a_restart_finds_records_commands_and_no_secret_in_the_bucket(
    storage: Storage, cipher: Cipher
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_cipher(node, cipher)
            for start in range(0, 16, 4):
                await append(node, mixed(start))
            await node.housekeeping.snapshots.take()
            for start in range(16, 32, 4):
                await append(node, mixed(start))
            before = await records_of(node)
            stream = node.term.find(BASIN, STREAM)
            assert stream is not None
            known = sealed_stream(BASIN, stream.row)
        assert known is not None
        async with node_on(bucket) as node:
            assert node.term.recovered.snapshot is not None
            assert await records_of(node) == before
            with pytest.raises(FencingTokenMismatch) as fenced:
                await append(node, batch("x"), fencing_token="another")
            assert fenced.value.fencing_token == "token-28"
            await append(node, batch(PLAINTEXT[39]), fencing_token="token-28")
            after = await records_of(node)
        assert after[0].seq_num == 28, "what was trimmed is gone"
        bodies = {record.body for record in after}
        assert bodies >= set(PLAINTEXT[20:32]) | {PLAINTEXT[39]}
        objects = await objects_of(bucket)
        assert any(b"token-28" in data for data in objects.values()), "commands are there to read"
        secrets = [
            b"PLAINTEXT",
            RAW_KEY,
            base64.b64encode(RAW_KEY)[:-1],
            RAW_KEY.hex().encode(),
            derived_key(known.cipher, known.binding),
        ]
        for key, data in objects.items():
            for secret in secrets:
                assert secret not in data, key

    storage.run(scenario)


def test_the_log_of_an_encrypted_stream_is_replayed_without_a_key(
    storage: Storage, cipher: Cipher
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_cipher(node, cipher)
            for start in range(0, 16, 4):
                await append(node, mixed(start))
            before = await records_of(node)
            async with node_on(bucket) as next_one:  # there is no snapshot: nobody has closed
                assert next_one.term.recovered.snapshot is None
                assert await records_of(next_one) == before
                with pytest.raises(FencingTokenMismatch) as fenced:
                    await append(next_one, batch("x"), fencing_token="another")
                assert fenced.value.fencing_token == "token-12"

    storage.run(scenario)


def derived_key(cipher: Cipher, binding: bytes) -> bytes:
    """The key of the stream, as the format says."""
    text = cipher.value.encode() + b"\0" + binding
    return hashlib.blake2b(text, digest_size=32, key=RAW_KEY, person=b"bourn-key").digest()


def test_an_encrypted_log_catches_up_from_storage_as_from_memory(
    storage: Storage, cipher: Cipher
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_cipher(node, cipher)
            await asyncio.gather(*(append(node, batch(body, body)) for body in PLAINTEXT))
            live = await records_of(node)
            assert sorted({record.body for record in live}) == sorted(PLAINTEXT)
        async with node_on(bucket) as node:
            assert await records_of(node) == live
            for start in (0, 1, 7, 79):
                request = make_request(seq_num=start, count=3)
                found = (await node.read(BASIN, STREAM, request, None, KEY)).records()
                assert found == live[start : start + 3]
            with pytest.raises(DecryptionFailed):
                await records_of(node, OTHER_KEY)
            assert not node.term.encoded._wires, "nothing that was opened is kept"

    storage.run(scenario)


def test_a_stream_with_a_cipher_takes_no_plaintext_by_any_way(
    memory: Storage, cipher: Cipher
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_cipher(node, cipher)
            with pytest.raises(StreamReplaced):
                await node.append(BASIN, STREAM, batch("clear"))
            appender = await node.appender(BASIN, STREAM, None, KEY)
            await appender.room_for(batch("clear"))
            with pytest.raises(StreamReplaced):
                await appender.submit(batch("clear"))
            appender.close()
            with pytest.raises(BadHeader):
                await node.appender(BASIN, STREAM)
            with pytest.raises(BadHeader):
                await node.read(BASIN, STREAM, from_start())
            assert node.term.room.bytes_taken == 0
            assert (await node.check_tail(BASIN, STREAM)).seq_num == 0

    memory.run(scenario)


def test_a_stream_made_anew_takes_nothing_that_was_sealed_for_the_one_before(
    memory: Storage, cipher: Cipher
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_cipher(node, cipher)
            sealer = await node.sealer(BASIN, STREAM, KEY)
            assert sealer is not None
            old = sealer.seal(batch("old"))
            await node.delete_stream(BASIN, STREAM)
            await eventually(lambda: node.term.find(BASIN, STREAM) is None)
            await node.create_stream(BASIN, CreateStream(STREAM))
            with pytest.raises(StreamReplaced) as refused:
                await node.append(BASIN, STREAM, old)
            problem = problem_of(refused.value)
            assert problem.status == 409
            assert b'"code":"transaction_conflict"' in problem.body
            assert node.term.room.bytes_taken == 0
            assert (await append(node, batch("new"))).start.seq_num == 0

    memory.run(scenario)


def test_a_plain_stream_takes_nothing_sealed(memory: Storage, cipher: Cipher) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_cipher(node, cipher)
            sealer = await node.sealer(BASIN, STREAM, KEY)
            assert sealer is not None
            await node.create_basin(CreateBasin("plain-basin"))
            await node.create_stream("plain-basin", CreateStream(STREAM))
            assert await node.sealer("plain-basin", STREAM, KEY) is None
            with pytest.raises(StreamReplaced):
                await node.append("plain-basin", STREAM, sealer.seal(batch("x")))

    memory.run(scenario)

"""Unary appends, reads and checks of the tail."""

from functools import partial
from typing import Final

from bourn.engine.batch import ReadBatch
from bourn.engine.node import Node
from bourn.errors import BadJson, BadProto
from bourn.http.aside import Aside
from bourn.http.exchange import while_present
from bourn.http.media import Media
from bourn.http.query import U32_MAX, Query
from bourn.http.request import Request
from bourn.http.telemetry import Telemetry
from bourn.layout.codec import AppendInput, decode_append_input
from bourn.layout.json_append import decode_json_append, surplus_bytes
from bourn.layout.json_records import encode_json_batch
from bourn.layout.records import encode_records, plain_batch
from bourn.limits import (
    JSON_INLINE_BYTES_MAX,
    JSON_ORDINARY_INLINE_BYTES_MAX,
    JSON_TINY_BYTES_MAX,
    JSON_WRITTEN_INLINE_BYTES_MAX,
)
from bourn.log.cursor import ReadRequest, make_request
from bourn.model.config import StreamConfig
from bourn.model.keys import CustomerKey
from bourn.wire import json, json_input, protobuf

_READ: Final = frozenset(
    {"seq_num", "timestamp", "tail_offset", "clamp", "count", "bytes", "until", "wait"}
)


class DataPlane:
    """The calls on records that answer once."""

    def __init__(self, node: Node, telemetry: Telemetry, aside: Aside) -> None:
        self._node = node
        self._telemetry = telemetry
        self._aside = aside

    async def check_tail(self, request: Request, basin: str, name: str) -> None:
        """GET …/records/tail."""
        tail = await self._node.check_tail(basin, name)
        await request.answer(200, json.encode_tail(tail))

    async def append(self, request: Request, basin: str, name: str) -> None:
        """POST …/records, one batch."""
        config, key, wanted = await self._append_input(request)
        batch = wanted.batch
        if batch.commands:
            request.permit_commands(batch.commands, basin, name)
        request.admit_append(basin, batch.metered_bytes)
        sealer = await self._node.sealer(basin, name, key, config)
        if sealer is not None:
            batch = sealer.seal(batch)
        with self._telemetry.append(batch) as admitted:
            ack = await self._node.append(
                basin,
                name,
                batch,
                match_seq_num=wanted.match_seq_num,
                fencing_token=wanted.fencing_token,
                config=config,
                on_admitted=admitted,
            )
        if request.accept() is Media.PROTOBUF:
            await request.answer(200, protobuf.encode_append_ack(ack), Media.PROTOBUF)
        else:
            await request.answer(200, json.encode_append_ack(ack))

    async def _append_input(
        self, request: Request
    ) -> tuple[StreamConfig | None, CustomerKey, AppendInput]:
        kind = request.content_type()
        if kind not in {Media.JSON, Media.PROTOBUF}:
            raise BadJson("Expected request with `Content-Type: application/json`")
        key = request.encryption_key()
        config = request.stream_config()
        if kind is Media.PROTOBUF:
            return config, key, decode_append_input(await request.body(BadProto))
        fmt = json.parse_format(request.exchange.header("s2-format"))
        body = await request.body(BadJson)
        if is_quick_json(body):
            return config, key, decode_json(body, fmt)
        return config, key, await self._aside.run(decode_json, body, fmt)

    async def read(self, request: Request, basin: str, name: str) -> None:
        """GET …/records, one batch."""
        query = read_query(request)
        key = request.encryption_key()
        config = request.stream_config()
        fmt = json.parse_format(request.exchange.header("s2-format"))
        wanted = checked(query)
        work = self._answer_read(request, basin, name, wanted, config, key, fmt)
        if wanted.wait_secs:
            await while_present(request.exchange, request.guarded(work))
        else:
            await work

    async def _answer_read(
        self,
        request: Request,
        basin: str,
        name: str,
        wanted: ReadRequest,
        config: StreamConfig | None,
        key: CustomerKey,
        fmt: json.Format,
    ) -> None:
        reading = partial(self._node.read, basin, name, wanted, config, key)
        batch = await (request.guard.during(reading) if wanted.wait_secs else reading())
        if request.accept() is Media.PROTOBUF:
            parts = batch.wire()
            if batch.tail is not None:
                parts.append(protobuf.encode_tail(batch.tail))
            await request.answer(200, b"".join(parts), Media.PROTOBUF)
        elif batch.metered_bytes <= JSON_WRITTEN_INLINE_BYTES_MAX:
            await request.answer(200, read_batch_json(batch, fmt))
        elif wanted.wait_secs:
            await self._answer_aside(request, batch, fmt)
        else:
            await while_present(request.exchange, self._answer_aside(request, batch, fmt))
        self._telemetry.delivered(batch, basin, is_unary=True)

    async def _answer_aside(self, request: Request, batch: ReadBatch, fmt: json.Format) -> None:
        """Answer with a large text, which nobody else waits for."""
        await request.answer(200, await self._aside.run(read_batch_json, batch, fmt))


def read_batch_json(batch: ReadBatch, fmt: json.Format) -> bytes:
    """Return a batch as JSON."""
    ending = json.encode_ending(batch.tail)
    return encode_json_batch(batch.slices, ending, is_base64=fmt is json.Format.BASE64)


class ReadQuery(dict[str, int | bool | None]):
    """The parameters of a read, each well formed."""


def is_quick_json(body: bytes) -> bool:
    """Whether a text may be read on the loop, by what that costs at worst.

    Either it is small, or machine code finds that it is an ordinary one with no more in it for
    any reader to trip over than a small one could have: the rest are bytes of records.
    """
    if len(body) <= JSON_INLINE_BYTES_MAX:
        return True
    if len(body) > JSON_ORDINARY_INLINE_BYTES_MAX:
        return False
    surplus = surplus_bytes(body)
    return surplus is not None and surplus <= JSON_INLINE_BYTES_MAX


def decode_json(body: bytes, fmt: json.Format) -> AppendInput:
    """Read an append in JSON."""
    text = json_input.plain_body(body) if fmt is json.Format.RAW else None
    if text is not None:
        return AppendInput(plain_batch(text), None, None)
    if len(body) > JSON_TINY_BYTES_MAX:
        ordinary = decode_json_append(body, is_base64=fmt is json.Format.BASE64)
        if ordinary is not None:
            return ordinary
    found = json_input.decode_append_input(body, fmt)
    return AppendInput(encode_records(found.records), found.match_seq_num, found.fencing_token)


def read_query(request: Request) -> ReadQuery:
    """Parse the query of a read; BadQuery where a parameter is malformed."""
    return parse_read_query(request.exchange.query)


def parse_read_query(raw: str) -> ReadQuery:
    """Parse the query of a read; BadQuery where a parameter is malformed."""
    query = Query(raw, _READ)
    return ReadQuery(
        seq_num=query.u64("seq_num"),
        timestamp=query.u64("timestamp"),
        tail_offset=query.u64("tail_offset"),
        clamp=query.flag("clamp"),
        count=query.u64("count"),
        bytes=query.u64("bytes"),
        until=query.u64("until"),
        wait=query.u64("wait", U32_MAX),
    )


def checked(query: ReadQuery) -> ReadRequest:
    """Make the request; Invalid where its parameters contradict."""
    return make_request(**query)  # type: ignore[arg-type]  # names and types are the API's

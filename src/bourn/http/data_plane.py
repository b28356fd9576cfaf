"""Unary appends, reads and checks of the tail."""

from typing import Final

from bourn.engine.node import Node
from bourn.errors import BadJson, BadProto
from bourn.http.exchange import while_present
from bourn.http.media import Media
from bourn.http.query import U32_MAX, Query
from bourn.http.request import NotImplementedHere, Request
from bourn.http.telemetry import Telemetry
from bourn.layout.codec import AppendInput, decode_append_input
from bourn.layout.records import encode_records
from bourn.log.cursor import ReadRequest, make_request
from bourn.model.config import StreamConfig
from bourn.wire import json, json_input, protobuf

_READ: Final = frozenset(
    {"seq_num", "timestamp", "tail_offset", "clamp", "count", "bytes", "until", "wait"}
)


class DataPlane:
    """The calls on records that answer once."""

    def __init__(self, node: Node, telemetry: Telemetry) -> None:
        self._node = node
        self._telemetry = telemetry

    async def check_tail(self, request: Request, basin: str, name: str) -> None:
        """GET …/records/tail."""
        tail = await self._node.check_tail(basin, name)
        await request.answer(200, json.encode_tail(tail))

    async def append(self, request: Request, basin: str, name: str) -> None:
        """POST …/records, one batch."""
        config, wanted = await self._append_input(request)
        await refuse_ciphers(self._node, basin, name, config)
        with self._telemetry.append(wanted.batch) as admitted:
            ack = await self._node.append(
                basin,
                name,
                wanted.batch,
                match_seq_num=wanted.match_seq_num,
                fencing_token=wanted.fencing_token,
                config=config,
                on_admitted=admitted,
            )
        if request.accept() is Media.PROTOBUF:
            await request.answer(200, protobuf.encode_append_ack(ack), Media.PROTOBUF)
        else:
            await request.answer(200, json.encode_append_ack(ack))

    async def _append_input(self, request: Request) -> tuple[StreamConfig | None, AppendInput]:
        kind = request.content_type()
        if kind not in {Media.JSON, Media.PROTOBUF}:
            raise BadJson("Expected request with `Content-Type: application/json`")
        request.encryption_key()
        config = request.stream_config()
        if kind is Media.PROTOBUF:
            return config, decode_append_input(await request.body(BadProto))
        fmt = json.parse_format(request.exchange.header("s2-format"))
        found = json_input.decode_append_input(await request.body(BadJson), fmt)
        batch = encode_records(found.records)
        return config, AppendInput(batch, found.match_seq_num, found.fencing_token)

    async def read(self, request: Request, basin: str, name: str) -> None:
        """GET …/records, one batch."""
        query = read_query(request)
        request.encryption_key()
        config = request.stream_config()
        fmt = json.parse_format(request.exchange.header("s2-format"))
        wanted = checked(query)
        work = self._answer_read(request, basin, name, wanted, config, fmt)
        if wanted.wait_secs:
            await while_present(request.exchange, work)
        else:
            await work

    async def _answer_read(
        self,
        request: Request,
        basin: str,
        name: str,
        wanted: ReadRequest,
        config: StreamConfig | None,
        fmt: json.Format,
    ) -> None:
        batch = await self._node.read(basin, name, wanted, config)
        if request.accept() is Media.PROTOBUF:
            parts = batch.wire()
            if batch.tail is not None:
                parts.append(protobuf.encode_tail(batch.tail))
            await request.answer(200, b"".join(parts), Media.PROTOBUF)
        else:
            body = json.encode_read_batch(batch.records(), batch.tail, fmt)
            await request.answer(200, body)
        self._telemetry.delivered(batch)


class ReadQuery(dict[str, int | bool | None]):
    """The parameters of a read, each well formed."""


def read_query(request: Request) -> ReadQuery:
    """Parse the query of a read; BadQuery where a parameter is malformed."""
    query = Query(request.exchange.query, _READ)
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


async def refuse_ciphers(node: Node, basin: str, name: str, config: StreamConfig | None) -> None:
    """Encrypted streams are not served yet; better no answer than plaintext in the bucket."""
    if await node.cipher(basin, name, config) is not None:
        raise NotImplementedHere

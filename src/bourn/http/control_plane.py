"""Basins, streams and locations: JSON in, JSON out."""

from typing import Final

import msgspec

from bourn.catalog.basins import basin_info
from bourn.catalog.changes import Provision
from bourn.catalog.rows import StreamRow
from bourn.catalog.streams import StreamInfo, stream_info
from bourn.engine.node import BasinPage, Node, StreamPage
from bourn.errors import BadJson, BadName, Invalid
from bourn.http.listing import Part, narrowed
from bourn.http.query import ListQuery, list_query
from bourn.http.request import Request
from bourn.model import names
from bourn.model.config import BasinConfig, ResolvedStreamConfig
from bourn.model.resource import (
    basin_config_shape,
    decode_basin_patch,
    decode_create_basin,
    decode_create_stream,
    decode_ensure_basin,
    decode_stream_config,
    decode_stream_patch,
    stream_config_shape,
)

_encode: Final = msgspec.json.Encoder().encode
_NAME: Final = msgspec.json.Decoder(str)  # which makes nothing of what is no string


class LocationInfo(msgspec.Struct, frozen=True):
    """A place where basins can live; this server has one."""

    name: str
    is_private: bool = False
    storage_classes: tuple[str, ...] = ("standard", "express")
    default_storage_class: str = "express"


class ControlPlane:
    """One method per verb and resource."""

    def __init__(self, node: Node, location: str) -> None:
        self._node = node
        self._location = LocationInfo(location)

    # Basins

    async def list_basins(self, request: Request) -> None:
        """GET /basins."""
        request.permit()
        wanted = list_query(request.exchange.query, names.basin_prefix)
        part = narrowed(request.principal.grant.scope.basins, wanted)
        await request.answer(200, basins_json(part, await self._node.list_basins(*part.query)))

    async def create_basin(self, request: Request) -> None:
        """POST /basins."""
        token = request.request_token()
        wanted = decode_create_basin(await request.json_body())
        request.permit(wanted.name)
        decision = await self._node.create_basin(wanted, token)
        await request.answer(
            201, _encode(basin_info(decision.row)), s2_provision_result=decision.provision.value
        )

    async def basin_config(self, request: Request, segment: str) -> None:
        """GET /basins/{basin}."""
        name = request.basin_segment(segment)
        request.permit(name)
        config = await self._node.basin_config(name)
        await request.answer(200, basin_config_json(config))

    async def ensure_basin(self, request: Request, segment: str) -> None:
        """PUT /basins/{basin}."""
        name = request.basin_segment(segment)
        request.permit(name)
        body = await request.optional_json_body()
        wanted = None if body is None else decode_ensure_basin(body)
        decision = await self._node.ensure_basin(name, wanted)
        await request.answer(
            _ensured(decision.provision),
            _encode(basin_info(decision.row)),
            s2_provision_result=decision.provision.value,
        )

    async def reconfigure_basin(self, request: Request, segment: str) -> None:
        """PATCH /basins/{basin}."""
        name = request.basin_segment(segment)
        request.permit(name)
        patch = decode_basin_patch(await request.json_body())
        config = await self._node.reconfigure_basin(name, patch)
        await request.answer(200, basin_config_json(config))

    async def delete_basin(self, request: Request, segment: str) -> None:
        """DELETE /basins/{basin}."""
        name = request.basin_segment(segment)
        request.permit(name)
        await self._node.delete_basin(name)
        await request.answer_empty(202)

    # Streams

    async def list_streams(self, request: Request) -> None:
        """GET /streams."""
        basin = request.basin()
        request.permit(basin)
        wanted = list_query(request.exchange.query, names.stream_prefix)
        own = request.principal.stream_prefix
        if own:
            # Behind the prefix alone, too: that name would be an empty one to whoever asks.
            wanted = ListQuery(own + wanted.prefix, own + wanted.start_after, wanted.limit)
        part = narrowed(request.principal.grant.scope.streams, wanted)
        page = await self._node.list_streams(basin, *part.query)
        await request.answer(200, streams_json(part, page, own))

    async def create_stream(self, request: Request) -> None:
        """POST /streams."""
        token = request.request_token()
        basin = request.basin()
        wanted = decode_create_stream(await request.json_body())
        try:
            name = request.whole_name(wanted.name)
        except BadName as error:
            raise BadJson(error.message) from None
        request.permit(basin, name)
        wanted = msgspec.structs.replace(wanted, name=name)
        decision = await self._node.create_stream(basin, wanted, token)
        await request.answer(
            201,
            stream_json(decision.row, request.principal.stream_prefix),
            s2_provision_result=decision.provision.value,
        )

    async def stream_config(self, request: Request, segment: str) -> None:
        """GET /streams/{stream}."""
        basin, name = request.basin(), request.stream_segment(segment)
        request.permit(basin, name)
        config = await self._node.stream_config(basin, name)
        await request.answer(200, stream_config_json(config))

    async def ensure_stream(self, request: Request, segment: str) -> None:
        """PUT /streams/{stream}."""
        basin, name = request.basin(), request.stream_segment(segment)
        request.permit(basin, name)
        body = await request.optional_json_body()
        wanted = None if body is None else decode_stream_config(body)
        decision = await self._node.ensure_stream(basin, name, wanted)
        await request.answer(
            _ensured(decision.provision),
            stream_json(decision.row, request.principal.stream_prefix),
            s2_provision_result=decision.provision.value,
        )

    async def reconfigure_stream(self, request: Request, segment: str) -> None:
        """PATCH /streams/{stream}."""
        basin, name = request.basin(), request.stream_segment(segment)
        request.permit(basin, name)
        patch = decode_stream_patch(await request.json_body())
        config = await self._node.reconfigure_stream(basin, name, patch)
        await request.answer(200, stream_config_json(config))

    async def delete_stream(self, request: Request, segment: str) -> None:
        """DELETE /streams/{stream}."""
        basin, name = request.basin(), request.stream_segment(segment)
        request.permit(basin, name)
        await self._node.delete_stream(basin, name)
        await request.answer_empty(202)

    # Locations

    async def list_locations(self, request: Request) -> None:
        """GET /locations."""
        request.permit()
        await request.answer(200, _encode([self._location]))

    async def default_location(self, request: Request) -> None:
        """GET /locations/default."""
        request.permit()
        await request.answer(200, _encode(self._location))

    async def set_default_location(self, request: Request) -> None:
        """PUT /locations/default."""
        request.permit()
        body = await request.json_body()
        try:
            wanted = _NAME.decode(body)
        except msgspec.ValidationError:
            raise BadJson("expected the name of a location as a JSON string") from None
        except ValueError as error:  # of msgspec, and of text that is not UTF-8
            raise BadJson(str(error)) from None
        try:
            names.location_name(wanted)
        except BadName as error:
            raise BadJson(error.message) from None
        if wanted != self._location.name:
            raise Invalid(f"location `{wanted}` is not known")
        await request.answer(200, _encode(self._location))


def basin_config_json(config: BasinConfig) -> bytes:
    """Return a basin's config as JSON."""
    return _encode(basin_config_shape(config))


def stream_json(row: StreamRow, own_prefix: str = "") -> bytes:
    """Return what is shown of a stream as JSON."""
    return _encode(_shown(row, own_prefix))


def stream_config_json(config: ResolvedStreamConfig) -> bytes:
    """Return a stream's config as JSON."""
    return _encode(stream_config_shape(config))


def basins_json(part: Part, page: BasinPage) -> bytes:
    """Return what may be shown of a page of basins as JSON."""
    rows, has_more = part.cut(page, lambda row: row.name)
    return _encode({"basins": [basin_info(row) for row in rows], "has_more": has_more})


def streams_json(part: Part, page: StreamPage, own_prefix: str = "") -> bytes:
    """Return what may be shown of a page of streams as JSON."""
    rows, has_more = part.cut(page, lambda row: row.name)
    return _encode({"streams": [_shown(row, own_prefix) for row in rows], "has_more": has_more})


def _shown(row: StreamRow, own_prefix: str) -> StreamInfo:
    """What JSON shows of a stream, by the name that whoever asks has for it."""
    info = stream_info(row)
    if own_prefix:
        return msgspec.structs.replace(info, name=row.name.removeprefix(own_prefix))
    return info


def _ensured(provision: Provision) -> int:
    return 201 if provision is Provision.CREATED else 200

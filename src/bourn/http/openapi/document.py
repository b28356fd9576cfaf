"""The document: every route and method with what it takes and every answer that it can give."""

from collections import defaultdict
from functools import cache
from importlib.metadata import version
from typing import Any, Final

import msgspec

from bourn.http.openapi import parameters as p
from bourn.http.openapi.schemas import LOCATION_NAME, SCHEMAS, Schema, nullable, ref
from bourn.http.problems import JSON, STATUS

_PROTOBUF: Final = "application/protobuf"
_EVENTS: Final = "text/event-stream"
_SESSION: Final = "s2s/proto"
_BINARY: Final[Schema] = {"type": "string", "format": "binary"}
_ANYWHERE: Final = (
    "bad_header authn permission_denied rate_limited other storage hot_server unavailable "
    "server_draining"
)
_BASIN_STATE: Final = "basin_not_found basin_deletion_pending"
_STREAM_STATE: Final = f"{_BASIN_STATE} stream_not_found stream_deletion_pending"
_PROVISION: Final[Schema] = {
    "s2-provision-result": {
        "required": True,
        "schema": {"type": "string", "enum": ["created", "updated", "noop"]},
    }
}
_RETRY: Final[Schema] = {
    "retry-after-ms": {
        "required": True,
        "description": "no sooner",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_BASIN_SETS: Final = "storage append-ops read-ops read-throughput append-throughput basin-ops"
_ACCOUNT_SETS: Final = "active-basins account-ops estimated-billable-usage"


@cache
def encoded_document() -> bytes:
    """Return the OpenAPI document as JSON; it is made when it is first asked for."""
    return msgspec.json.encode(_document(version("bourn")))


def _document(of_version: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bourn",
            "version": of_version,
            "summary": "Durable streams: the S2 API.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/v1"}],
        "security": [{"token": []}],
        "paths": _basins() | _streams() | _records() | _account(),
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    name: str,
    summary: str,
    codes: str,
    answers: dict[int, Schema],
    takes: list[Schema] | None = None,
    body: Schema | None = None,
) -> Schema:
    """One operation; `codes` are the errors of its own, beside those that any may answer."""
    found: Schema = {
        "operationId": name,
        "summary": summary,
        "responses": {str(status): answer for status, answer in answers.items()}
        | _errors(f"{codes} {_ANYWHERE}"),
    }
    if takes:
        found["parameters"] = takes
    if body is not None:
        found["requestBody"] = body
    return found


def _errors(codes: str) -> dict[str, Schema]:
    by_status: defaultdict[int, list[str]] = defaultdict(list)
    for code in codes.split():
        by_status[STATUS[code]].append(code)
    answers: dict[str, Schema] = {
        str(status): _json_of(ref("Error"), ", ".join(sorted(found)))
        for status, found in sorted(by_status.items())
    }
    answers[str(STATUS["rate_limited"])]["headers"] = _RETRY
    answers["406"] = {"description": "no content coding that the client accepts"}
    answers["415"] = {"description": "a content coding that is not gzip, zstd or identity"}
    return answers


def _json_of(schema: Schema, description: str = "", headers: Schema | None = None) -> Schema:
    answer: Schema = {
        "description": description or "done",
        "content": {JSON: {"schema": schema}},
    }
    return answer | ({"headers": headers} if headers else {})


def _empty(description: str) -> Schema:
    return {"description": description}


def _body(schema: Schema, *, required: bool = True) -> Schema:
    return {"required": required, "content": {JSON: {"schema": schema}}}


def _basins() -> dict[str, Schema]:
    info = ref("BasinInfo")
    created = _json_of(info, "created, or this very request was answered before", _PROVISION)
    return {
        "/basins": {
            "get": _operation(
                "list-basins",
                "List basins",
                "bad_query",
                {200: _json_of(ref("BasinPage"))},
                p.BASINS_LISTING,
            ),
            "post": _operation(
                "create-basin",
                "Create a basin",
                "bad_json invalid resource_already_exists basin_deletion_pending quota_exhausted "
                "transaction_conflict",
                {201: created},
                [p.REQUEST_TOKEN],
                _body(ref("CreateBasin")),
            ),
        },
        "/basins/{basin}": {
            "parameters": [p.BASIN_PATH],
            "get": _operation(
                "get-basin-config",
                "Show a basin's config",
                f"bad_path {_BASIN_STATE}",
                {200: _json_of(ref("BasinConfig"))},
            ),
            "put": _operation(
                "ensure-basin",
                "Make the basin be like this",
                "bad_path bad_json invalid basin_deletion_pending quota_exhausted",
                {200: _json_of(info, "it is like this", _PROVISION), 201: created},
                None,
                _body(nullable(ref("EnsureBasin")), required=False),
            ),
            "patch": _operation(
                "reconfigure-basin",
                "Change members of a basin's config: null clears, absent leaves",
                f"bad_path bad_json invalid {_BASIN_STATE}",
                {200: _json_of(ref("BasinConfig"))},
                None,
                _body(ref("BasinConfig")),
            ),
            "delete": _operation(
                "delete-basin",
                "Delete a basin with all its streams",
                f"bad_path {_BASIN_STATE}",
                {202: _empty("the deletion is under way")},
            ),
        },
    }


def _streams() -> dict[str, Schema]:
    info = ref("StreamInfo")
    created = _json_of(info, "created, or this very request was answered before", _PROVISION)
    return {
        "/streams": {
            "parameters": [p.BASIN],
            "get": _operation(
                "list-streams",
                "List a basin's streams",
                f"bad_query {_BASIN_STATE}",
                {200: _json_of(ref("StreamPage"))},
                p.STREAMS_LISTING,
            ),
            "post": _operation(
                "create-stream",
                "Create a stream",
                f"bad_json invalid resource_already_exists transaction_conflict quota_exhausted "
                f"stream_deletion_pending {_BASIN_STATE}",
                {201: created},
                [p.REQUEST_TOKEN],
                _body(ref("CreateStream")),
            ),
        },
        "/streams/{stream}": {
            "parameters": [p.BASIN, p.STREAM_PATH],
            "get": _operation(
                "get-stream-config",
                "Show a stream's config",
                f"bad_path {_STREAM_STATE}",
                {200: _json_of(ref("StreamConfig"))},
            ),
            "put": _operation(
                "ensure-stream",
                "Make the stream be like this",
                f"bad_path bad_json invalid stream_deletion_pending quota_exhausted {_BASIN_STATE}",
                {200: _json_of(info, "it is like this", _PROVISION), 201: created},
                None,
                _body(nullable(ref("StreamConfig")), required=False),
            ),
            "patch": _operation(
                "reconfigure-stream",
                "Change members of a stream's config: null clears, absent leaves",
                f"bad_path bad_json invalid {_STREAM_STATE}",
                {200: _json_of(ref("StreamConfig"))},
                None,
                _body(ref("StreamConfig")),
            ),
            "delete": _operation(
                "delete-stream",
                "Delete a stream",
                f"bad_path {_STREAM_STATE}",
                {202: _empty("the deletion is under way")},
            ),
        },
    }


def _records() -> dict[str, Schema]:
    ack = _json_of(ref("AppendAck"), "durable")
    ack["content"] |= {_PROTOBUF: {"schema": _BINARY}, _SESSION: {"schema": _BINARY}}
    batch = _json_of(ref("ReadBatch"), "a batch, or a session of them")
    batch["content"] |= {
        _PROTOBUF: {"schema": _BINARY},
        _EVENTS: {"schema": {"type": "string"}},
        _SESSION: {"schema": _BINARY},
    }
    return {
        "/streams/{stream}/records": {
            "parameters": [p.BASIN, p.STREAM_PATH, p.FORMAT, p.ENCRYPTION_KEY],
            "get": _operation(
                "read",
                "Read a batch; by `Accept: text/event-stream` or frames, a session of batches",
                f"bad_path bad_query invalid decryption_failed quota_exhausted {_STREAM_STATE}",
                {200: batch, 416: _json_of(ref("Tail"), "nothing is written there yet")},
                p.READ,
            ),
            "post": _operation(
                "append",
                "Append a batch, whole or not at all; by frames, a session of batches",
                f"bad_path bad_json bad_proto invalid quota_exhausted {_STREAM_STATE}",
                {200: ack, 412: _json_of(ref("ConditionFailed"), "a condition does not hold")},
                None,
                _body(ref("AppendInput")),
            ),
        },
        "/streams/{stream}/records/tail": {
            "parameters": [p.BASIN, p.STREAM_PATH],
            "get": _operation(
                "check-tail",
                "Show where the stream ends",
                f"bad_path quota_exhausted {_STREAM_STATE}",
                {200: _json_of(ref("Tail"))},
            ),
        },
    }


def _account() -> dict[str, Schema]:
    location = _json_of(ref("LocationInfo"))
    return {
        "/access-tokens": {
            "get": _operation(
                "list-access-tokens",
                "List access tokens",
                "bad_query",
                {200: _json_of(ref("AccessTokenPage"))},
                p.TOKENS_LISTING,
            ),
            "post": _operation(
                "issue-access-token",
                "Issue an access token; its secret is shown this once",
                "bad_json invalid resource_already_exists quota_exhausted",
                {201: _json_of(ref("IssuedAccessToken"))},
                None,
                _body(ref("IssueAccessToken")),
            ),
        },
        "/access-tokens/{id}": {
            "parameters": [p.TOKEN_PATH],
            "delete": _operation(
                "revoke-access-token",
                "Revoke an access token",
                "bad_path invalid access_token_not_found",
                {204: _empty("revoked")},
            ),
        },
        "/locations": {
            "get": _operation(
                "list-locations",
                "List the places where basins can live",
                "",
                {200: _json_of({"type": "array", "items": ref("LocationInfo")})},
            ),
        },
        "/locations/default": {
            "get": _operation("get-default-location", "Show the default one", "", {200: location}),
            "put": _operation(
                "set-default-location",
                "Choose the default one",
                "bad_json invalid",
                {200: location},
                None,
                _body(LOCATION_NAME),
            ),
        },
        "/metrics": {"get": _usage("account-metrics", _ACCOUNT_SETS, [])},
        "/metrics/{basin}": {"get": _usage("basin-metrics", _BASIN_SETS, [p.BASIN_PATH])},
        "/metrics/{basin}/{stream}": {
            "get": _usage("stream-metrics", "storage", [p.BASIN_PATH, p.STREAM_PATH])
        },
    }


def _usage(name: str, sets: str, takes: list[Schema]) -> Schema:
    return _operation(
        name,
        "Show usage over a window of time",
        "bad_path bad_query invalid",
        {200: _json_of(ref("Metrics"))},
        [*takes, *p.usage(sets, "minute hour day")],
    )

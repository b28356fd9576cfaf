"""The shapes of bodies, by name."""

from typing import Any, Final

from bourn.limits import (
    ACCESS_TOKEN_ID_BYTES_MAX,
    BASIN_NAME_BYTES_MAX,
    BASIN_NAME_BYTES_MIN,
    BATCH_RECORDS_MAX,
    FENCING_TOKEN_BYTES_MAX,
    LOCATION_NAME_BYTES_MAX,
    STORAGE_CLASS_BYTES_MAX,
    STREAM_NAME_BYTES_MAX,
    U64_MAX,
)
from bourn.model.access import Op

Schema = dict[str, Any]

U64: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": U64_MAX}
BASIN_NAME: Final[Schema] = {
    "type": "string",
    "minLength": BASIN_NAME_BYTES_MIN,
    "maxLength": BASIN_NAME_BYTES_MAX,
    "pattern": "^[a-z0-9][a-z0-9-]*[a-z0-9]$",
}
BASIN_PREFIX: Final[Schema] = {
    "type": "string",
    "maxLength": BASIN_NAME_BYTES_MAX,
    "pattern": "^([a-z0-9][a-z0-9-]*)?$",
}


def text(bytes_max: int, bytes_min: int = 0, *, is_name: bool = False) -> Schema:
    """A text whose length is counted in bytes of UTF-8, which the format says.

    A name stands in paths, so that it cannot be one that clients resolve away.
    """
    schema: Schema = {
        "type": "string",
        "minLength": bytes_min,
        "maxLength": bytes_max,
        "format": f"utf8-{'name' if is_name else 'text'}-{bytes_max}",
        "description": f"{bytes_min} to {bytes_max} bytes of UTF-8 without NUL",
    }
    return schema


STREAM_NAME: Final = text(STREAM_NAME_BYTES_MAX, 1, is_name=True)
STREAM_PREFIX: Final = text(STREAM_NAME_BYTES_MAX)
TOKEN_ID: Final = text(ACCESS_TOKEN_ID_BYTES_MAX, 1, is_name=True)
TOKEN_PREFIX: Final = text(ACCESS_TOKEN_ID_BYTES_MAX)
LOCATION_NAME: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": LOCATION_NAME_BYTES_MAX,
    "pattern": "^[A-Za-z0-9:.-]+$",
}
INSTANT: Final[Schema] = {"type": "string", "format": "date-time"}


def ref(name: str) -> Schema:
    """A reference to one of SCHEMAS."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """The shape, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def members(required: str = "", **properties: Schema) -> Schema:
    """An object with these members; `required` names those that are always there."""
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required.split()
    return schema


def page(what: str, item: str) -> Schema:
    """A part of a listing."""
    items: dict[str, Schema] = {what: {"type": "array", "items": ref(item)}}
    return members(f"{what} has_more", **items, has_more={"type": "boolean"})


_CIPHER: Final[Schema] = {"type": "string", "enum": ["aegis-256", "aes-256-gcm"]}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_MODE: Final[Schema] = {"type": "string", "enum": ["client-prefer", "client-require", "arrival"]}
_RETENTION: Final[Schema] = {
    "oneOf": [
        members("age", age={**U64, "minimum": 1}) | {"additionalProperties": False},
        members("infinite", infinite={"type": "object"}) | {"additionalProperties": False},
    ]
}
_STORAGE_CLASS: Final = text(STORAGE_CLASS_BYTES_MAX, 1)
_OPS: Final[Schema] = {
    "type": "array",
    "items": {"type": "string", "enum": [op.value for op in Op]},
}
_READ_WRITE: Final = members(read=_BOOLEAN, write=_BOOLEAN)
_HEADER: Final[Schema] = {
    "type": "array",
    "items": {"type": "string"},
    "minItems": 2,
    "maxItems": 2,
}


def _resource_set(name: Schema, prefix: Schema) -> Schema:
    return {
        "oneOf": [
            members("exact", exact={"anyOf": [name, {"type": "string", "maxLength": 0}]})
            | {"additionalProperties": False},
            members("prefix", prefix=prefix) | {"additionalProperties": False},
        ]
    }


def _scope(*, is_input: bool) -> Schema:
    groups = members(account=_READ_WRITE, basin=_READ_WRITE, stream=_READ_WRITE)
    shape = members(
        basins=nullable(_resource_set(BASIN_NAME, BASIN_PREFIX)),
        streams=nullable(_resource_set(STREAM_NAME, STREAM_PREFIX)),
        access_tokens=nullable(_resource_set(TOKEN_ID, TOKEN_PREFIX)),
        op_groups=nullable(groups) if is_input else groups,
        ops=nullable(_OPS) if is_input else _OPS,
    )
    return shape if is_input else shape | {"required": list(shape["properties"])}


def _points() -> Schema:
    point = {
        "type": "array",
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
    }
    return {"type": "array", "items": point}


def _metric() -> Schema:
    unit: Schema = {"type": "string", "enum": ["bytes", "operations", "usd"]}
    name: Schema = {"type": "string"}
    interval: Schema = {"type": "string", "enum": ["minute", "hour", "day"]}
    kinds = {
        "scalar": members("name unit value", name=name, unit=unit, value={"type": "number"}),
        "accumulation": members(
            "name unit interval values", name=name, unit=unit, interval=interval, values=_points()
        ),
        "gauge": members("name unit values", name=name, unit=unit, values=_points()),
        "label": members("name values", name=name, values={"type": "array", "items": name}),
    }
    return {"oneOf": [members(kind, **{kind: shape}) for kind, shape in kinds.items()]}


SCHEMAS: Final[dict[str, Schema]] = {
    "Error": members("code message", code={"type": "string"}, message={"type": "string"}),
    "StreamConfig": members(
        storage_class=nullable(_STORAGE_CLASS),
        retention_policy=nullable(_RETENTION),
        timestamping=nullable(members(mode=nullable(_MODE), uncapped=nullable(_BOOLEAN))),
        delete_on_empty=nullable(members(min_age_secs=nullable(U64))),
    ),
    "BasinConfig": members(
        default_stream_config=nullable(ref("StreamConfig")),
        stream_cipher=nullable(_CIPHER),
        create_stream_on_append=nullable(_BOOLEAN),
        create_stream_on_read=nullable(_BOOLEAN),
    ),
    "BasinInfo": members(
        "name location created_at deleted_at state",
        name=BASIN_NAME,
        location=nullable(LOCATION_NAME),
        created_at=INSTANT,
        deleted_at=nullable(INSTANT),
        state={"type": "string", "enum": ["active", "deleting"]},
    ),
    "StreamInfo": members(
        "name created_at deleted_at cipher",
        name=STREAM_NAME,
        created_at=INSTANT,
        deleted_at=nullable(INSTANT),
        cipher=nullable(_CIPHER),
    ),
    "CreateBasin": members(
        "basin",
        basin=BASIN_NAME,
        config=nullable(ref("BasinConfig")),
        location=nullable(LOCATION_NAME),
    ),
    "EnsureBasin": members(config=nullable(ref("BasinConfig")), location=nullable(LOCATION_NAME)),
    "CreateStream": members("stream", stream=STREAM_NAME, config=nullable(ref("StreamConfig"))),
    "BasinPage": page("basins", "BasinInfo"),
    "StreamPage": page("streams", "StreamInfo"),
    "StreamPosition": members("seq_num timestamp", seq_num=U64, timestamp=U64),
    "Tail": members("tail", tail=ref("StreamPosition")),
    "AppendRecord": members(
        timestamp=nullable(U64),
        headers={"type": "array", "items": _HEADER},
        body={"type": "string"},
    ),
    "AppendInput": members(
        "records",
        records={
            "type": "array",
            "items": ref("AppendRecord"),
            "minItems": 1,
            "maxItems": BATCH_RECORDS_MAX,
        },
        match_seq_num=nullable(U64),
        fencing_token=nullable(text(FENCING_TOKEN_BYTES_MAX)),
    ),
    "AppendAck": members(
        "start end tail",
        start=ref("StreamPosition"),
        end=ref("StreamPosition"),
        tail=ref("StreamPosition"),
    ),
    "SequencedRecord": members(
        "seq_num timestamp",
        seq_num=U64,
        timestamp=U64,
        headers={"type": "array", "items": _HEADER, "minItems": 1},
        body={"type": "string", "minLength": 1},
    ),
    "ReadBatch": members(
        "records",
        records={"type": "array", "items": ref("SequencedRecord")},
        tail=ref("StreamPosition"),
    ),
    "ConditionFailed": {
        "oneOf": [
            members("seq_num_mismatch", seq_num_mismatch=U64),
            members("fencing_token_mismatch", fencing_token_mismatch={"type": "string"}),
        ]
    },
    "LocationInfo": members(
        "name is_private",
        name=LOCATION_NAME,
        is_private=_BOOLEAN,
        storage_classes={"type": "array", "items": _STORAGE_CLASS},
        default_storage_class=_STORAGE_CLASS,
    ),
    "IssueAccessToken": members(
        "id scope",
        id=TOKEN_ID,
        expires_at=nullable(INSTANT),
        auto_prefix_streams=_BOOLEAN,
        scope=_scope(is_input=True),
    ),
    "IssuedAccessToken": members("access_token", access_token={"type": "string", "minLength": 1}),
    "AccessTokenInfo": members(
        "id expires_at auto_prefix_streams scope",
        id=TOKEN_ID,
        expires_at=nullable(INSTANT),
        auto_prefix_streams=_BOOLEAN,
        scope=_scope(is_input=False),
    ),
    "AccessTokenPage": page("access_tokens", "AccessTokenInfo"),
    "Metrics": members("values", values={"type": "array", "items": _metric()}),
}

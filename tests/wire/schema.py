"""The messages of `s2.v1` as the reference implementation of protobuf knows them."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_OPTIONAL, _REPEATED = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
_TYPES = {"uint64": _FIELD.TYPE_UINT64, "bytes": _FIELD.TYPE_BYTES, "string": _FIELD.TYPE_STRING}

# (field, number, type); `?` marks explicit presence, `*` a repeated field.
_MESSAGES: dict[str, list[tuple[str, int, str]]] = {
    "StreamPosition": [("seq_num", 1, "uint64"), ("timestamp", 2, "uint64")],
    "Header": [("name", 1, "bytes"), ("value", 2, "bytes")],
    "AppendRecord": [("timestamp", 1, "uint64?"), ("headers", 2, "Header*"), ("body", 3, "bytes")],
    "AppendInput": [
        ("records", 1, "AppendRecord*"),
        ("match_seq_num", 2, "uint64?"),
        ("fencing_token", 3, "string?"),
    ],
    "AppendAck": [
        ("start", 1, "StreamPosition"),
        ("end", 2, "StreamPosition"),
        ("tail", 3, "StreamPosition"),
    ],
    "SequencedRecord": [
        ("seq_num", 1, "uint64"),
        ("timestamp", 2, "uint64"),
        ("headers", 3, "Header*"),
        ("body", 4, "bytes"),
    ],
    "ReadBatch": [("records", 1, "SequencedRecord*"), ("tail", 2, "StreamPosition")],
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="s2/v1/s2.proto", package="s2.v1", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, spelled in fields:
            kind = spelled.rstrip("?*")
            field = message.field.add(
                name=field_name,
                number=number,
                label=_REPEATED if spelled.endswith("*") else _OPTIONAL,
                type=_TYPES.get(kind, _FIELD.TYPE_MESSAGE),
            )
            if kind not in _TYPES:
                field.type_name = f".s2.v1.{kind}"
            if spelled.endswith("?"):
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"s2.v1.{name}"))


StreamPosition = _message("StreamPosition")
AppendInput = _message("AppendInput")
AppendAck = _message("AppendAck")
ReadBatch = _message("ReadBatch")

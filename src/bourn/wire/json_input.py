"""Appends as JSON: what a client sends.

    AppendInput   {"records":[AppendRecord…],"match_seq_num"?:u64,"fencing_token"?:string}
    AppendRecord  {"timestamp"?:u64,"headers"?:[Header…],"body"?:string}
    Header        [name,value] or {"name":string,"value":string}

`null` stands for an absent optional field; unknown fields are ignored. Names, values and bodies
are text as the `s2-format` header says: `raw` is their UTF-8, `base64` the standard alphabet,
padded, canonical. The text must be JSON throughout, no object may give a key twice, and a u64 is
written in digits alone.

Reading is quick where it can be proven right, else exact:

- The quick parser overlooks a key that is unknown or given twice. Outside strings there is one
  colon per key, so if the text has as many colons as there are known keys in the answer, plus
  those inside the answer's strings, it overlooked nothing. (A colon written as an escape would
  upset the sum; such a text is not proven.) It also takes `-0` for 0, so a 0 beside a "-0"
  anywhere is not proven either.
- The exact reader goes through the text key by key and digit by digit. It also finds out what
  is wrong, and where.
"""

import binascii
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, cast

import msgspec
import orjson
from msgspec import UNSET, Meta, UnsetType

from bourn.errors import BadJson, Invalid
from bourn.limits import BATCH_RECORDS_MAX, FENCING_TOKEN_BYTES_MAX, U64_MAX
from bourn.model.record import Headers, Record
from bourn.wire.json import Format

_U64_DIGITS_MAX: Final = len(str(U64_MAX))
_NOT_U64: Final = -1
_KEY_SHOWN_MAX: Final = 64
_DIGITS_SPARING_4_BITS: Final = "AQgw"  # base64 digits whose low 4 bits are zero
_DIGITS_SPARING_2_BITS: Final = "AEIMQUYcgkosw048"


class JsonAppendInput(NamedTuple):
    """An append as its JSON body gives it."""

    records: list[Record]
    match_seq_num: int | None
    fencing_token: str | None


_U64 = Annotated[int, Meta(ge=0)]  # the library's bounds have 63 bits


class _Header(msgspec.Struct, gc=False):
    name: str
    value: str

    def __iter__(self) -> Iterator[str]:
        """Unpack like the pair that it stands for."""
        yield self.name
        yield self.value


class _Record(msgspec.Struct, gc=False):
    timestamp: _U64 | UnsetType | None = UNSET
    headers: list[tuple[str, str] | _Header] | UnsetType | None = UNSET
    body: str | UnsetType | None = UNSET


class _Input(msgspec.Struct, gc=False):
    records: list[_Record]
    match_seq_num: _U64 | UnsetType | None = UNSET
    fencing_token: str | UnsetType | None = UNSET


_DECODER: Final = msgspec.json.Decoder(_Input)


# A NamedTuple's own constructor is a Python function; this one is not, and takes half the time.
_new_record: Final = cast(
    "Callable[[tuple[bytes, Headers, int | None]], Record]", partial(tuple.__new__, Record)
)


def decode_append_input(body: bytes, fmt: Format) -> JsonAppendInput:
    """Read an AppendInput: BadJson for the text and its shape, Invalid for base64 that is none.

    A batch of too many records is Invalid before anyone looks at them.
    """
    parsed = _read_quickly(body) or _read_exactly(body)
    fencing_token = parsed.fencing_token
    if fencing_token and len(fencing_token.encode()) > FENCING_TOKEN_BYTES_MAX:
        raise BadJson(f"fencing token must not exceed {FENCING_TOKEN_BYTES_MAX} bytes in length")
    return JsonAppendInput(
        _convert(parsed.records, str.encode if fmt is Format.RAW else _decode_base64),
        None if parsed.match_seq_num is UNSET else parsed.match_seq_num,
        None if fencing_token is UNSET else fencing_token,
    )


def _convert(parsed: list[_Record], decode: Callable[[str], bytes]) -> list[Record]:
    records: list[Record] = []
    for record in parsed:
        body = decode(record.body) if record.body else b""
        headers = (
            tuple([(decode(name), decode(value)) for name, value in record.headers])
            if record.headers
            else ()
        )
        timestamp = None if record.timestamp is UNSET else record.timestamp
        records.append(_new_record((body, headers, timestamp)))
    return records


def _decode_base64(text: str) -> bytes:
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise Invalid("invalid Base64 encoding") from None
    # The library lets pass a surplus `=` and spare bits that are not zero.
    canonical = True
    if text.endswith("=="):
        canonical = text[-3] in _DIGITS_SPARING_4_BITS
    elif text.endswith("="):
        canonical = text[-2] in _DIGITS_SPARING_2_BITS
    if len(text) % 4 or not canonical:
        raise Invalid("invalid Base64 encoding")
    return data


# Quick and proven


def _read_quickly(body: bytes) -> _Input | None:
    """Return the input, or None where the quick parser failed or may have overlooked something."""
    try:
        parsed = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(parsed.records) > BATCH_RECORDS_MAX:
        raise Invalid(f"record batch must not exceed {BATCH_RECORDS_MAX} records")
    keys, numbers = _survey(parsed)
    if numbers and (max(numbers) > U64_MAX or (b"-0" in body and 0 in numbers)):
        return None
    return parsed if _accounts_for_colons(parsed, keys, body) else None


def _survey(parsed: _Input) -> tuple[int, list[int]]:
    """Return how many keys the answer has, `null` included, and all its numbers."""
    keys = 1 + (parsed.match_seq_num is not UNSET) + (parsed.fencing_token is not UNSET)
    numbers = [parsed.match_seq_num] if isinstance(parsed.match_seq_num, int) else []
    for record in parsed.records:
        if record.body is not UNSET:
            keys += 1
        if record.headers is not UNSET:
            keys += 1
            for header in record.headers or ():
                if type(header) is not tuple:
                    keys += 2
        if record.timestamp is not UNSET:
            keys += 1
            if record.timestamp is not None:
                numbers.append(record.timestamp)
    return keys, numbers


def _accounts_for_colons(parsed: _Input, keys: int, body: bytes) -> bool:
    colons = body.count(b":") - keys
    if not colons:
        return True
    if b"\\u003a" in body or b"\\u003A" in body:
        return False
    strings = [record.body for record in parsed.records if record.body]
    for record in parsed.records:
        if record.headers:
            for header in record.headers:
                strings += header
    if parsed.fencing_token:
        strings.append(parsed.fencing_token)
    return colons == "".join(strings).count(":")


# Exact


def _read_exactly(body: bytes) -> _Input:
    """Return the input, or raise BadJson with what is wrong and, where it is known, the place."""
    try:
        text = body.decode()
        orjson.loads(body)
        document = json.loads(text, object_pairs_hook=_unique, parse_int=_parse_int)
        return msgspec.convert(document, _Input)
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        column = error.start - body.rfind(b"\n", 0, error.start)
        raise BadJson(f"invalid UTF-8 at line {line} column {column}") from None
    except json.JSONDecodeError as error:
        raise BadJson(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise BadJson("nested too deep") from None
    except msgspec.ValidationError as error:
        raise BadJson(str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadJson(f"duplicate field `{key[:_KEY_SHOWN_MAX]}`")
            seen.add(key)
    return members


def _parse_int(literal: str) -> int:
    if literal.startswith("-") or len(literal) > _U64_DIGITS_MAX:
        return _NOT_U64
    number = int(literal)
    return number if number <= U64_MAX else _NOT_U64

"""Appends as JSON: what a client sends.

    AppendInput   {"records":[AppendRecord…],"match_seq_num"?:u64,"fencing_token"?:string}
    AppendRecord  {"timestamp"?:u64,"headers"?:[Header…],"body"?:string}
    Header        [name,value] or {"name":string,"value":string}

`null` stands for an absent optional field; unknown fields are ignored. Names, values and bodies
are text as the `s2-format` header says: `raw` is their UTF-8, `base64` the standard alphabet,
padded, canonical. The text must be JSON throughout, no object may give a key twice, and a u64 is
written in digits alone.

What clients ordinarily write is not read here but by `layout/json_append`, straight to stored
records; this is where all other texts go, and every error comes from. Reading is quick where it can
be proven right, else exact:

- The quick parser overlooks a key that is unknown or given twice. Outside strings there is one
  colon per key, so if the text has as many colons as there are known keys in the answer, plus
  those inside the answer's strings, it overlooked nothing. (A colon written as an escape would
  upset the sum; such a text is not proven.) It also takes `-0` for 0, so a 0 beside a "-0"
  anywhere is not proven either.
- The exact reader has the text checked first (`json_check`: key by key, digit by digit, without the
  interpreter's lock), which also says what is wrong, and where. Then nothing is left to overlook.
  A text of very many values is read in parts: one call that makes half a million headers would
  hold the interpreter, and with it everybody else, for too long. A large text is read this way at
  once.
"""

import binascii
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Final, NamedTuple, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bourn.errors import BadJson, Invalid
from bourn.limits import (
    BATCH_RECORDS_MAX,
    FENCING_TOKEN_BYTES_MAX,
    JSON_INLINE_BYTES_MAX,
    JSON_PIECE_BYTES,
    JSON_PLAIN_BYTES_MAX,
    JSON_VALUES_AT_ONCE_MAX,
    U64_MAX,
)
from bourn.model.record import Headers, Record
from bourn.wire import json_check
from bourn.wire.json import Format

T = TypeVar("T")

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


_Headers = list[tuple[str, str] | _Header]


class _Record(msgspec.Struct, gc=False):
    timestamp: _U64 | UnsetType | None = UNSET
    headers: _Headers | UnsetType | None = UNSET
    body: str | UnsetType | None = UNSET


class _Input(msgspec.Struct, gc=False):
    records: list[_Record]
    match_seq_num: _U64 | UnsetType | None = UNSET
    fencing_token: str | UnsetType | None = UNSET


_DECODER: Final = msgspec.json.Decoder(_Input)
_PLAIN_START: Final = b'{"records":[{"body":"'
_PLAIN_END: Final = b'"}]}'
_PLAIN_BYTES_MIN: Final = len(_PLAIN_START) + len(_PLAIN_END)
_NOT_PLAIN: Final = bytes(range(0x20)) + b'"\\'  # what no JSON string holds as it is


# The same in parts, to be read one by one


class _LargeRecord(msgspec.Struct, gc=False):
    timestamp: _U64 | UnsetType | None = UNSET
    headers: msgspec.Raw = msgspec.Raw(b"null")
    body: str | UnsetType | None = UNSET


class _LargeInput(msgspec.Struct, gc=False):
    records: list[msgspec.Raw]
    match_seq_num: _U64 | UnsetType | None = UNSET
    fencing_token: str | UnsetType | None = UNSET


_LARGE: Final = msgspec.json.Decoder(_LargeInput)
_RECORD: Final = msgspec.json.Decoder(_Record)
_LARGE_RECORD: Final = msgspec.json.Decoder(_LargeRecord)
_HEADERS: Final = msgspec.json.Decoder(_Headers | None)
_AT: Final = re.compile(r"(?: - at `\$(.*)`)?$")
_INDEX: Final = re.compile(r"\[([0-9]+)\]")


# A NamedTuple's own constructor is a Python function; this one is not, and takes half the time.
_new_record: Final = cast(
    "Callable[[tuple[bytes, Headers, int | None]], Record]", partial(tuple.__new__, Record)
)


def decode_append_input(body: bytes, fmt: Format) -> JsonAppendInput:
    """Read an AppendInput: BadJson for the text and its shape, Invalid for base64 that is none.

    A batch of too many records is Invalid before anyone looks at them.
    """
    parsed = _read_quickly(body) if len(body) <= JSON_INLINE_BYTES_MAX else None
    parsed = parsed or _read_exactly(body)
    fencing_token = parsed.fencing_token
    if fencing_token and len(fencing_token.encode()) > FENCING_TOKEN_BYTES_MAX:
        raise BadJson(f"fencing token must not exceed {FENCING_TOKEN_BYTES_MAX} bytes in length")
    return JsonAppendInput(
        _convert(parsed.records, str.encode if fmt is Format.RAW else _decode_base64),
        None if parsed.match_seq_num is UNSET else parsed.match_seq_num,
        None if fencing_token is UNSET else fencing_token,
    )


def plain_body(body: bytes) -> bytes | None:
    """Return the record of the commonest append: small, in ASCII, without escapes; else None."""
    if (
        _PLAIN_BYTES_MIN <= len(body) <= JSON_PLAIN_BYTES_MAX
        and body.startswith(_PLAIN_START)
        and body.endswith(_PLAIN_END)
        and body.isascii()
    ):
        text = body[len(_PLAIN_START) : -len(_PLAIN_END)]
        if len(text.translate(None, _NOT_PLAIN)) == len(text):
            return text
    return None


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
    checked = json_check.check(body)
    if checked.records > BATCH_RECORDS_MAX:
        raise Invalid(f"record batch must not exceed {BATCH_RECORDS_MAX} records")
    try:
        if checked.values <= JSON_VALUES_AT_ONCE_MAX:
            return _DECODER.decode(checked.text)
        parsed = _LARGE.decode(checked.text)
    except msgspec.ValidationError as error:
        raise BadJson(str(error)) from None
    except RecursionError:
        raise BadJson("nested too deep") from None
    records = [_read_record(raw, f".records[{at}]") for at, raw in enumerate(parsed.records)]
    return _Input(records, parsed.match_seq_num, parsed.fencing_token)


def _read_record(raw: msgspec.Raw, path: str) -> _Record:
    if len(raw) <= JSON_PIECE_BYTES:
        return _read_part(_RECORD, raw, path)
    found = _read_part(_LARGE_RECORD, raw, path)
    headers = bytes(found.headers)
    if not headers.startswith(b"["):
        return _Record(
            found.timestamp, _read_part(_HEADERS, headers, f"{path}.headers"), found.body
        )
    read: _Headers = []
    for index, piece in json_check.pieces(headers, JSON_PIECE_BYTES):
        read += _read_part(_HEADERS, piece, f"{path}.headers", index) or ()
    return _Record(found.timestamp, read, found.body)


def _read_part(
    decoder: msgspec.json.Decoder[T], part: msgspec.Raw | bytes, path: str, index: int = 0
) -> T:
    """Read a value that stands at this path; or an array that begins at this index of one."""
    try:
        return decoder.decode(part)
    except msgspec.ValidationError as error:
        message = str(error)
        place = _AT.search(message)
        inside = "" if place is None else place[1] or ""
        inside = _INDEX.sub(lambda found: f"[{int(found[1]) + index}]", inside, count=1)
        what = message if place is None else message[: place.start()]
        raise BadJson(f"{what} - at `${path}{inside}`") from None
    except RecursionError:
        raise BadJson("nested too deep") from None

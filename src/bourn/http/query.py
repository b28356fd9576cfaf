"""Query strings: each parameter once, numbers and booleans exactly, unknown ones ignored."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from bourn.errors import BadName, BadQuery
from bourn.limits import U64_MAX

_U64: Final = re.compile(r"\+?0*([0-9]{1,20})")
_LIST: Final = frozenset({"prefix", "start_after", "limit"})
U32_MAX: Final = 2**32 - 1


class Query:
    """The parameters of one request."""

    def __init__(self, raw: str, known: frozenset[str]) -> None:
        self._values: dict[str, str] = {}
        if not raw:
            return
        for pair in raw.split("&"):
            name, _, value = pair.partition("=")
            name = _decode(name)
            if name not in known:
                continue
            if name in self._values:
                raise _refused(f"duplicate field `{name}`")
            self._values[name] = _decode(value)

    def text(self, name: str) -> str | None:
        """A parameter as it is."""
        return self._values.get(name)

    def u64(self, name: str, most: int = U64_MAX) -> int | None:
        """A parameter as an unsigned number."""
        value = self._values.get(name)
        if value is None:
            return None
        match = _U64.fullmatch(value)
        if match is None or (number := int(match[1])) > most:
            raise _refused(f"{name}: `{value[:40]}` is not a number from 0 to {most}")
        return number

    def flag(self, name: str) -> bool:
        """A parameter that is exactly `true` or `false`; false where it is absent."""
        value = self._values.get(name, "false")
        if value not in {"true", "false"}:
            raise _refused(f"{name}: `{value[:40]}` is neither `true` nor `false`")
        return value == "true"


def _decode(raw: str) -> str:
    if "%" not in raw and "+" not in raw and raw.isascii():
        return raw
    try:
        return unquote_to_bytes(raw.replace("+", " ")).decode()
    except UnicodeError:
        raise _refused("a parameter is not valid UTF-8") from None


def _refused(what: str) -> BadQuery:
    return BadQuery(f"Failed to deserialize query string: {what}")


class ListQuery(NamedTuple):
    """Which part of a listing is wanted."""

    prefix: str
    start_after: str
    limit: int | None


def list_query(raw: str, grammar: Callable[[str], str]) -> ListQuery:
    """Parse the query of a listing of names of this grammar."""
    query = Query(raw, _LIST)
    try:
        return ListQuery(
            grammar(query.text("prefix") or ""),
            grammar(query.text("start_after") or ""),
            query.u64("limit"),
        )
    except BadName as error:
        raise _refused(error.message) from None

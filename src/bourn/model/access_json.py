"""Access tokens as JSON: what a client asks for, and what it is shown.

    IssueAccessToken  {"id", "expires_at"?: time, "auto_prefix_streams"?: bool, "scope": Scope}
    Scope             {"basins"?: Set, "streams"?: Set, "access_tokens"?: Set,
                       "op_groups"?: {"account"?: Half, "basin"?: Half, "stream"?: Half},
                       "ops"?: [operation…]}
    Set               {"exact": name} | {"prefix": text}
    Half              {"read"?: bool, "write"?: bool}

What may be absent may be null. A set that is absent, and `{"exact": ""}`, hold nothing. On the
way out every group and flag is there, and a set that holds nothing is null.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from bourn.errors import BadJson
from bourn.model import names
from bourn.model.access import Match, Op, OpGroups, ReadWrite, ResourceSet, Scope
from bourn.model.instants import format_ns, parse_ns
from bourn.model.resource import decode_json, valid_name


class IssueToken(msgspec.Struct, frozen=True):
    """Make a token of a new id."""

    id: str
    scope: Scope
    auto_prefix: bool = False
    expires_at_ns: int | None = None


class _Set(msgspec.Struct, frozen=True):
    exact: str | None = None
    prefix: str | None = None


class _Half(msgspec.Struct, frozen=True):
    read: bool | None = None
    write: bool | None = None


class _Groups(msgspec.Struct, frozen=True):
    account: _Half | None = None
    basin: _Half | None = None
    stream: _Half | None = None


class _Scope(msgspec.Struct, frozen=True):
    basins: _Set | None = None
    streams: _Set | None = None
    access_tokens: _Set | None = None
    op_groups: _Groups | None = None
    ops: list[Op] | None = None


class _Issue(msgspec.Struct, frozen=True):
    id: str
    scope: _Scope
    expires_at: str | None = None
    auto_prefix_streams: bool | None = None


class ReadWriteShape(msgspec.Struct, frozen=True):
    """The halves of a group, spelled out."""

    read: bool
    write: bool


class ScopeShape(msgspec.Struct, frozen=True):
    """A scope, spelled out."""

    basins: dict[str, str] | None
    streams: dict[str, str] | None
    access_tokens: dict[str, str] | None
    op_groups: dict[str, ReadWriteShape]
    ops: tuple[Op, ...]


class TokenInfo(msgspec.Struct, frozen=True):
    """A token as a list shows it: everything but its secret."""

    id: str
    expires_at: str | None
    auto_prefix_streams: bool
    scope: ScopeShape


_ISSUE: Final = msgspec.json.Decoder(_Issue)


def decode_issue_token(body: bytes) -> IssueToken:
    """Read the body of `POST /access-tokens`."""
    shape = decode_json(_ISSUE, body)
    return IssueToken(
        id=valid_name(names.access_token_id, shape.id),
        scope=_scope(shape.scope),
        auto_prefix=bool(shape.auto_prefix_streams),
        expires_at_ns=None if shape.expires_at is None else parse_ns(shape.expires_at),
    )


def token_info(token: IssueToken) -> TokenInfo:
    """Return what JSON shows of a token."""
    expires_at_ns = token.expires_at_ns
    return TokenInfo(
        id=token.id,
        expires_at=None if expires_at_ns is None else format_ns(expires_at_ns),
        auto_prefix_streams=token.auto_prefix,
        scope=_scope_shape(token.scope),
    )


def _scope(shape: _Scope) -> Scope:
    groups = shape.op_groups or _Groups()
    return Scope(
        basins=_set(shape.basins, "basins", names.basin_name, names.basin_prefix),
        streams=_set(shape.streams, "streams", names.stream_name, names.stream_prefix),
        access_tokens=_set(
            shape.access_tokens, "access_tokens", names.access_token_id, names.access_token_prefix
        ),
        op_groups=OpGroups(_half(groups.account), _half(groups.basin), _half(groups.stream)),
        ops=tuple(dict.fromkeys(shape.ops or ())),
    )


def _set(
    shape: _Set | None, what: str, name: Callable[[str], str], prefix: Callable[[str], str]
) -> ResourceSet:
    if shape is None:
        return ResourceSet()
    if (shape.exact is None) is (shape.prefix is None):
        raise BadJson(f'{what} must be {{"exact": name}} or {{"prefix": text}}')
    if shape.prefix is not None:
        return ResourceSet(Match.PREFIX, valid_name(prefix, shape.prefix))
    if not shape.exact:
        return ResourceSet()
    return ResourceSet(Match.EXACT, valid_name(name, shape.exact))


def _half(shape: _Half | None) -> ReadWrite:
    return ReadWrite() if shape is None else ReadWrite(bool(shape.read), bool(shape.write))


def _scope_shape(scope: Scope) -> ScopeShape:
    groups = scope.op_groups
    return ScopeShape(
        basins=_set_shape(scope.basins),
        streams=_set_shape(scope.streams),
        access_tokens=_set_shape(scope.access_tokens),
        op_groups={
            name: ReadWriteShape(half.read, half.write)
            for name, half in (
                ("account", groups.account),
                ("basin", groups.basin),
                ("stream", groups.stream),
            )
        },
        ops=scope.ops,
    )


def _set_shape(found: ResourceSet) -> dict[str, str] | None:
    if found.match is Match.NONE:
        return None
    return {"exact" if found.match is Match.EXACT else "prefix": found.text}

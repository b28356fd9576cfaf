"""What a token may do: operations, groups of them, and the resources that they touch.

    operation          checked against
    of the account     nothing more
    on a basin         `basins`
    on a stream        `basins` and `streams`
    on a token         `access_tokens`

Lists need their operation alone and show what is in the set. Names in sets are whole names, also
for a token that prefixes its streams by itself: what it issues stays inside its prefix because it
stays inside its set.
"""

import enum
from typing import Final

import msgspec


class Op(enum.StrEnum):
    """Every operation of the API, by the name that scopes and usage series use."""

    LIST_BASINS = "list-basins"
    CREATE_BASIN = "create-basin"
    DELETE_BASIN = "delete-basin"
    RECONFIGURE_BASIN = "reconfigure-basin"
    GET_BASIN_CONFIG = "get-basin-config"
    ISSUE_ACCESS_TOKEN = "issue-access-token"  # noqa: S105  a name, no secret
    REVOKE_ACCESS_TOKEN = "revoke-access-token"  # noqa: S105  a name, no secret
    LIST_ACCESS_TOKENS = "list-access-tokens"
    LIST_LOCATIONS = "list-locations"
    GET_DEFAULT_LOCATION = "get-default-location"
    SET_DEFAULT_LOCATION = "set-default-location"
    ACCOUNT_METRICS = "account-metrics"
    BASIN_METRICS = "basin-metrics"
    STREAM_METRICS = "stream-metrics"
    LIST_STREAMS = "list-streams"
    CREATE_STREAM = "create-stream"
    DELETE_STREAM = "delete-stream"
    GET_STREAM_CONFIG = "get-stream-config"
    RECONFIGURE_STREAM = "reconfigure-stream"
    CHECK_TAIL = "check-tail"
    APPEND = "append"
    READ = "read"
    TRIM = "trim"
    FENCE = "fence"


# What is documented in two groups is granted by either.
GROUP_OPS: Final[dict[tuple[str, str], frozenset[Op]]] = {
    ("account", "read"): frozenset(
        {
            Op.LIST_BASINS,
            Op.LIST_ACCESS_TOKENS,
            Op.ACCOUNT_METRICS,
            Op.LIST_LOCATIONS,
            Op.GET_DEFAULT_LOCATION,
            Op.GET_BASIN_CONFIG,
        }
    ),
    ("account", "write"): frozenset(
        {
            Op.CREATE_BASIN,
            Op.DELETE_BASIN,
            Op.ISSUE_ACCESS_TOKEN,
            Op.REVOKE_ACCESS_TOKEN,
            Op.SET_DEFAULT_LOCATION,
            Op.RECONFIGURE_BASIN,
        }
    ),
    ("basin", "read"): frozenset(
        {Op.GET_BASIN_CONFIG, Op.LIST_STREAMS, Op.BASIN_METRICS, Op.GET_STREAM_CONFIG}
    ),
    ("basin", "write"): frozenset(
        {Op.CREATE_STREAM, Op.DELETE_STREAM, Op.RECONFIGURE_STREAM, Op.RECONFIGURE_BASIN}
    ),
    ("stream", "read"): frozenset(
        {Op.CHECK_TAIL, Op.READ, Op.STREAM_METRICS, Op.GET_STREAM_CONFIG}
    ),
    ("stream", "write"): frozenset({Op.APPEND, Op.TRIM, Op.FENCE}),
}
STREAM_OPS: Final = frozenset(
    {
        Op.STREAM_METRICS,
        Op.CREATE_STREAM,
        Op.DELETE_STREAM,
        Op.GET_STREAM_CONFIG,
        Op.RECONFIGURE_STREAM,
        Op.CHECK_TAIL,
        Op.APPEND,
        Op.READ,
        Op.TRIM,
        Op.FENCE,
    }
)
BASIN_OPS: Final = STREAM_OPS | {
    Op.CREATE_BASIN,
    Op.DELETE_BASIN,
    Op.RECONFIGURE_BASIN,
    Op.GET_BASIN_CONFIG,
    Op.BASIN_METRICS,
    Op.LIST_STREAMS,
}
TOKEN_OPS: Final = frozenset({Op.ISSUE_ACCESS_TOKEN, Op.REVOKE_ACCESS_TOKEN})


class Match(enum.IntEnum):
    """How a set holds names."""

    NONE = 0
    EXACT = 1
    PREFIX = 2


class ResourceSet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """No name, one name, or all names that begin with a text."""

    match: Match = Match.NONE
    text: str = ""

    def has(self, name: str) -> bool:
        """Whether a name is in the set."""
        if self.match is Match.PREFIX:
            return name.startswith(self.text)
        return self.match is Match.EXACT and name == self.text

    def within(self, other: "ResourceSet") -> bool:
        """Whether the other set has every name of this one."""
        if self.match is Match.NONE:
            return True
        if self.match is Match.EXACT:
            return other.has(self.text)
        return other.match is Match.PREFIX and self.text.startswith(other.text)

    def narrowed(self, prefix: str) -> "ResourceSet":
        """The part of the set whose names begin with a prefix."""
        if self.match is Match.EXACT:
            return self if self.text.startswith(prefix) else ResourceSet()
        if self.match is Match.PREFIX:
            if prefix.startswith(self.text):
                return ResourceSet(Match.PREFIX, prefix)
            if self.text.startswith(prefix):
                return self
        return ResourceSet()


ALL: Final = ResourceSet(Match.PREFIX, "")


class ReadWrite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The two halves of a group of operations."""

    read: bool = False
    write: bool = False


class OpGroups(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which groups of operations a scope names."""

    account: ReadWrite = ReadWrite()
    basin: ReadWrite = ReadWrite()
    stream: ReadWrite = ReadWrite()


class Scope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a token is for, as it was asked for."""

    basins: ResourceSet = ResourceSet()
    streams: ResourceSet = ResourceSet()
    access_tokens: ResourceSet = ResourceSet()
    op_groups: OpGroups = OpGroups()
    ops: tuple[Op, ...] = ()

    def effective_ops(self) -> frozenset[Op]:
        """Every operation that the scope names, alone or by its group."""
        return frozenset(self.ops).union(
            *(
                ops
                for (group, half), ops in GROUP_OPS.items()
                if getattr(getattr(self.op_groups, group), half)
            )
        )


_BOTH: Final = ReadWrite(read=True, write=True)
FULL_SCOPE: Final = Scope(ALL, ALL, ALL, OpGroups(_BOTH, _BOTH, _BOTH))


class Grant(msgspec.Struct, frozen=True):
    """What a token may do, worked out once: a scope, and the time it holds until."""

    scope: Scope
    ops: frozenset[Op]
    expires_at_ns: int | None = None  # None: never

    def allows(self, op: Op, basin: str = "", stream: str = "", token_id: str = "") -> bool:
        """Whether the token may do this to the resource; a name that is left out is in no set."""
        scope = self.scope
        return (
            op in self.ops
            and (op not in BASIN_OPS or scope.basins.has(basin))
            and (op not in STREAM_OPS or scope.streams.has(stream))
            and (op not in TOKEN_OPS or scope.access_tokens.has(token_id))
        )

    def within(self, issuer: "Grant") -> bool:
        """Whether nothing is allowed, at any time, that the issuer may not do itself."""
        own, other = self.scope, issuer.scope
        return (
            self.ops <= issuer.ops
            and own.basins.within(other.basins)
            and own.streams.within(other.streams)
            and own.access_tokens.within(other.access_tokens)
            and (
                issuer.expires_at_ns is None
                or (self.expires_at_ns is not None and self.expires_at_ns <= issuer.expires_at_ns)
            )
        )

    def is_over(self, now_ns: int) -> bool:
        """Whether its time has passed."""
        return self.expires_at_ns is not None and self.expires_at_ns <= now_ns


def grant_of(scope: Scope, expires_at_ns: int | None = None) -> Grant:
    """Work out what a scope allows."""
    return Grant(scope, scope.effective_ops(), expires_at_ns)


FULL_GRANT: Final = grant_of(FULL_SCOPE)

"""Access tokens: what becomes of them, and the table of all."""

from heapq import heapify

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.catalog.tokens import (
    ROOT,
    TokenRow,
    TokenTable,
    check_revoke,
    decide_issue,
    decode_tokens,
    digest_of,
    encode_tokens,
    root_row,
)
from bourn.errors import (
    AccessTokenNotFound,
    Invalid,
    PermissionDenied,
    QuotaExhausted,
    ResourceAlreadyExists,
    Undecodable,
)
from bourn.limits import ACCESS_TOKENS_MAX
from bourn.model.access import ALL, FULL_GRANT, Grant, Match, Op, ResourceSet, Scope, grant_of
from bourn.model.access_json import IssueToken
from tests.catalog.samples import token_rows

NOW_MS = 1_700_000_000_000
NOW_NS = NOW_MS * 1_000_000
DIGEST = digest_of(b"secret")
SCOPE = Scope(basins=ALL, streams=ResourceSet(Match.PREFIX, "t/"), ops=(Op.READ,))


def issue(
    request: IssueToken,
    existing: TokenRow | None = None,
    issuer: Grant = FULL_GRANT,
    count: int = 1,
) -> TokenRow:
    return decide_issue(existing, request, issuer=issuer, digest=DIGEST, now_ms=NOW_MS, count=count)


def row(token_id: str, expires_at_ns: int | None = None, secret: bytes = b"") -> TokenRow:
    return TokenRow(
        token_id,
        digest_of(secret or token_id.encode()),
        SCOPE,
        auto_prefix=False,
        created_at_ms=NOW_MS,
        expires_at=None if expires_at_ns is None else divmod(expires_at_ns, 10**9),
    )


# Issue


def test_a_token_is_kept_as_it_was_asked_for() -> None:
    request = IssueToken("t", SCOPE, auto_prefix=True, expires_at_ns=NOW_NS + 1)
    issued = issue(request)
    assert issued.issued() == request
    assert issued.digest == DIGEST
    assert issued.created_at_ms == NOW_MS


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (IssueToken("t", Scope(basins=ALL)), "Access token permissions cannot be empty"),
        (
            IssueToken("t", Scope(ops=(Op.READ,)), auto_prefix=True),
            "Auto prefixing is only allowed for streams with prefix matching",
        ),
        (
            IssueToken(
                "t", Scope(streams=ResourceSet(Match.EXACT, "s"), ops=(Op.READ,)), auto_prefix=True
            ),
            "Auto prefixing is only allowed for streams with prefix matching",
        ),
        (IssueToken("t", SCOPE, expires_at_ns=NOW_NS), "expires_at is in the past"),
        (IssueToken("t", SCOPE, expires_at_ns=-1), "expires_at is in the past"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(request_: IssueToken, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        issue(request_)


@pytest.mark.parametrize(
    "issuer",
    [
        Scope(basins=ALL, streams=ALL, ops=(Op.APPEND,)),
        Scope(basins=ResourceSet(Match.PREFIX, "a"), streams=ALL, ops=(Op.READ,)),
        Scope(basins=ALL, streams=ResourceSet(Match.PREFIX, "t/u"), ops=(Op.READ,)),
        Scope(basins=ALL, streams=ResourceSet(Match.EXACT, "t/"), ops=(Op.READ,)),
    ],
)
def test_nothing_is_issued_that_the_issuer_may_not_do(issuer: Scope) -> None:
    with pytest.raises(PermissionDenied):
        issue(IssueToken("t", SCOPE), issuer=grant_of(issuer))


def test_a_token_ends_with_its_issuer_and_never_later() -> None:
    issuer = grant_of(SCOPE, NOW_NS + 5)
    assert issue(IssueToken("t", SCOPE), issuer=issuer).expires_at_ns == NOW_NS + 5
    earlier = IssueToken("t", SCOPE, expires_at_ns=NOW_NS + 4)
    assert issue(earlier, issuer=issuer).expires_at_ns == NOW_NS + 4
    with pytest.raises(PermissionDenied):
        issue(IssueToken("t", SCOPE, expires_at_ns=NOW_NS + 6), issuer=issuer)


def test_an_id_in_force_is_taken_and_one_that_expired_is_free() -> None:
    with pytest.raises(ResourceAlreadyExists):
        issue(IssueToken("t", SCOPE), row("t"))
    with pytest.raises(ResourceAlreadyExists):
        issue(IssueToken("t", SCOPE), row("t", NOW_NS + 1))
    assert issue(IssueToken("t", SCOPE), row("t", NOW_NS)).digest == DIGEST
    with pytest.raises(ResourceAlreadyExists):
        issue(IssueToken(ROOT, SCOPE))


def test_there_is_an_end_to_how_many_tokens_there_are() -> None:
    issue(IssueToken("t", SCOPE), count=ACCESS_TOKENS_MAX - 1)
    with pytest.raises(QuotaExhausted):
        issue(IssueToken("t", SCOPE), count=ACCESS_TOKENS_MAX)


# Revoke


def test_only_a_token_in_force_is_revoked_and_the_root_token_never() -> None:
    check_revoke(row("t"), "t", NOW_MS)
    check_revoke(row("t", NOW_NS + 1), "t", NOW_MS)
    for gone in (None, row("t", NOW_NS)):
        with pytest.raises(AccessTokenNotFound, match="access token `t` not found"):
            check_revoke(gone, "t", NOW_MS)
    for root in (None, root_row(DIGEST, NOW_MS)):
        with pytest.raises(Invalid, match="cannot be revoked"):
            check_revoke(root, ROOT, NOW_MS)


# The table


@given(st.lists(token_rows, max_size=8))
def test_rows_survive_their_bytes(rows: list[TokenRow]) -> None:
    assert decode_tokens(encode_tokens(rows)) == rows


def test_other_bytes_are_undecodable() -> None:
    good = encode_tokens([row("t")])
    for bad in (b"", good[:-1], good + b"\0", b"\x91\x91\x01"):
        with pytest.raises(Undecodable):
            decode_tokens(bad)


def test_a_token_is_found_by_its_id_and_its_secret_until_it_goes() -> None:
    table = TokenTable([row("a"), row("b")])
    assert table.by_digest(digest_of(b"a")) == table.get("a") == row("a")
    table.put(row("a", secret=b"other"))
    assert table.by_digest(digest_of(b"a")) is None
    assert table.by_digest(digest_of(b"other")) == table.get("a")
    table.drop("a")
    table.drop("a")
    assert table.get("a") is None
    assert table.by_digest(digest_of(b"other")) is None
    assert len(table) == 1


def test_nobody_has_the_secret_of_a_row_without_a_digest() -> None:
    table = TokenTable([root_row(b"", NOW_MS)])
    assert table.by_digest(b"") is None


@given(
    st.lists(st.text("ab", max_size=3, min_size=1), max_size=12),
    st.sets(st.text("ab", max_size=3, min_size=1)),
    st.text("ab", max_size=2),
    st.text("ab", max_size=3),
    st.integers(1, 4),
)
def test_a_page_is_what_sorting_everything_would_give(
    ids: list[str], expired: set[str], prefix: str, start_after: str, limit: int
) -> None:
    table = TokenTable(row(name, NOW_NS if name in expired else None) for name in ids)
    matching = sorted(
        name for name in set(ids) - expired if name.startswith(prefix) and name > start_after
    )
    page, has_more = table.list(prefix, start_after, limit, NOW_NS)
    assert [found.id for found in page] == matching[:limit]
    assert has_more is (len(matching) > limit)


def test_tokens_are_named_for_dropping_once_they_have_expired() -> None:
    table = TokenTable([row("a", 3), row("b", 1), row("c", 2), row("d")])
    table.put(row("b", 9))
    assert [found.id for found in table.take_expired(2, 10)] == ["c"]
    assert [found.id for found in table.take_expired(9, 1)] == ["a"]
    assert [found.id for found in table.take_expired(9, 10)] == ["b"]
    assert table.take_expired(100, 10) == []


def test_what_is_issued_and_revoked_over_and_over_leaves_nothing_behind() -> None:
    table = TokenTable()
    for _ in range(1000):
        table.put(row("t", NOW_NS))
        table.drop("t")
    assert len(table._expiries) < 100
    heap = list(table._expiries)
    heapify(heap)
    assert heap == table._expiries


def test_a_digest_is_of_the_secret_alone_and_long_enough() -> None:
    assert digest_of(b"a") == digest_of(b"a") != digest_of(b"b")
    assert len(digest_of(b"a")) == 32


def test_a_row_holds_no_secret() -> None:
    assert b"secret" not in msgspec.msgpack.encode(row("t", secret=b"secret"))

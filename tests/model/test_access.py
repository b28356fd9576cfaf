"""Scopes: what they allow, when one is within another, and their JSON."""

import json
from contextlib import suppress
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import BadJson
from bourn.model.access import (
    ALL,
    BASIN_OPS,
    FULL_GRANT,
    FULL_SCOPE,
    GROUP_OPS,
    STREAM_OPS,
    TOKEN_OPS,
    Grant,
    Match,
    Op,
    OpGroups,
    ReadWrite,
    ResourceSet,
    Scope,
    grant_of,
)
from bourn.model.access_json import IssueToken, decode_issue_token, token_info
from tests.model.tokens import NAMES, PREFIXES, grants, resource_sets, scopes, tokens

MINIMAL = {"id": "t", "scope": {}}


def decode(document: Any) -> IssueToken:
    return decode_issue_token(json.dumps(document).encode())


# Sets


@given(resource_sets, st.sampled_from(NAMES))
def test_a_set_has_what_it_says(found: ResourceSet, name: str) -> None:
    expected = {
        Match.NONE: False,
        Match.EXACT: name == found.text,
        Match.PREFIX: name.startswith(found.text),
    }
    assert found.has(name) is expected[found.match]


@given(resource_sets, resource_sets)
def test_a_set_within_another_has_no_name_that_the_other_lacks(
    inner: ResourceSet, outer: ResourceSet
) -> None:
    if inner.within(outer):
        assert all(outer.has(name) for name in NAMES if inner.has(name))
    else:
        witnesses = [*NAMES, inner.text, inner.text + "\N{ROCKET}"]
        assert any(inner.has(name) and not outer.has(name) for name in witnesses)


@given(resource_sets, st.sampled_from(PREFIXES), st.sampled_from(NAMES))
def test_a_narrowed_set_has_what_is_in_the_set_and_begins_so(
    found: ResourceSet, prefix: str, name: str
) -> None:
    assert found.narrowed(prefix).has(name) is (found.has(name) and name.startswith(prefix))


# Operations


def test_every_operation_is_in_a_group_and_the_full_scope_has_all() -> None:
    assert frozenset().union(*GROUP_OPS.values()) == set(Op)
    assert FULL_SCOPE.effective_ops() == set(Op)
    assert len(Op) == 24
    for op in Op:
        assert FULL_GRANT.allows(op, "some-basin", "stream", "token")


@pytest.mark.parametrize(
    ("op", "halves"),
    [
        (Op.GET_BASIN_CONFIG, {("account", "read"), ("basin", "read")}),
        (Op.RECONFIGURE_BASIN, {("account", "write"), ("basin", "write")}),
        (Op.GET_STREAM_CONFIG, {("basin", "read"), ("stream", "read")}),
        (Op.APPEND, {("stream", "write")}),
    ],
)
def test_what_is_documented_in_two_groups_is_in_both(op: Op, halves: set[object]) -> None:
    assert {half for half, ops in GROUP_OPS.items() if op in ops} == halves


@given(scopes)
def test_effective_operations_are_those_named_and_those_of_the_groups(scope: Scope) -> None:
    expected = set(scope.ops)
    for (group, half), ops in GROUP_OPS.items():
        if getattr(getattr(scope.op_groups, group), half):
            expected |= ops
    assert scope.effective_ops() == expected


@pytest.mark.parametrize("op", Op)
def test_an_operation_is_checked_against_its_sets_alone(op: Op) -> None:
    def allows(basins: ResourceSet, streams: ResourceSet, tokens: ResourceSet) -> bool:
        scope = Scope(basins, streams, tokens, ops=(op,))
        return grant_of(scope).allows(op, "a-basin-1", "s", "t")

    none = ResourceSet()
    assert allows(ALL, ALL, ALL)
    assert allows(none, ALL, ALL) is (op not in BASIN_OPS)
    assert allows(ALL, none, ALL) is (op not in STREAM_OPS)
    assert allows(ALL, ALL, none) is (op not in TOKEN_OPS)


def test_a_name_that_is_left_out_is_in_no_set_but_that_of_all() -> None:
    exact = ResourceSet(Match.EXACT, "a-basin-1")
    assert not grant_of(Scope(basins=exact, ops=(Op.DELETE_BASIN,))).allows(Op.DELETE_BASIN)


# No escalation


@given(grants, grants, st.integers(0, 2**40))
def test_what_is_within_its_issuer_allows_nothing_more_and_for_no_longer(
    inner: Grant, issuer: Grant, now_ns: int
) -> None:
    if not inner.within(issuer):
        return
    for op, name in product(Op, NAMES):
        if inner.allows(op, name, name, name):
            assert issuer.allows(op, name, name, name)
    if issuer.is_over(now_ns):
        assert inner.is_over(now_ns)


@given(grants)
def test_every_grant_is_within_itself_and_within_the_full_one(grant: Grant) -> None:
    assert grant.within(grant)
    assert grant.within(FULL_GRANT)


@given(grants, grants, grants)
def test_within_is_transitive(first: Grant, second: Grant, third: Grant) -> None:
    if first.within(second) and second.within(third):
        assert first.within(third)


# JSON


@given(tokens)
def test_what_is_shown_is_what_was_asked_for(token: IssueToken) -> None:
    shown = msgspec.json.encode(token_info(token))
    assert decode_issue_token(shown) == token


def test_everything_is_spelled_out_and_empty_sets_are_null() -> None:
    half = {"read": False, "write": False}
    assert json.loads(msgspec.json.encode(token_info(decode(MINIMAL)))) == {
        "id": "t",
        "expires_at": None,
        "auto_prefix_streams": False,
        "scope": {
            "basins": None,
            "streams": None,
            "access_tokens": None,
            "op_groups": {"account": half, "basin": half, "stream": half},
            "ops": [],
        },
    }


def test_sets_groups_and_operations_are_read() -> None:
    scope = {
        "basins": {"exact": "my-basin-1"},
        "streams": {"prefix": ""},
        "access_tokens": {"exact": ""},
        "op_groups": {"stream": {"read": True}, "basin": None, "account": {"write": None}},
        "ops": ["append", "append", "fence"],
    }
    assert decode({"id": "t", "scope": scope, "auto_prefix_streams": True}) == IssueToken(
        "t",
        Scope(
            basins=ResourceSet(Match.EXACT, "my-basin-1"),
            streams=ALL,
            op_groups=OpGroups(stream=ReadWrite(read=True)),
            ops=(Op.APPEND, Op.FENCE),
        ),
        auto_prefix=True,
    )


@pytest.mark.parametrize(
    "document",
    [
        {"id": "t"},
        {"scope": {}},
        {"id": "t", "scope": None},
        {"id": "", "scope": {}},
        {"id": ".", "scope": {}},
        {"id": "a\0", "scope": {}},
        {"id": "x" * 97, "scope": {}},
        {"id": 1, "scope": {}},
        {**MINIMAL, "expires_at": 1_900_000_000},
        {**MINIMAL, "expires_at": "tomorrow"},
        {**MINIMAL, "expires_at": "2030-01-01"},
        {**MINIMAL, "auto_prefix_streams": "yes"},
        {"id": "t", "scope": {"basins": {}}},
        {"id": "t", "scope": {"basins": {"exact": None, "prefix": None}}},
        {"id": "t", "scope": {"basins": {"exact": "my-basin-1", "prefix": "m"}}},
        {"id": "t", "scope": {"basins": {"exact": "short"}}},
        {"id": "t", "scope": {"basins": {"prefix": "-a"}}},
        {"id": "t", "scope": {"basins": {"prefix": "A"}}},
        {"id": "t", "scope": {"basins": "my-basin-1"}},
        {"id": "t", "scope": {"streams": {"exact": ".."}}},
        {"id": "t", "scope": {"streams": {"prefix": "x" * 513}}},
        {"id": "t", "scope": {"access_tokens": {"exact": "x" * 97}}},
        {"id": "t", "scope": {"ops": ["appendd"]}},
        {"id": "t", "scope": {"ops": "append"}},
        {"id": "t", "scope": {"op_groups": {"stream": "rw"}}},
        {"id": "t", "scope": {"op_groups": {"stream": {"read": 1}}}},
    ],
)
def test_a_token_of_the_wrong_shape_is_refused(document: Any) -> None:
    with pytest.raises(BadJson):
        decode(document)


def test_a_member_that_is_there_twice_is_refused() -> None:
    with pytest.raises(BadJson, match="duplicate"):
        decode_issue_token(b'{"id":"t","id":"u","scope":{}}')
    with pytest.raises(BadJson, match="duplicate"):
        decode_issue_token(b'{"id":"t","scope":{"ops":["append"],"ops":["read"]}}')


@pytest.mark.parametrize(
    ("given_as", "shown"),
    [
        ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
        ("2030-01-01T00:00:00.123456789Z", "2030-01-01T00:00:00.123456789Z"),
        ("2030-01-01T01:30:00.5+01:30", "2030-01-01T00:00:00.5Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
    ],
)
def test_the_end_of_a_token_is_kept_to_the_nanosecond(given_as: str, shown: str) -> None:
    assert token_info(decode({**MINIMAL, "expires_at": given_as})).expires_at == shown


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_random_json_is_a_token_or_refused(document: Any) -> None:
    for body in (document, {"id": document, "scope": {}}, {"id": "t", "scope": document}):
        with suppress(BadJson):
            decode(body)
    for member in ("basins", "streams", "access_tokens", "op_groups", "ops"):
        with suppress(BadJson):
            decode({"id": "t", "scope": {member: document}})


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(body: bytes) -> None:
    with suppress(BadJson):
        decode_issue_token(body)


def test_deep_nesting_is_refused_or_ignored_and_harms_nobody() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for body in (deep, b'{"id":"t","scope":' + deep + b"}", b'{"id":"t","scope":{"x":' + deep):
        with pytest.raises(BadJson):
            decode_issue_token(body)

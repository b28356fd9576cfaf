"""Strategies for scopes and tokens: few names, so that sets meet."""

from hypothesis import strategies as st

from bourn.model.access import (
    Grant,
    Match,
    Op,
    OpGroups,
    ReadWrite,
    ResourceSet,
    Scope,
    grant_of,
)
from bourn.model.access_json import IssueToken

NAMES = ["a-basin-1", "a-basin-12", "a-basin-2", "b-basin-1", "b"]
PREFIXES = ["", "a", "a-basin", "a-basin-1", "b", "b-basin-1"]
LAST_NS = 253_402_300_799_999_999_999

resource_sets = st.one_of(
    st.just(ResourceSet()),
    st.builds(ResourceSet, st.just(Match.EXACT), st.sampled_from([n for n in NAMES if len(n) > 7])),
    st.builds(ResourceSet, st.just(Match.PREFIX), st.sampled_from(PREFIXES)),
)
halves = st.builds(ReadWrite, st.booleans(), st.booleans())
scopes = st.builds(
    Scope,
    basins=resource_sets,
    streams=resource_sets,
    access_tokens=resource_sets,
    op_groups=st.builds(OpGroups, halves, halves, halves),
    ops=st.lists(st.sampled_from(Op), unique=True, max_size=5).map(tuple),
)
expiries = st.none() | st.integers(-(2**60), LAST_NS) | st.integers(0, 3)
grants: st.SearchStrategy[Grant] = st.builds(grant_of, scopes, expiries)
token_ids = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=24
).filter(lambda text: text not in {".", ".."})
tokens = st.builds(IssueToken, token_ids, scopes, st.booleans(), expiries)

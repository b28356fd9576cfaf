"""Texts of appends in JSON, right or nearly so, for those who read them."""

import json
from typing import Any, NamedTuple

from hypothesis import strategies as st

from bourn.limits import U64_MAX


class Member(NamedTuple):
    """A JSON object by its members, so that a key can be given twice."""

    members: list[tuple[str, Any]]


def spell(value: Any, draw: Any) -> str:
    """Write JSON with escapes and blanks wherever the text allows them."""
    blank: str = draw(st.sampled_from(["", "", " ", "\n\t"]))
    if isinstance(value, Member):
        items = [f"{spell(key, draw)}:{spell(item, draw)}" for key, item in value.members]
        return blank + "{" + ",".join(items) + "}" + blank
    if isinstance(value, list | tuple):
        return blank + "[" + ",".join(spell(item, draw) for item in value) + "]" + blank
    if isinstance(value, str):
        if draw(st.booleans()):
            return blank + json.dumps(value, ensure_ascii=draw(st.booleans())) + blank
        units = value.encode("utf-16-be")
        escapes = [f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)]
        return blank + '"' + "".join(escapes) + '"' + blank
    return blank + json.dumps(value) + blank


def repeats_a_key(value: Any) -> bool:
    if isinstance(value, Member):
        keys = [key for key, _ in value.members]
        return len(set(keys)) < len(keys) or any(repeats_a_key(item) for _, item in value.members)
    return isinstance(value, list | tuple) and any(map(repeats_a_key, value))


strings = st.text(st.sampled_from('ab:"\\{}é😀\n-0'), max_size=6)
numbers = st.sampled_from([0, 1, 2**53 + 1, U64_MAX])
junk = st.recursive(
    st.none()
    | st.booleans()
    | strings
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.builds(Member, st.lists(st.tuples(strings, inner), max_size=3))
    ),
    max_leaves=5,
)
header = st.tuples(strings, strings) | st.builds(
    lambda name, value: Member([("name", name), ("value", value)]), strings, strings
)
record_member = st.one_of(
    st.tuples(st.just("body"), st.none() | strings),
    st.tuples(st.just("timestamp"), st.none() | numbers),
    st.tuples(st.just("headers"), st.none() | st.lists(header, max_size=2)),
    st.tuples(strings, junk),
)
input_member = st.one_of(
    st.tuples(st.just("match_seq_num"), st.none() | numbers),
    st.tuples(st.just("fencing_token"), st.none() | strings),
    st.tuples(strings, junk),
)
record = st.builds(Member, st.lists(record_member, max_size=3))
inputs = st.builds(
    lambda items, members, at: Member([*members[:at], ("records", items), *members[at:]]),
    st.lists(record, max_size=3),
    st.lists(input_member, max_size=3),
    st.integers(0, 3),
)

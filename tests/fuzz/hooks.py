"""How requests are made: names whose length counts in bytes, and half of them names that exist."""

import random
from typing import Any
from urllib.parse import quote

import schemathesis
from hypothesis import strategies as st
from schemathesis.generation.meta import TestPhase

from tests.fuzz.seeded import BASINS, STREAMS

WAIT_SECS_MAX = 1
LOCATION = "local"
STARTS = ("seq_num", "timestamp", "tail_offset")  # a read has one


def texts(bytes_min: int, bytes_max: int) -> st.SearchStrategy[str]:
    characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    return st.text(characters, min_size=bytes_min, max_size=bytes_max).filter(
        lambda value: bytes_min <= len(value.encode()) <= bytes_max and value not in {".", ".."}
    )


for bytes_max in (36, 64, 96, 512):
    schemathesis.openapi.format(f"utf8-text-{bytes_max}", texts(0, min(bytes_max, 64)))
    schemathesis.openapi.format(f"utf8-name-{bytes_max}", texts(1, min(bytes_max, 64)))


def whole(value: Any) -> Any:
    """Write 5.0 as 5: to JSON Schema both are integers, to the API only the second is."""
    if isinstance(value, dict):
        return {name: whole(member) for name, member in value.items()}
    if isinstance(value, list):
        return [whole(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def likely(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Let a valid body be one that also means something here."""
    if body.get("location") is not None:
        body["location"] = LOCATION
    if path == "/access-tokens":
        body |= {"expires_at": None, "auto_prefix_streams": False}
        body["scope"]["ops"] = ["read", "append"]
    return body


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Send valid requests to what exists, half of the time, and never wait long."""
    query = case.query or {}
    if str(query.get("wait", "")).isdigit():
        query["wait"] = min(int(query["wait"]), WAIT_SECS_MAX)
    if case.meta is None or case.meta.generation.mode is not schemathesis.GenerationMode.POSITIVE:
        return
    if isinstance(case.body, dict | list):
        case.body = whole(case.body)
    chosen = random.Random(repr((case.path_parameters, case.query, case.body)))
    for start in chosen.sample(STARTS, k=2):
        query.pop(start, None)
    if (
        case.meta.phase.name is not TestPhase.STATEFUL
        and case.method != "DELETE"
        and chosen.random() < 0.5
    ):
        aim(case, chosen)


def aim(case: Any, chosen: random.Random) -> None:
    """Point a request at what exists."""
    if case.path == "/locations/default":
        case.body = LOCATION
    elif isinstance(case.body, dict):
        case.body = likely(case.path, case.body)
    if "s2-basin" in (case.headers or {}):
        case.headers["s2-basin"] = chosen.choice(BASINS)
    for name, known in (("basin", BASINS), ("stream", STREAMS)):
        if name in (case.path_parameters or {}):
            case.path_parameters[name] = quote(chosen.choice(known), safe="")

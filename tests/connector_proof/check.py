"""What must be true of the output, given the input. Nothing here reads or writes."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

OUT_STREAMS = 3


class Item(NamedTuple):
    """A record of the input: where it stands, and what it says."""

    stream: str
    seq_num: int
    body: bytes


def key_of(body: bytes) -> str:
    """An input body is `key payload`."""
    return body.partition(b" ")[0].decode()


def out_stream(key: str) -> str:
    return f"out/{int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) % OUT_STREAMS}"


def out_body(item: Item) -> bytes:
    """What the query makes of a record; it names where it came from."""
    return b"%s %d %s" % (item.stream.encode(), item.seq_num, item.body.upper())


def violations(
    inputs: Sequence[Item], outputs: Mapping[str, Sequence[bytes]], shown: int = 5
) -> list[str]:
    """Compare what is there with what must be: count, content and order of each key."""
    found: list[str] = []
    wanted: dict[str, dict[str, list[bytes]]] = {}
    for item in inputs:
        key = key_of(item.body)
        wanted.setdefault(out_stream(key), {}).setdefault(key, []).append(out_body(item))
    for stream in sorted(set(wanted) | set(outputs)):
        there = outputs.get(stream, ())
        due = [body for bodies in wanted.get(stream, {}).values() for body in bodies]
        have, want = Counter(there), Counter(due)
        if have != want:
            lost, extra = list((want - have).elements()), list((have - want).elements())
            found += [f"{stream}: lost {body!r}" for body in lost[:shown]]
            found += [f"{stream}: too often or foreign {body!r}" for body in extra[:shown]]
            found.append(f"{stream}: {len(lost)} lost, {len(extra)} too many, of {len(due)}")
            continue
        by_key: dict[str, list[bytes]] = {}
        for body in there:
            by_key.setdefault(key_of(body.split(b" ", 2)[2]).lower(), []).append(body)
        found += [
            f"{stream}: the records of key {key} are out of order"
            for key, bodies in by_key.items()
            if bodies != wanted[stream][key]
        ]
        if not found and digest(there) != digest(_in_order(there, wanted[stream])):
            found.append(f"{stream}: its content has another hash")
    return found


def _in_order(there: Sequence[bytes], wanted: Mapping[str, list[bytes]]) -> list[bytes]:
    """The wanted records, the keys interleaved as they are there."""
    rests = {key: iter(bodies) for key, bodies in wanted.items()}
    return [next(rests[key_of(body.split(b" ", 2)[2]).lower()]) for body in there]


def digest(bodies: Sequence[bytes]) -> str:
    hasher = hashlib.sha256()
    for body in bodies:
        hasher.update(len(body).to_bytes(8, "big") + body)
    return hasher.hexdigest()

"""The proof of the connector can fail: what it checks is checked here; `make` runs it."""

import random

import pytest

from tests.connector_proof.check import Item, key_of, out_body, out_stream, violations

ITEMS = [
    Item(f"in/{key % 2}", number, b"key%d %d" % (key, number))
    for number, key in enumerate(random.Random(1).choices(range(6), k=200))
]


def outputs() -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for item in ITEMS:
        found.setdefault(out_stream(key_of(item.body)), []).append(out_body(item))
    return found


def test_what_is_right_is_found_right_however_keys_interleave():
    right = outputs()
    assert violations(ITEMS, right) == []
    for stream, bodies in right.items():
        right[stream] = sorted(bodies, key=lambda body: key_of(body.split(b" ", 2)[2]))
    assert violations(ITEMS, right) == []


@pytest.mark.parametrize("wrong", ["lost", "twice", "altered", "foreign", "swapped", "elsewhere"])
def test_what_is_wrong_is_found(wrong):
    broken = outputs()
    stream = max(broken, key=lambda name: len(broken[name]))
    bodies = broken[stream]
    key = key_of(bodies[0].split(b" ", 2)[2])
    same = [at for at, body in enumerate(bodies) if key_of(body.split(b" ", 2)[2]) == key]
    match wrong:
        case "lost":
            bodies.pop(7)
        case "twice":
            bodies.insert(7, bodies[7])
        case "altered":
            bodies[7] += b"!"
        case "foreign":
            bodies.append(b"in/0 99999 KEY0 1")
        case "swapped":
            bodies[same[0]], bodies[same[1]] = bodies[same[1]], bodies[same[0]]
        case "elsewhere":
            broken.setdefault("out/9", []).append(bodies.pop())
    assert violations(ITEMS, broken)

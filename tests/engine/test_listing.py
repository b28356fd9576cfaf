"""Lists: byte order, exact pages, over streams in use and at rest alike."""

from random import Random

import pytest

from bourn.bucket.port import Bucket
from bourn.engine.node import Node
from bourn.model.resource import CreateBasin, CreateStream
from tests.engine.harness import Storage, append_each, eventually
from tests.support import BASIN, node_on

ALPHABET = ["a", "b", "/", "~", "é", "z", "\U0001f600", "\uffff", "B", " "]


def some_names(rng: Random, count: int) -> list[str]:
    found: set[str] = set()
    while len(found) < count:
        found.add("".join(rng.choices(ALPHABET, k=rng.randint(1, 4))))
    return sorted(found, key=str.encode)


def page_of(names: set[str], prefix: str, after: str, limit: int) -> tuple[list[str], bool]:
    matching = sorted(
        (n for n in names if n.startswith(prefix) and n.encode() > after.encode()), key=str.encode
    )
    return matching[:limit], len(matching) > limit


async def check_pages(node: Node, names: set[str], rng: Random) -> None:
    for _ in range(40):
        prefix = "".join(rng.choices(ALPHABET, k=rng.randint(0, 2)))
        after = "".join(rng.choices(ALPHABET, k=rng.randint(0, 3)))
        limit = rng.randint(1, 8)
        page = await node.list_streams(BASIN, prefix, after, limit)
        assert ([row.name for row in page.rows], page.has_more) == page_of(
            names, prefix, after, limit
        )


@pytest.mark.parametrize("seed", range(3))
def test_streams_in_use_and_at_rest_are_listed_as_one(storage: Storage, seed: int) -> None:
    async def scenario(bucket: Bucket) -> None:
        rng = Random(seed)
        names = some_names(rng, 60)
        rng.shuffle(names)
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN))
            for name in names[:30]:
                await node.create_stream(BASIN, CreateStream(name))
            there = set(names[:30])
            await check_pages(node, there, rng)
        async with node_on(bucket) as node:
            assert node.term.state.streams.hot() == []
            await check_pages(node, there, rng)
            for name in names[30:]:
                await node.create_stream(BASIN, CreateStream(name))
                there.add(name)
            for name in rng.sample(names, 15):
                await append_each(node, "x", stream=name)
            await check_pages(node, there, rng)
            for name in rng.sample(names, 20):
                await node.delete_stream(BASIN, name)
                there.discard(name)
            await eventually(lambda: node.housekeeping.purged == 20)
            await check_pages(node, there, rng)
            await node.housekeeping.snapshots.take()
            await check_pages(node, there, rng)
        async with node_on(bucket) as node:
            await check_pages(node, there, rng)

    storage.run(scenario)


def test_has_more_is_exact_and_paging_visits_everything_once(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN))
            for i in range(9):
                await node.create_stream(BASIN, CreateStream(f"s{i}"))
            full = await node.list_streams(BASIN, limit=9)
            assert (len(full.rows), full.has_more) == (9, False)
            short = await node.list_streams(BASIN, limit=8)
            assert (len(short.rows), short.has_more) == (8, True)
            beyond = await node.list_streams(BASIN, prefix="s", start_after="t")
            assert (beyond.rows, beyond.has_more) == ([], False)
            early = await node.list_streams(BASIN, prefix="s", start_after="a", limit=1)
            assert [row.name for row in early.rows] == ["s0"]
            seen: list[str] = []
            has_more = True
            while has_more:
                page = await node.list_streams(BASIN, "", seen[-1] if seen else "", 4)
                seen += [row.name for row in page.rows]
                has_more = page.has_more
            assert seen == [f"s{i}" for i in range(9)]

    storage.run(scenario)


def test_basins_are_listed_in_pages_and_survive_a_restart(storage: Storage) -> None:
    names = ["alpha-one", "alpha-two", "beta-one", "zeta-nine"]

    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            for name in reversed(names):
                await node.create_basin(CreateBasin(name))
        async with node_on(bucket) as node:
            for prefix, after, limit in (("", "", 4), ("", "", 3), ("alpha", "", 9), ("", "b", 1)):
                page = await node.list_basins(prefix, after, limit)
                found = ([row.name for row in page.rows], page.has_more)
                assert found == page_of(set(names), prefix, after, limit)

    storage.run(scenario)


def test_a_page_holds_a_thousand_unless_fewer_are_asked_for(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN))
            for i in range(1001):
                await node.ensure_stream(BASIN, f"{i:04}")
            for limit in (None, 0, 5000):
                page = await node.list_streams(BASIN, limit=limit)
                assert (len(page.rows), page.has_more) == (1000, True)
            page = await node.list_streams(BASIN, start_after="0999")
            assert ([row.name for row in page.rows], page.has_more) == (["1000"], False)

    memory.run(scenario)

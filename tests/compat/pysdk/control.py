"""Basins, streams and locations."""

from s2_sdk import (
    BasinConfig,
    EnsureStatus,
    S2ServerError,
    SeqNum,
    StreamConfig,
    Timestamping,
    TimestampingMode,
)

from tests.compat.pysdk.world import World, batch, bodies_of, eventually, fails, refused

DAY_SECS = 86400
KEY = bytes(range(32))


async def basins_are_created_listed_changed_and_deleted(world: World) -> None:
    name = world.name()
    config = BasinConfig(
        default_stream_config=StreamConfig(retention_policy=DAY_SECS), create_stream_on_append=True
    )
    made = await world.s2.create_basin(name, config=config)
    assert (made.name, made.deleted_at) == (name, None)
    await refused(world.s2.create_basin(name), 409, "resource_already_exists")
    listed = [info async for info in world.s2.list_all_basins(prefix=name)]
    assert listed == [made]
    found = await world.s2.get_basin_config(name)
    assert found.default_stream_config is not None
    assert found.default_stream_config.retention_policy == DAY_SECS
    assert (found.create_stream_on_append, found.create_stream_on_read) == (True, False)
    changed = await world.s2.reconfigure_basin(name, config=BasinConfig(create_stream_on_read=True))
    assert (changed.create_stream_on_append, changed.create_stream_on_read) == (True, True)
    assert changed == await world.s2.get_basin_config(name)
    assert world.s2.basin(name).name == world.s2[name].name == name
    await world.s2.delete_basin(name)

    async def is_gone() -> bool:
        return not [
            info async for info in world.s2.list_all_basins(prefix=name, include_deleted=True)
        ]

    await eventually(is_gone)
    await refused(world.s2.delete_basin(name), 404, "basin_not_found")
    await world.s2.delete_basin(name, ignore_not_found=True)
    again = await world.s2.create_basin(name)
    assert again.created_at > made.created_at


async def streams_are_created_listed_changed_and_deleted(world: World) -> None:
    basin = await world.basin()
    name = "a stream/with?odd#name/\u2603 %2F"
    timestamping = Timestamping(mode=TimestampingMode.ARRIVAL, uncapped=True)
    config = StreamConfig(
        storage_class="standard",
        retention_policy="infinite",
        timestamping=timestamping,
        delete_on_empty_min_age=DAY_SECS,
    )
    made = await basin.create_stream(name, config=config)
    assert (made.name, made.deleted_at, made.cipher) == (name, None, None)
    await refused(basin.create_stream(name), 409, "resource_already_exists")
    assert [info async for info in basin.list_all_streams()] == [made]
    assert await basin.get_stream_config(name) == config
    changed = await basin.reconfigure_stream(name, config=StreamConfig(retention_policy=DAY_SECS))
    config.retention_policy = DAY_SECS
    assert changed == config
    assert await basin.get_stream_config(name) == config
    stream = basin.stream(name)
    assert stream.name == basin[name].name == name
    await stream.append(batch(b"old"))
    await basin.delete_stream(name)

    async def is_gone() -> bool:
        return not [info async for info in basin.list_all_streams(include_deleted=True)]

    await eventually(is_gone)
    await refused(basin.get_stream_config(name), 404, "stream_not_found")
    await refused(basin.delete_stream(name), 404, "stream_not_found")
    await basin.delete_stream(name, ignore_not_found=True)
    await basin.create_stream(name)
    assert (await stream.check_tail()).seq_num == 0
    resolved = await basin.get_stream_config(name)
    assert (resolved.storage_class, resolved.retention_policy) == ("express", 7 * DAY_SECS)


async def listings_come_in_pages_and_in_byte_order(world: World) -> None:
    basin = await world.basin()
    names = ["B", "a", "a/1", "a/2", "b", "\u00e4", "\u2603", "\U0001f600"]
    for name in reversed(names):
        await basin.create_stream(name)
    found: list[str] = []
    while True:
        page = await basin.list_streams(limit=3, start_after=found[-1] if found else "")
        found += [info.name for info in page.items]
        assert page.has_more == (len(found) < len(names))
        if not page.has_more:
            break
    assert found == names
    assert [info.name async for info in basin.list_all_streams(prefix="a/")] == ["a/1", "a/2"]
    after = [info.name async for info in basin.list_all_streams(prefix="a", start_after="a/1")]
    assert after == ["a/2"]
    prefix = world.name()
    for number in range(5):
        await world.s2.create_basin(f"{prefix}-{number}")
    first = await world.s2.list_basins(prefix=prefix, limit=4)
    assert ([info.name for info in first.items], first.has_more) == (
        [f"{prefix}-{number}" for number in range(4)],
        True,
    )
    rest = await world.s2.list_basins(prefix=prefix, limit=4, start_after=first.items[-1].name)
    assert ([info.name for info in rest.items], rest.has_more) == ([f"{prefix}-4"], False)


async def ensuring_says_whether_it_created_updated_or_left_alone(world: World) -> None:
    name = world.name()
    config = BasinConfig(create_stream_on_append=True)
    outcomes = [
        (await world.s2.ensure_basin(name, config=given)).status
        for given in (config, config, BasinConfig(create_stream_on_read=True))
    ]
    expected = [
        EnsureStatus.CREATED,
        EnsureStatus.CONFIG_UNCHANGED,
        EnsureStatus.CONFIG_UPDATED,
    ]
    assert outcomes == expected
    found = await world.s2.get_basin_config(name)
    assert (found.create_stream_on_append, found.create_stream_on_read) == (False, True)
    basin = world.s2.basin(name)
    day, hour = StreamConfig(retention_policy=DAY_SECS), StreamConfig(retention_policy=3600)
    ensured = [await basin.ensure_stream("stream", config=given) for given in (day, day, hour)]
    assert [one.status for one in ensured] == expected
    assert {one.stream.created_at for one in ensured} == {ensured[0].stream.created_at}
    assert (await basin.get_stream_config("stream")).retention_policy == 3600


async def locations_are_listed_and_set(world: World) -> None:
    default = await world.s2.get_default_location()
    assert [location.name for location in await world.s2.list_locations()] == [default.name]
    assert await world.s2.set_default_location(default.name) == default
    await refused(world.s2.set_default_location("moon:base-1"), 422, "invalid")
    made = await world.s2.create_basin(world.name(), location=default.name)
    assert made.location == default.name
    await refused(world.s2.create_basin(world.name(), location="moon:base-1"), 422, "invalid")


async def what_is_wrong_is_refused_with_its_own_code(world: World) -> None:
    nowhere = world.s2.basin("no-such-basin")
    await refused(world.s2.get_basin_config("no-such-basin"), 404, "basin_not_found")
    await refused(nowhere.create_stream("stream"), 404, "basin_not_found")
    await refused(nowhere.list_streams(), 404, "basin_not_found")
    await refused(nowhere.stream("stream").append(batch(b"")), 404, "basin_not_found")
    basin = await world.basin()
    missing = basin.stream("missing")
    await refused(missing.check_tail(), 404, "stream_not_found")
    await refused(missing.append(batch(b"")), 404, "stream_not_found")
    await refused(missing.read(start=SeqNum(0)), 404, "stream_not_found")
    with fails(S2ServerError) as failure:
        async for _ in missing.read_session(start=SeqNum(0)):
            raise AssertionError("read from nothing")
    assert (failure.error.status_code, failure.error.code) == (404, "stream_not_found")
    config = StreamConfig(retention_policy=0)
    await refused(basin.create_stream("stream", config=config), 422, "invalid")
    assert not [info async for info in basin.list_all_streams()]


async def streams_appear_on_append_and_on_read(world: World) -> None:
    basin = await world.basin(
        config=BasinConfig(create_stream_on_append=True, create_stream_on_read=True)
    )
    config = StreamConfig(retention_policy=DAY_SECS)
    given = batch(b"first")
    given.stream_config = config
    await basin.stream("unary").append(given)
    async with basin.stream("session").append_session(stream_config=config) as session:
        await (await session.submit(batch(b"first")))
    async with basin.stream("producer").producer(stream_config=config) as producer:
        await (await producer.submit(batch(b"first").records[0]))
    read = await basin.stream("read").read(start=SeqNum(0), wait=1, stream_config=config)
    assert read.records == []
    following = basin.stream("read-session").read_session(
        start=SeqNum(0), wait=0, stream_config=config
    )
    assert [found async for found in following] == []
    assert (await basin.stream("tail").check_tail()).seq_num == 0
    names = [info.name async for info in basin.list_all_streams()]
    assert names == ["producer", "read", "read-session", "session", "tail", "unary"]
    for name in names:
        retention = (await basin.get_stream_config(name)).retention_policy
        assert retention == (7 * DAY_SECS if name == "tail" else DAY_SECS), name


async def a_key_without_a_cipher_changes_nothing(world: World) -> None:
    basin = await world.basin()
    made = await basin.create_stream("plain")
    assert made.cipher is None
    await basin.stream("plain", encryption_key=KEY).append(batch(b"seen"))
    found = await basin.stream("plain").read(start=SeqNum(0))
    assert bodies_of(found.records) == [b"seen"]

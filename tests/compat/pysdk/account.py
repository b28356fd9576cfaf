"""Access tokens and usage metrics."""

from s2_sdk import (
    AccessTokenScope,
    AccountMetricSet,
    BasinMetricSet,
    Operation,
    OperationGroupPermissions,
    Permission,
    PrefixMatch,
    StreamMetricSet,
    TimeseriesInterval,
)

from tests.compat.pysdk.world import World, batch, refused

HOUR_SECS = 3600


async def access_tokens_are_issued_listed_and_revoked(world: World) -> None:
    name = world.name()
    scope = AccessTokenScope(
        basins=PrefixMatch(""),
        streams=PrefixMatch("p/"),
        op_groups=OperationGroupPermissions(stream=Permission.READ),
        ops=[Operation.APPEND],
    )
    token = await world.s2.issue_access_token(name, scope=scope, auto_prefix_streams=True)
    assert token
    await refused(world.s2.issue_access_token(name, scope=scope), 409, "resource_already_exists")
    page = await world.s2.list_access_tokens(prefix=name, limit=1)
    listed = [info async for info in world.s2.list_all_access_tokens(prefix=name)]
    assert page.items == listed
    assert [(info.id, info.auto_prefix_streams) for info in listed] == [(name, True)]
    assert listed[0].scope.streams == PrefixMatch("p/")
    assert listed[0].scope.ops == [Operation.APPEND]
    await world.s2.revoke_access_token(name)
    await refused(world.s2.revoke_access_token(name), 404, "access_token_not_found")


async def usage_is_measured(world: World) -> None:
    basin = await world.basin()
    await basin.create_stream("stream")
    ack = await basin.stream("stream").append(batch(b"measured"))
    now = ack.end.timestamp // 1000
    span = {"start": now - HOUR_SECS, "end": now}
    for account_set in AccountMetricSet:
        await world.s2.account_metrics(set=account_set, **span)
    for basin_set in BasinMetricSet:
        await world.s2.basin_metrics(basin.name, set=basin_set, **span)
    await world.s2.basin_metrics(
        basin.name, set=BasinMetricSet.APPEND_OPS, interval=TimeseriesInterval.MINUTE, **span
    )
    await world.s2.stream_metrics(basin.name, "stream", set=StreamMetricSet.STORAGE, **span)
    await refused(
        world.s2.account_metrics(set=AccountMetricSet.ACCOUNT_OPS, start=now, end=now - 1),
        422,
        "invalid",
    )

"""Versions of the usage table: made once, create-only, by whoever comes first.

A change says up to which minutes the table must stand when its version is made. Of two that write
the same periods one comes first, and the other finds the table further than it thought.
"""

import logging
import random
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from bourn.bucket.delta_log import NO_TABLE, read_table
from bourn.bucket.port import Bucket
from bourn.bucket.retry import Backoff, Retry
from bourn.clock import Clock
from bourn.errors import BucketUnavailable, ObjectExists
from bourn.layout.history.delta import (
    COMMIT_ID,
    VACUUM_APP_ID,
    Actions,
    Add,
    Remove,
    TableState,
    Txn,
    delta_key,
    encode_actions,
)
from bourn.layout.usage_table import (
    BASINS_APP_ID,
    STREAMS_APP_ID,
    USAGE_PREFIX,
    closed_minutes,
    first_actions,
)
from bourn.pipeline.table import ENGINE, Superseded

log = logging.getLogger(__name__)

ATTEMPTS_UNSURE_MAX: Final = 20


class UsageChange(NamedTuple):
    """What a version shall do, on top of a table that stands where `before` says."""

    operation: str
    before: tuple[int, int]  # minutes of basins and of streams
    after: tuple[int, int]
    fence: int
    adds: Sequence[Add] = ()
    removes: Sequence[Remove] = ()
    new_fence: int | None = None

    def fault(self, state: TableState) -> str:
        """Say why it cannot be made on top of a version; nothing where it can."""
        if closed_minutes(state) != self.before:
            return f"the usage table has come from {self.before} to {closed_minutes(state)}"
        if state.fence != self.fence:
            return "what no version named was vacuumed meanwhile"
        gone = [remove.path for remove in self.removes if remove.path not in state.live]
        return f"{gone[0]} is in the table no more" if gone else ""


class UsageLog:
    """The usage table in one bucket, as last read."""

    def __init__(self, bucket: Bucket, clock: Clock, rng: random.Random, retry: Retry) -> None:
        self._bucket = bucket
        self._clock = clock
        self._rng = rng
        self._retry = retry
        self.state: TableState = NO_TABLE

    async def refresh(self) -> TableState:
        """Read what has come since."""
        self.state = await self._retry(
            partial(read_table, self._bucket, self.state, is_sure=True, table=USAGE_PREFIX)
        )
        return self.state

    async def create(self) -> TableState:
        """Make the first version where there is none."""
        if (await self.refresh()).version < 0:
            table_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
            protocol, metadata = first_actions(table_id, self._clock.now_ms())
            info = self._info("CREATE TABLE")
            actions = Actions(protocol=protocol, metadata=metadata, info=info)
            await self._put(0, encode_actions(actions))
            await self.refresh()
        return self.state

    async def commit(self, change: UsageChange) -> TableState:
        """Make the change a version of the table; Superseded where its ground has gone.

        Whatever happens in between, it becomes one version or none.
        """
        data = encode_actions(self._actions(change))
        while True:
            fault = change.fault(self.state)
            if fault:
                raise Superseded(fault)
            is_ours = await self._put(self.state.version + 1, data)
            await self.refresh()
            if is_ours:
                return self.state

    def _actions(self, change: UsageChange) -> Actions:
        now_ms = self._clock.now_ms()
        txns = [
            Txn(app_id=app_id, version=minute, last_updated=now_ms)
            for app_id, minute, before in zip(
                (BASINS_APP_ID, STREAMS_APP_ID), change.after, change.before, strict=True
            )
            if minute != before
        ]
        if change.new_fence is not None:
            txns.append(Txn(app_id=VACUUM_APP_ID, version=change.new_fence, last_updated=now_ms))
        return Actions(
            adds=tuple(change.adds),
            removes=tuple(change.removes),
            txns=tuple(txns),
            info=self._info(change.operation),
        )

    def _info(self, operation: str) -> dict[str, Any]:
        return {
            "timestamp": self._clock.now_ms(),
            "operation": operation,
            "operationParameters": {},
            "engineInfo": ENGINE,
            COMMIT_ID: f"{self._rng.getrandbits(128):032x}",
        }

    async def _put(self, version: int, data: bytes) -> bool:
        """Create a version; False where it is somebody else's. `data` is like no other's."""
        key = delta_key(version, USAGE_PREFIX)
        backoff = Backoff(self._clock, self._rng)
        for attempt in range(ATTEMPTS_UNSURE_MAX):
            try:
                await self._bucket.put_if_absent(key, data)
            except ObjectExists:
                return await self._retry(partial(self._bucket.get, key)) == data
            except BucketUnavailable:
                if attempt + 1 == ATTEMPTS_UNSURE_MAX:
                    raise
                await backoff.pause()
            else:
                return True
        raise AssertionError

"""Versions of a table: made once, create-only, by whoever comes first.

A change names what must still be so when its version is made. Whoever loses the race for a number
reads what won, looks whether that still holds, and takes the next number, or gives up.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from bourn.bucket.delta_log import NO_TABLE, read_table
from bourn.bucket.port import Bucket
from bourn.bucket.retry import Backoff, Retry
from bourn.clock import Clock
from bourn.errors import BucketError, BucketUnavailable, ObjectExists
from bourn.layout.history.delta import (
    COMMIT_ID,
    HISTORY_PREFIX,
    INDEX_PREFIX,
    VACUUM_APP_ID,
    WAL_APP_ID,
    Actions,
    Add,
    MetaData,
    Remove,
    TableState,
    Txn,
    delta_key,
    encode_actions,
)
from bourn.layout.history.delta import Protocol as TableProtocol
from bourn.layout.history.facts import SegmentFacts, first_actions, mended
from bourn.pipeline.place import Place

log = logging.getLogger(__name__)

ATTEMPTS_UNSURE_MAX: Final = 20
ENGINE: Final = "bourn"


class Superseded(Exception):
    """What the change was made for no longer holds: somebody else did it, or undid its ground."""


class Change(Protocol):
    """What a version shall do, and what must be so for it."""

    @property
    def operation(self) -> str:
        """What it is called."""
        ...

    @property
    def adds(self) -> Sequence[Add]:
        """The files that come."""
        ...

    @property
    def removes(self) -> Sequence[Remove]:
        """The files that go; all must be live."""
        ...

    def fault(self, state: TableState) -> str:
        """Say why it cannot be made on top of a version; nothing where it can."""
        ...

    def moves(self) -> Mapping[str, int]:
        """Return how far applications have come behind it, those that it takes further."""
        ...


def fault_in(state: TableState, removes: Sequence[Remove], fence: int | None) -> str:
    """Say what of every change's ground has gone; nothing where it stands.

    `fence` is that of the table before the first of the change's files was written.
    """
    if fence is not None and state.fence != fence:
        return "what no version named was vacuumed meanwhile"
    gone = [remove.path for remove in removes if remove.path not in state.live]
    return f"{gone[0]} is in the table no more" if gone else ""


class TableChange(NamedTuple):
    """A change of the history. The log must stand at `first_ordinal`."""

    operation: str
    adds: Sequence[Add] = ()
    removes: Sequence[Remove] = ()
    first_ordinal: int | None = None
    end_ordinal: int | None = None  # where the log stands behind it
    fence: int | None = None  # of the table before the first of `adds` was written
    new_fence: int | None = None  # what no version names by then, none will ever name

    def fault(self, state: TableState) -> str:
        """Say why it cannot be made on top of a version; nothing where it can."""
        if self.first_ordinal is not None and state.end_ordinal != self.first_ordinal:
            return f"the table has come from {self.first_ordinal} to {state.end_ordinal}"
        return fault_in(state, self.removes, self.fence)

    def moves(self) -> Mapping[str, int]:
        """Return how far applications have come behind it."""
        found = {WAL_APP_ID: self.end_ordinal, VACUUM_APP_ID: self.new_fence}
        return {app_id: version for app_id, version in found.items() if version is not None}


class VersionedTable:
    """A table in one bucket, as last read; a subclass says which."""

    prefix: ClassVar[str]

    def __init__(self, bucket: Bucket, clock: Clock, rng: random.Random, retry: Retry) -> None:
        self._bucket = bucket
        self._clock = clock
        self._rng = rng
        self._retry = retry
        self.state: TableState = NO_TABLE

    def first_actions(self, table_id: str, now_ms: int) -> tuple[TableProtocol, MetaData]:
        """Return what the first version says."""
        raise NotImplementedError

    def mended(self, metadata: MetaData) -> MetaData | None:
        """Return what a table that was made long ago should say of itself; None: it says so."""
        del metadata
        return None

    async def refresh(self) -> TableState:
        """Read what has come since, however long ago the last look was."""
        read = partial(read_table, self._bucket, self.state, is_sure=True, table=self.prefix)
        self.state = await self._retry(read)
        return self.state

    async def create(self) -> TableState:
        """Make the first version where there is none."""
        if (await self.refresh()).version < 0:
            table_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
            protocol, metadata = self.first_actions(table_id, self._clock.now_ms())
            info = self._info("CREATE TABLE", {})
            actions = Actions(protocol=protocol, metadata=metadata, info=info)
            await self._put(0, encode_actions(actions))
            await self.refresh()
        return self.state

    async def commit(self, change: Change) -> TableState:
        """Make the change a version of the table; Superseded where its ground has gone.

        Whatever happens in between, it becomes one version or none.
        """
        await self.create()
        while True:
            fault = change.fault(self.state)
            if fault:
                raise Superseded(fault)
            # What the version before says decides whether this one mends it, so one alone does.
            data = encode_actions(self._actions(change))
            is_ours = await self._put(self.state.version + 1, data)
            await self.refresh()
            if is_ours:
                return self.state

    def _actions(self, change: Change) -> Actions:
        now_ms = self._clock.now_ms()
        figures = {
            "numAddedFiles": str(len(change.adds)),
            "numRemovedFiles": str(len(change.removes)),
        }
        before = self.state.metadata
        return Actions(
            metadata=None if before is None else self.mended(before),
            adds=tuple(change.adds),
            removes=tuple(change.removes),
            txns=tuple(
                Txn(app_id=app_id, version=version, last_updated=now_ms)
                for app_id, version in change.moves().items()
            ),
            info=self._info(change.operation, figures),
        )

    def _info(self, operation: str, figures: dict[str, str]) -> dict[str, Any]:
        return {
            "timestamp": self._clock.now_ms(),
            "operation": operation,
            "operationParameters": {},
            "operationMetrics": figures,
            "engineInfo": ENGINE,
            COMMIT_ID: f"{self._rng.getrandbits(128):032x}",
        }

    async def _put(self, version: int, data: bytes) -> bool:
        """Create a version; False where it is somebody else's. `data` is like no other version's.

        A put whose answer is lost is made again: it then finds itself, or somebody else.
        """
        key = delta_key(version, self.prefix)
        backoff = Backoff(self._clock, self._rng)
        attempts = 0
        while True:
            attempts += 1
            try:
                await self._bucket.put_if_absent(key, data)
            except ObjectExists:
                return await self._retry(partial(self._bucket.get, key)) == data
            except BucketUnavailable:
                if attempts == ATTEMPTS_UNSURE_MAX:
                    raise
                await backoff.pause()
            else:
                return True


class HistoryTable(VersionedTable):
    """The history."""

    prefix = HISTORY_PREFIX

    def first_actions(self, table_id: str, now_ms: int) -> tuple[TableProtocol, MetaData]:
        """Return what the first version says."""
        return first_actions(table_id, now_ms)

    def mended(self, metadata: MetaData) -> MetaData | None:
        """Return what a table that was made long ago should say of itself; None: it says so."""
        return mended(metadata)


async def discard(bucket: Bucket, facts: Sequence[SegmentFacts]) -> None:
    """Delete segments that no version names or will ever name."""
    for found in facts:
        try:
            await bucket.delete(f"{HISTORY_PREFIX}{found.name}.parquet")
            await bucket.delete(f"{INDEX_PREFIX}{found.name}.idx")
        except BucketError as error:
            log.warning("an orphan stays until it is vacuumed: %s", error)


async def checkpoint(place: Place, table: str = HISTORY_PREFIX) -> None:
    """Write a checkpoint of the newest version, so that readers need not begin at the first."""
    await asyncio.to_thread(_checkpoint, place, table)


def _checkpoint(place: Place, table: str) -> None:
    from deltalake import DeltaTable  # noqa: PLC0415  not everybody has it

    uri = f"{place.uri}/{table.rstrip('/')}"
    DeltaTable(uri, storage_options=place.storage_options or None).create_checkpoint()

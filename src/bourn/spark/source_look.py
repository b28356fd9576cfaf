"""What a source has to ask of the API to plan: which streams there are, where they start and end.

Runs on the driver. Streams are asked several at once, each over a connection of its own.
"""

import queue
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from bourn.client import Client, ReadStart, Refused, Settings, Unwritten
from bourn.layout.arrow import Columns
from bourn.limits import SOURCE_LOOKS_AT_ONCE, U64_MAX
from bourn.spark.options import OptionError
from bourn.spark.options_source import EARLIEST, LATEST, Position, Selection

GONE: Final = frozenset({"stream_not_found", "stream_deletion_pending"})
_FORBIDDEN: Final = 403

T = TypeVar("T")


class Seen(NamedTuple):
    """A stream as it is: when it was made, where that is told, and its tail."""

    created: str
    tail: int


class Looker:
    """Asks; `close` lets go of the connections."""

    def __init__(self, settings: Settings, selection: Selection) -> None:
        self._settings = settings
        self._selection = selection
        self._may_list = True
        self._clients = [Client(settings) for _ in range(SOURCE_LOOKS_AT_ONCE)]

    def close(self) -> None:
        """Let go of all connections."""
        for client in self._clients:
            client.close()

    def streams(self) -> dict[str, Seen]:
        """Return the streams that are selected and there, by name."""
        if self._selection.prefix is None:
            found = self._each(self._selection.names, self._look)
            return {name: seen for name, seen in found.items() if seen is not None}
        listed = {
            info.name: info.created_at
            for info in self._clients[0].list_streams(self._selection.prefix)
            if info.deleted_at is None
        }
        tails = self._each(listed, self._tail)
        return {name: Seen(listed[name], tail) for name, tail in tails.items() if tail is not None}

    def resolve(self, position: Position, streams: Mapping[str, Seen]) -> dict[str, int]:
        """Return the sequence numbers where streams start, or end, by a position."""

        def of(client: Client, name: str) -> int:
            tail = streams[name].tail
            if position.timestamp is not None:
                return self._first(client, name, ReadStart(timestamp=position.timestamp), tail)
            bound = position.of(name)
            if bound == EARLIEST:
                return self._first(client, name, ReadStart(seq_num=0), tail)
            return tail if bound == LATEST else int(bound)

        return self._each(streams, of)

    def earliest(self, streams: Mapping[str, Seen]) -> dict[str, int]:
        """Return where the records of streams begin that are still there."""
        return self.resolve(Position(EARLIEST), streams)

    def fitting(self, stream: str, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """Return how far a stream can be read within so many bytes, and how many these are.

        One that has gone since it was looked at is not read now: the next look tells.
        """
        session = self._clients[0].read_session(
            stream,
            ReadStart(seq_num=start),
            end_seq_num=end,
            columns=Columns(headers=False, body=False, metered_bytes=True),
        )
        try:
            with closing(session):
                return _fitting(session, end, bytes_max)
        except Refused as error:
            if error.code in GONE or isinstance(error, Unwritten):
                return start, 0
            raise

    def _first(self, client: Client, name: str, start: ReadStart, tail: int) -> int:
        """Return the number of the first record from a start on; the tail where there is none."""
        try:
            found = client.read(name, start, count=1)
        except Refused as error:
            if error.code in GONE:
                return tail
            raise
        return found[0].seq_num if found else tail

    def _tail(self, client: Client, name: str) -> int | None:
        try:
            return client.check_tail(name).seq_num
        except Refused as error:
            if error.code in GONE:
                return None
            raise

    def _look(self, client: Client, name: str) -> Seen | None:
        created = self._created(client, name)
        tail = self._tail(client, name)
        return None if tail is None else Seen(created, tail)

    def _created(self, client: Client, name: str) -> str:
        """Return when a stream was made; nothing where the token may not list streams."""
        if not self._may_list:
            return ""
        try:
            info = next(client.list_streams(name), None)
        except Refused as error:
            if error.status != _FORBIDDEN:
                raise
            self._may_list = False
            return ""
        return info.created_at if info is not None and info.name == name else ""

    def _each(self, names: Iterable[str], ask: Callable[[Client, str], T]) -> dict[str, T]:
        """Ask something of each stream; clients are lent, since each is for one thread alone."""
        wanted = list(names)
        if len(wanted) <= 1:
            return {name: ask(self._clients[0], name) for name in wanted}
        idle: queue.SimpleQueue[Client] = queue.SimpleQueue()
        for client in self._clients:
            idle.put(client)

        def lent(name: str) -> T:
            client = idle.get()
            try:
                return ask(client, name)
            finally:
                idle.put(client)

        with ThreadPoolExecutor(SOURCE_LOOKS_AT_ONCE) as pool:
            return dict(zip(wanted, pool.map(lent, wanted), strict=True))


def _fitting(batches: Iterable[pa.RecordBatch], end: int, bytes_max: int) -> tuple[int, int]:
    weight = 0
    for batch in batches:
        sums = np.cumsum(batch.column("metered_bytes").to_numpy(), dtype=np.int64)
        fitting = int(np.searchsorted(sums, bytes_max - weight, side="right"))
        if fitting < batch.num_rows:
            # The first that does not fit is the first of the next micro-batch.
            reached = int(batch.column("seq_num")[fitting].as_py()) & U64_MAX
            return reached, weight + (int(sums[fitting - 1]) if fitting else 0)
        weight += int(sums[-1])
    return end, weight


def check_named(selection: Selection, streams: Mapping[str, Seen], basin: str) -> None:
    """Refuse streams that are named and are not there."""
    missing = [name for name in selection.names if name not in streams]
    if missing:
        raise OptionError("stream", f"there is no stream {missing[0]!r} in basin {basin!r}")


def check_within(
    option: str, position: Position, bounds: Mapping[str, int], streams: Mapping[str, Seen]
) -> None:
    """Refuse sequence numbers behind the tail; one that was found may lie behind an older tail."""
    for name, at in bounds.items():
        if at > streams[name].tail and position.is_number(name):
            raise OptionError(
                option, f"{at} is behind the end of {name!r}, which is {streams[name].tail}"
            )

"""All streams by name and by id: columns for those at rest, Python objects for those in use.

```
get(basin, name) ─► hot objects ──miss──► cold rows ─► hydrate ─► hot
                      │  ▲                    ▲
             mark_dirty  │ put back           │ adopt: the merged rows take the old ones' place,
                      ▼  │                    │        clean idle objects above a number are let go
                   capture() ─► Capture ─► merge (in a thread) ─► snapshot object
                         └── abandon: the snapshot failed, everything is dirty again
```

A hot object is the truth about its stream; its cold row may be older (it is *dirty*) or missing
(it was *added*). What lies between `capture` and `adopt` stays hot, because the rows that are
being searched do not have it yet. Only the event loop calls these methods; a merge, which may run
beside them, touches nothing but immutable values.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from bourn.catalog.cold import ABSENT, ColdStreams
from bourn.layout.snapshot import StreamImage

T = TypeVar("T")


class Listed(NamedTuple, Generic[T]):
    """A stream in a listing: the hot object, or else the packed catalog row of the cold one."""

    name: str
    id: int
    hot: T | None
    row: bytes | None


class Page(NamedTuple, Generic[T]):
    """A part of a listing; `has_more` says whether anything at all follows."""

    streams: list[Listed[T]]
    has_more: bool


class Capture(msgspec.Struct, frozen=True, eq=False):
    """What has changed against `cold`, as of one instant."""

    cold: ColdStreams
    images: list[StreamImage]
    removed: frozenset[int]
    ids: frozenset[int]

    def merge(self, runs_from: int = 0) -> ColdStreams:
        """Return the rows of that instant, without runs of commits below; fit for a thread."""
        return self.cold.merge(self.images, self.removed, runs_from)


class AddedNames:
    """The names of one basin's streams that the cold rows lack, kept in order lazily."""

    __slots__ = ("_late", "_sorted", "ids")

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self._sorted: list[str] = []
        self._late: set[str] = set()

    def add(self, name: str, stream_id: int) -> None:
        """Add a name that is not there."""
        self.ids[name] = stream_id
        self._late.add(name)

    def discard(self, name: str) -> None:
        """Take a name out, if it is there."""
        if self.ids.pop(name, None) is None:
            return
        if name in self._late:
            self._late.remove(name)
        else:
            del self._sorted[bisect_left(self._sorted, name)]

    def discard_ids(self, ids: Collection[int]) -> None:
        """Take the names of many streams out at once."""
        self.ids = {name: stream_id for name, stream_id in self.ids.items() if stream_id not in ids}
        self._sorted = [name for name in self._sorted if name in self.ids]
        self._late = {name for name in self._late if name in self.ids}

    def in_order(self) -> list[str]:
        """Return all names; code points sort as their UTF-8 bytes do."""
        if self._late:
            self._sorted.extend(self._late)
            self._sorted.sort()  # almost sorted already, which this sort is fast on
            self._late.clear()
        return self._sorted


class StreamTable(Generic[T]):
    """Streams of type T over cold rows.

    `hydrate` and `dehydrate` turn an image into a T and back. `is_idle` says that nothing but the
    table holds the object: it may be dropped, and a later `get` will make another.
    """

    def __init__(
        self,
        cold: ColdStreams,
        hydrate: Callable[[StreamImage], T],
        dehydrate: Callable[[T], StreamImage],
        is_idle: Callable[[T], bool],
    ) -> None:
        self._cold = cold
        self._hydrate = hydrate
        self._dehydrate = dehydrate
        self._is_idle = is_idle
        self._by_name: dict[int, dict[str, T]] = {}
        self._by_id: dict[int, tuple[int, str, T]] = {}
        self._added: dict[int, AddedNames] = {}
        self._dirty: set[int] = set()
        self._removed: set[int] = set()  # ids that the next capture must take out of the rows
        self._gone = bytearray(len(cold))  # 1 for a cold row whose stream is removed
        self._capture: Capture | None = None

    @property
    def cold(self) -> ColdStreams:
        """The rows beneath; those of hot streams are out of date."""
        return self._cold

    @property
    def dirty_count(self) -> int:
        """How many images the next capture will take."""
        return len(self._dirty)

    def count(self) -> int:
        """Return the number of streams."""
        added = sum(len(names.ids) for names in self._added.values())
        return len(self._cold) - self._gone.count(1) + added

    def hot(self) -> list[T]:
        """Return the streams in use."""
        return [stream for _, _, stream in self._by_id.values()]

    @property
    def in_use_count(self) -> int:
        """How many streams are in use."""
        return len(self._by_id)

    def in_use(self, stream_id: int) -> T | None:
        """Return a stream by its id if it is in use; unlike `by_id`, this brings none into use."""
        found = self._by_id.get(stream_id)
        return None if found is None else found[2]

    def get(self, basin_id: int, name: str) -> T | None:
        """Return a stream by its name, or None."""
        try:
            return self._by_name[basin_id][name]
        except KeyError:
            row = self._cold.find(basin_id, name)
            return None if row == ABSENT or self._gone[row] else self._thaw(row)

    def by_id(self, stream_id: int) -> T | None:
        """Return a stream by its id, or None."""
        found = self._by_id.get(stream_id)
        if found is not None:
            return found[2]
        row = self._cold.find_id(stream_id)
        return None if row == ABSENT or self._gone[row] else self._thaw(row)

    def add(self, stream_id: int, basin_id: int, name: str, stream: T) -> None:
        """Add a new stream; raises ValueError where its id or its name is taken."""
        if self._holds(basin_id, name) or self._holds_id(stream_id):
            raise ValueError(f"stream {stream_id} with the name {name} is there already")
        self._keep(stream_id, basin_id, name, stream)
        self._added.setdefault(basin_id, AddedNames()).add(name, stream_id)
        self._dirty.add(stream_id)

    def remove(self, stream_id: int) -> None:
        """Forget a stream; raises KeyError where there is none of that id."""
        row = self._cold.find_id(stream_id)
        in_cold = row != ABSENT and not self._gone[row]
        if stream_id in self._by_id:
            basin_id, name = self._drop(stream_id)
            self._dirty.discard(stream_id)
            if basin_id in self._added:
                self._added[basin_id].discard(name)
        elif not in_cold:
            raise KeyError(stream_id)
        if in_cold:
            self._gone[row] = 1
        if in_cold or (self._capture is not None and stream_id in self._capture.ids):
            self._removed.add(stream_id)

    def mark_dirty(self, stream_id: int) -> None:
        """Note that a stream, which must be hot, has changed."""
        self._dirty.add(stream_id)

    def list_names(
        self, basin_id: int, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Page[T]:
        """List a basin's streams in the byte order of their names, hydrating none."""
        found: list[Listed[T]] = []
        cold = self._listed_cold(basin_id, prefix, start_after)
        added = self._listed_added(basin_id, prefix, start_after)
        next_cold, next_added = next(cold, None), next(added, None)
        while len(found) <= limit:
            if next_added is None and next_cold is None:
                return Page(found, has_more=False)
            if next_cold is None or (next_added is not None and next_added.name < next_cold.name):
                found.append(next_added)  # type: ignore[arg-type]  # one of the two is not None
                next_added = next(added, None)
            else:
                found.append(next_cold)
                next_cold = next(cold, None)
        del found[limit:]
        return Page(found, has_more=True)

    def streams_of(self, basin_id: int, chunk: int = 1000) -> Iterator[list[tuple[str, int]]]:
        """Yield (name, id) of a basin's streams in chunks; they may be removed between two."""
        start_after = ""
        has_more = True
        while has_more:
            streams, has_more = self.list_names(basin_id, "", start_after, chunk)
            if streams:
                start_after = streams[-1].name
                yield [(stream.name, stream.id) for stream in streams]

    def due(self, now_s: int, limit: int) -> list[int]:
        """Return ids of cold streams that housekeeping must look at; hot ones know themselves."""
        found: list[int] = []
        for row in self._cold.due(now_s).tolist():
            stream_id = self._cold.id_at(row)
            if not self._gone[row] and stream_id not in self._by_id:
                found.append(stream_id)
                if len(found) == limit:
                    break
        return found

    def run_bytes_at_rest(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return each basin's id and what its cold streams have in the commits [first, end)."""
        return self._cold.run_bytes(first, end, ~self._is_at_rest())

    def facts(
        self, of_hot: Callable[[T], tuple[int, int]]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return id, basin and trim point of all streams; `of_hot` tells the last two of one."""
        at_rest = self._is_at_rest()
        hot = np.array(
            [(stream_id, *of_hot(stream)) for stream_id, (_, _, stream) in self._by_id.items()],
            np.uint64,
        ).reshape(-1, 3)
        columns = self._cold.columns
        cold = (columns.ids, columns.basin_ids, columns.trim_points)
        ids, basin_ids, trim_points = (
            np.concatenate([values[at_rest], hot[:, at]]) for at, values in enumerate(cold)
        )
        return ids, basin_ids, trim_points

    def _is_at_rest(self) -> npt.NDArray[np.bool_]:
        """Whether the stream of each cold row is there, and not in use."""
        at_rest: npt.NDArray[np.bool_] = np.frombuffer(bytes(self._gone), np.uint8) == 0
        rows = self._cold.rows_of(np.fromiter(self._by_id, np.uint64, len(self._by_id)))
        at_rest[rows[rows != ABSENT]] = False
        return at_rest

    def capture(self) -> Capture:
        """Take all changes since the last adopted capture; later ones belong to the next.

        Exactly one of `adopt` and `abandon` must follow before the next capture.
        """
        if self._capture is not None:
            raise ValueError("the last capture is neither adopted nor abandoned")
        images = [self._dehydrate(self._by_id[stream_id][2]) for stream_id in self._dirty]
        self._capture = Capture(
            self._cold, images, frozenset(self._removed), frozenset(self._dirty)
        )
        self._dirty = set()
        self._removed = set()
        return self._capture

    def adopt(self, capture: Capture, merged: ColdStreams, kept_max: int = 0) -> None:
        """Let the rows merged from a capture take the old ones' place, and evict."""
        self._close(capture)
        for names in self._added.values():
            names.discard_ids(capture.ids)
        self._added = {basin_id: names for basin_id, names in self._added.items() if names.ids}
        self._cold = merged
        self._gone = bytearray(len(merged))
        for stream_id in self._removed:
            row = merged.find_id(stream_id)
            if row != ABSENT:
                self._gone[row] = 1
        self.evict(kept_max)

    def abandon(self, capture: Capture) -> None:
        """Take a capture back: the next one will hold its changes again."""
        self._close(capture)
        self._dirty.update(stream_id for stream_id in capture.ids if stream_id in self._by_id)
        self._removed |= capture.removed

    def evict(self, kept_max: int = 0) -> int:
        """Let go of idle streams whose cold rows are up to date; returns how many.

        Those go first that came into use first, and none as long as so many may stay in use.
        """
        captured = self._capture.ids if self._capture is not None else frozenset()
        found = (
            stream_id
            for stream_id, (_, _, stream) in self._by_id.items()
            if stream_id not in self._dirty and stream_id not in captured and self._is_idle(stream)
        )
        idle = list(islice(found, max(len(self._by_id) - kept_max, 0)))
        for stream_id in idle:
            self._drop(stream_id)
        return len(idle)

    def let_go(self, stream_id: int) -> bool:
        """Let go of a stream in use, if it is idle and its cold row is up to date."""
        captured = self._capture is not None and stream_id in self._capture.ids
        if captured or stream_id in self._dirty or not self._is_idle(self._by_id[stream_id][2]):
            return False
        self._drop(stream_id)
        return True

    def _close(self, capture: Capture) -> None:
        if capture is not self._capture:
            raise ValueError("this is not the open capture")
        self._capture = None

    def _holds(self, basin_id: int, name: str) -> bool:
        if name in self._by_name.get(basin_id, ()):
            return True
        row = self._cold.find(basin_id, name)
        return row != ABSENT and not self._gone[row]

    def _holds_id(self, stream_id: int) -> bool:
        return stream_id in self._by_id or self._cold.find_id(stream_id) != ABSENT

    def _thaw(self, row: int) -> T:
        image = self._cold.image(row)
        stream = self._hydrate(image)
        self._keep(image.id, image.basin_id, image.name, stream)
        return stream

    def _keep(self, stream_id: int, basin_id: int, name: str, stream: T) -> None:
        self._by_id[stream_id] = (basin_id, name, stream)
        self._by_name.setdefault(basin_id, {})[name] = stream

    def _drop(self, stream_id: int) -> tuple[int, str]:
        basin_id, name, _ = self._by_id.pop(stream_id)
        names = self._by_name[basin_id]
        del names[name]
        if not names:
            del self._by_name[basin_id]
        return basin_id, name

    def _listed_cold(self, basin_id: int, prefix: str, start_after: str) -> Iterator[Listed[T]]:
        low, high = self._cold.range(basin_id, prefix, start_after)
        row = self._gone.find(0, low, high)
        while row != ABSENT:
            stream_id = self._cold.id_at(row)
            name = self._cold.name_at(row)
            hot = self._by_id.get(stream_id)
            if hot is not None:
                yield Listed(name, stream_id, hot[2], None)
            else:
                yield Listed(name, stream_id, None, self._cold.row_at(row))
            row = self._gone.find(0, row + 1, high)

    def _listed_added(self, basin_id: int, prefix: str, start_after: str) -> Iterator[Listed[T]]:
        if basin_id not in self._added:
            return
        added = self._added[basin_id]
        names = added.in_order()
        first = max(bisect_left(names, prefix), bisect_right(names, start_after))
        for at in range(first, len(names)):
            name = names[at]
            if not name.startswith(prefix):
                return
            stream_id = added.ids[name]
            yield Listed(name, stream_id, self._by_id[stream_id][2], None)

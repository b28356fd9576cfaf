"""The columns of a row group as bytes, straight from the pages that our own writer makes.

Arrow reads them too, but copies every string once more and takes a while for each column. Here a
page is decompressed, and its strings stay where they are: only where each one starts is noted. A
file with pages of another kind is no error: then Arrow reads it.

| column | encoding |
|---|---|
| `seq_num`, `timestamp` | DELTA_BINARY_PACKED |
| `arrival`, `retention_secs`, `kind` | a dictionary |
| names and values of headers, `body`, `metered_bytes` | PLAIN |

All have pages of version 2, with Zstandard or without compression.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from zstandard import ZstdDecompressor, ZstdError, frame_content_size

from bourn.layout.history.footer import LEAF_PATHS
from bourn.layout.history.schema import KINDS
from bourn.layout.kernels import rows_facts
from bourn.layout.kernels.compiled import HistoryKernels

Bytes = npt.NDArray[np.uint8]

KERNELS: Final = HistoryKernels()
NO_BYTES: Final = np.empty(0, np.uint8)
NO_KIND: Final = 0xFF

_GAP: Final = 4  # before each string of a page: its size
_PAGES_MAX: Final = 128
_UNKNOWN: Final = -1
_PLAIN: Final = 0
_DELTA: Final = 5
_DICTIONARY: Final = 8
_FIRST_LEAF: Final = LEAF_PATHS.index("seq_num")
_READ: Final = len(LEAF_PATHS) - _FIRST_LEAF
_KINDS: Final = tuple(kind.encode() for kind in KINDS)


class Columns(NamedTuple):
    """The bytes of the columns that make batches.

    A string reaches from its offset to the next one, less `gap` bytes that are none of its own.
    """

    seq_nums: Bytes
    stamps: Bytes
    arrivals: Bytes
    retentions: Bytes
    kinds: Bytes
    metered: Bytes
    headers_at: Bytes
    names_at: Bytes
    names: Bytes
    values_at: Bytes
    values: Bytes
    bodies_at: Bytes
    bodies: Bytes
    gap: int = 0

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.kinds)

    @property
    def nbytes(self) -> int:
        """What they take in memory."""
        return sum(column.nbytes for column in self[:-1])

    def slice(self, first: int, count: int) -> "Columns":
        """Return some of the rows, in the same memory."""
        end = first + count
        return self._replace(
            seq_nums=self.seq_nums[8 * first : 8 * end],
            stamps=self.stamps[8 * first : 8 * end],
            arrivals=self.arrivals[8 * first : 8 * end],
            retentions=self.retentions[8 * first : 8 * end],
            kinds=self.kinds[first:end],
            metered=self.metered[4 * first : 4 * end],
            headers_at=self.headers_at[4 * first : 4 * end + 4],
            bodies_at=self.bodies_at[4 * first : 4 * end + 4],
        )


class _Page(NamedTuple):
    """A page, as `rows_facts` has its words."""

    leaf: int
    type: int
    at: int
    size: int
    raw_size: int
    values: int
    encoding: int
    definition_bytes: int
    repetition_bytes: int
    is_packed: int


class _ForeignError(ValueError):
    """A page is not as our own writer makes it."""


def read_columns(
    data: bytes | memoryview, rows: int, header_values: int, chunk_ends: Sequence[int]
) -> Columns | None:
    """Return the columns of a row group; None where its pages are not those of our own writer.

    The arguments are what its index says of it, and its bytes, which are as they were written.
    """
    try:
        return _RowGroup(data, rows, header_values, chunk_ends).columns()
    except (ValueError, IndexError, ZstdError):
        return None


class _RowGroup:
    """The pages of a row group, as they are read."""

    def __init__(
        self, data: bytes | memoryview, rows: int, header_values: int, chunk_ends: Sequence[int]
    ) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self._rows = rows
        self._header_values = header_values
        self._zstd = ZstdDecompressor()  # for one thread at a time
        ends = np.array(chunk_ends[_FIRST_LEAF - 1 :], np.int64)
        bounds = np.repeat(ends, 2)[1:-1]
        words = np.empty(_PAGES_MAX * rows_facts.PAGE_WORDS, np.int64)
        found = KERNELS.scan_pages(self._data, bounds, _READ, words)
        _expect(found >= 0)
        self._pages: dict[str, list[_Page]] = {path: [] for path in LEAF_PATHS[_FIRST_LEAF:]}
        chunks = list(self._pages.values())
        for page in words.reshape(_PAGES_MAX, -1)[:found].tolist():
            chunks[page[rows_facts.PAGE_LEAF]].append(_Page(*page))

    def columns(self) -> Columns:
        """Return all of them."""
        headers_at, headers = self._lists("headers.list.element.name")
        values_at, values = self._lists("headers.list.element.value")
        _expect(np.array_equal(headers_at, values_at))
        return Columns(
            self._numbers("seq_num"),
            self._numbers("timestamp"),
            self._looked_up("arrival"),
            self._looked_up("retention_secs"),
            self._kinds(),
            self._sizes(),
            headers_at,
            *self._strings("headers.list.element.name", headers),
            *self._strings("headers.list.element.value", values),
            *self._strings("body", self._rows),
            _GAP,
        )

    def _values(self, page: _Page) -> Bytes:
        """Return the values of a page, decompressed."""
        levels = page.definition_bytes + page.repetition_bytes
        size, raw_size = page.size - levels, page.raw_size - levels
        _expect(levels >= 0 and size >= 0 and 0 <= raw_size <= rows_facts.PAGE_RAW_BYTES_MAX)
        if not raw_size:
            return NO_BYTES
        stored = self._data[page.at + levels : page.at + page.size]
        if not page.is_packed:
            _expect(size == raw_size)
            return stored
        # What a frame says of its size is allocated before anything of it is read.
        _expect(frame_content_size(stored.data) in (raw_size, _UNKNOWN))
        raw = self._zstd.decompress(stored.data, max_output_size=raw_size)
        _expect(len(raw) == raw_size)
        return np.frombuffer(raw, np.uint8)

    def _flat(self, path: str, encoding: int, pages: list[_Page] | None = None) -> list[_Page]:
        """Return the pages of a column without levels, which have a value for every row."""
        found = self._pages[path] if pages is None else pages
        _expect(sum(page.values for page in found) == self._rows)
        _check(found, encoding)
        return found

    def _numbers(self, path: str) -> Bytes:
        out = np.empty(8 * self._rows, np.uint8)
        at = 0
        for page in self._flat(path, _DELTA):
            end = at + 8 * page.values
            done = KERNELS.unpack_delta(self._values(page), page.values, out[at:end])
            _expect(done == page.values)
            at = end
        return out

    def _indices(self, path: str) -> tuple[_Page, npt.NDArray[np.uint32]]:
        """Return the dictionary of a column, and for every row the place in it."""
        dictionary, *pages = self._pages[path]
        _expect(dictionary.type == rows_facts.PAGE_TYPE_DICTIONARY)
        _expect(dictionary.encoding == _PLAIN)
        out = np.empty(4 * self._rows, np.uint8)
        at = 0
        for page in self._flat(path, _DICTIONARY, pages):
            values = self._values(page)
            end = at + 4 * page.values
            done = KERNELS.unpack_hybrid(values, 1, int(values[0]), page.values, out[at:end])
            _expect(0 <= done <= len(values))
            at = end
        return dictionary, out.view(np.uint32)

    def _looked_up(self, path: str) -> Bytes:
        dictionary, indices = self._indices(path)
        return self._values(dictionary).view(np.int64)[indices].view(np.uint8)

    def _kinds(self) -> Bytes:
        dictionary, indices = self._indices("kind")
        texts = self._values(dictionary)
        starts = _places(texts, dictionary.values).view(np.uint32).tolist()
        kinds = [texts[start : end - _GAP].tobytes() for start, end in pairwise(starts)]
        numbers = [_KINDS.index(kind) if kind in _KINDS else NO_KIND for kind in kinds]
        return np.array(numbers, np.uint8)[indices]

    def _sizes(self) -> Bytes:
        sizes = _joined([self._values(page) for page in self._flat("metered_bytes", _PLAIN)])
        _expect(len(sizes) == 4 * self._rows)
        return sizes

    def _lists(self, path: str) -> tuple[Bytes, int]:
        """Return where the headers of every row start, and how many there are."""
        pages = self._pages[path]
        total = self._header_values
        _expect(sum(page.values for page in pages) == total)
        _check(pages, _PLAIN)
        repetitions, definitions = np.empty(4 * total, np.uint8), np.empty(4 * total, np.uint8)
        at = 0
        for page in pages:
            end = at + 4 * page.values
            middle = page.at + page.repetition_bytes
            behind = middle + page.definition_bytes
            for out, start, stop in ((repetitions, page.at, middle), (definitions, middle, behind)):
                levels = self._data[start:stop]
                done = KERNELS.unpack_hybrid(levels, 0, 1, page.values, out[at:end])
                _expect(done >= 0)
            at = end
        headers_at = np.empty(4 * self._rows + 4, np.uint8)
        headers = KERNELS.place_lists(repetitions, definitions, total, self._rows, headers_at)
        _expect(headers >= 0)
        return headers_at, headers

    def _strings(self, path: str, count: int) -> tuple[Bytes, Bytes]:
        pages = self._pages[path]
        _check(pages, _PLAIN)
        data = _joined([self._values(page) for page in pages])
        return _places(data, count), data


def _places(data: Bytes, count: int) -> Bytes:
    """Return where strings start that follow each other, each behind its size."""
    _expect(0 <= count <= len(data) // _GAP)
    offsets = np.empty(4 * count + 4, np.uint8)
    _expect(KERNELS.place_plain(data, count, offsets) == len(data))
    return offsets


def _joined(pages: list[Bytes]) -> Bytes:
    return pages[0] if len(pages) == 1 else np.concatenate([NO_BYTES, *pages])


def _check(pages: list[_Page], encoding: int) -> None:
    is_data = all(page.type == rows_facts.PAGE_TYPE_DATA for page in pages)
    _expect(is_data and all(page.encoding == encoding for page in pages))


def _expect(holds: bool) -> None:  # noqa: FBT001  what is expected is the whole call
    if not holds:
        raise _ForeignError

"""Small runs of one stream, wherever they are in memory, as one batch.

A stream that gets a record now and then has each in a commit of its own. Reading them one by one
costs ten times what is done with them then, so kernels walk over all of them. What comes out is a
batch like any other, which expires when the first of its records does.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bourn.layout.entry import Entry
from bourn.layout.kernels import join_facts
from bourn.layout.kernels.compiled import JoinKernels, blank
from bourn.layout.runs import RUN_BYTES
from bourn.limits import U64_MAX

Words = npt.NDArray[np.int64]

KERNELS: Final = JoinKernels()


class Joined(NamedTuple):
    """A batch, and how many runs it was made of."""

    batch: Entry
    runs: int


def warm(say: Callable[[str], None]) -> None:
    """Make sure that every kernel is compiled, or loaded from the cache; say so if it takes."""
    KERNELS.warm(say)


def locate(rows: bytes, objects: Words, first: int, end: int, length_max: int) -> Words:
    """Return address and size of the runs that lie in the commits [first, end) and are small."""
    places = np.empty(2 * len(rows) // RUN_BYTES, np.int64)
    view = np.frombuffer(rows, np.uint8)
    KERNELS.locate_runs(view, objects, first, end, length_max, places)
    return places


def join(
    places: Words,
    stream_id: int,
    position: int,
    now_ms: int,
    records_max: int,
    metered_max: int,
) -> Joined | None:
    """Return the batch that begins at the position, of as many runs as go together.

    `places` are address and size of each run, of bytes that nobody changes or lets go of during
    the call. It holds at least as many records and bytes as asked for, unless a run that is not
    at hand, or one that does not go with those before it, comes sooner; None where that is the
    first one.
    """
    found = np.empty(join_facts.FOUND, np.int64)
    runs = KERNELS.survey_runs(places, stream_id, position, now_ms, records_max, metered_max, found)
    if not runs:
        return None
    records, stored, metered, headers, retention, arrival, last, commands = found.tolist()
    payload, fresh = blank(8 * records + stored)
    stamps = np.empty(records, np.int64)
    if KERNELS.join_runs(places, runs, fresh, stamps) != len(payload):
        raise RuntimeError("the runs have changed during the call")
    batch = Entry(
        stream_id,
        position,
        records,
        metered,
        headers,
        arrival,
        retention,
        last & U64_MAX,
        stamps.view(np.uint64),
        payload,
        bool(commands),
    )
    return Joined(batch, runs)

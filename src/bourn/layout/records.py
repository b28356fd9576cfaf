"""Stored records (stub for the shape; the codec fills it in)."""

import msgspec
import numpy as np
import numpy.typing as npt

from bourn.model.record import Command

U64Array = npt.NDArray[np.uint64]
BoolArray = npt.NDArray[np.bool_]


class RecordBatch(msgspec.Struct, frozen=True, eq=False):
    """A validated batch in storage form, before it has a position.

    `payload` is `ends u32[count] | body_starts u32[count] | records`, little endian.
    """

    payload: bytes
    count: int
    metered_bytes: int
    header_count: int
    timestamps: U64Array | None = None  # None: no record carries one
    missing: BoolArray | None = None  # None: none is missing (where timestamps is set)
    commands: tuple[tuple[int, Command], ...] = ()  # (index in the batch, command)

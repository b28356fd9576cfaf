"""Appends in JSON straight to stored records, without an object per record.

The texts that clients write go through two calls of compiled kernels, which let go of the
interpreter's lock. What the kernels are not sure of (`kernels/from_json.py`) is left to
`wire/json_input`, whose answer it is: the same for every text that is read here.
"""

from typing import Final, NamedTuple

import numpy as np

from bourn.layout.codec import AppendInput, I64Array, timestamp_columns, token_in
from bourn.layout.json_records import KERNELS
from bourn.layout.kernels import facts
from bourn.layout.kernels.compiled import blank
from bourn.layout.kernels.input_facts import DIGITS
from bourn.layout.records import RecordBatch
from bourn.limits import BATCH_METERED_BYTES_MAX, BATCH_RECORDS_MAX, U64_MAX

_DIGITS: Final = np.frombuffer(DIGITS, np.uint8)
_NO_DIGITS: Final = np.empty(0, np.uint8)


class _Scanned(NamedTuple):
    rows: I64Array
    records: int
    found: list[int]


def decode_json_append(body: bytes, *, is_base64: bool) -> AppendInput | None:
    """Read an AppendInput; None where that is left to the other readers, errors included."""
    scanned = _scan(body, is_base64=is_base64)
    if scanned is None:
        return None
    rows, count, found = scanned
    payload, fresh = blank(8 * count + found[facts.STORED_SUM])
    table = _DIGITS if is_base64 else _NO_DIGITS
    view = np.frombuffer(body, np.uint8)
    if KERNELS.write_json_append(view, rows, count, table, fresh) != len(payload):
        return None
    timestamps, missing = timestamp_columns(rows, count, found[facts.STAMPED])
    metered, headers = found[facts.METERED_SUM], found[facts.HEADER_SUM]
    batch = RecordBatch(payload, count, metered, headers, timestamps, missing)
    match = found[facts.MATCH] & U64_MAX if found[facts.MATCH_SET] else None
    return AppendInput(batch, match, token_in(body, found))


def surplus_bytes(body: bytes) -> int | None:
    """Return how much of a text is no name, value or body; None for one that is not read here.

    That are keys, brackets, blanks, numbers, and by how much escapes are longer than characters.
    """
    scanned = _scan(body, is_base64=False)
    if scanned is None:
        return None
    _, count, found = scanned
    data_bytes = found[facts.METERED_SUM] - 8 * count - 2 * found[facts.HEADER_SUM]
    return len(body) - data_bytes


def _scan(body: bytes, *, is_base64: bool) -> _Scanned | None:
    rows = np.empty(BATCH_RECORDS_MAX * facts.FACTS, np.int64)
    state = np.zeros(facts.STATE, np.int64)
    count = KERNELS.scan_json_append(np.frombuffer(body, np.uint8), is_base64, rows, state)
    if count <= 0:
        return None
    found: list[int] = state.tolist()
    if found[facts.METERED_SUM] > BATCH_METERED_BYTES_MAX:
        return None
    return _Scanned(rows, count, found)

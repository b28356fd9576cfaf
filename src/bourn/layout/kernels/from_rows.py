"""Columns of the history back to batches, in two walks over the rows.

The first walk checks the rows and cuts them into batches, the second one copies. A fault is
`-(16 * index + code)`: which row, and what is wrong with it. Columns are Arrow's: offsets have 32
bits, and are one more than there are values. Between two strings there may be a gap, always the
same: none in Arrow's own, four bytes in a page of Parquet.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.facts import (
    BAD_COMMAND,
    BAD_METERED,
    CHANGED,
    FENCE_BODY_BYTES_MAX,
    FENCE_OP_BYTES,
    MAGIC_WIDE,
    NARROW_MAX,
    OP_FENCE,
    OP_TRIM,
    RECORD_FAULT_BASE,
    RECORD_METERED_MAX,
    TRIM_BODY_BYTES,
    TRIM_OP_BYTES,
    TYPE_COMMAND,
    TYPE_ENCRYPTED,
    TYPE_ENVELOPE,
)
from bourn.layout.kernels.memory import (
    BYTES,
    WORDS,
    Span,
    copy,
    inlined,
    int64,
    load_byte,
    load_little_u32,
    load_little_u64,
    load_word,
    span,
    store_big,
    store_byte,
    store_little_u32,
    store_word,
    uint64,
)
from bourn.layout.kernels.rows_facts import (
    BAD_HEADERS,
    BAD_ROW,
    FLAG_COMMANDS,
    FLAG_STAMPS,
    GROUP_BYTES,
    GROUP_COUNT,
    GROUP_FLAGS,
    GROUP_HEADERS,
    GROUP_METERED,
    GROUP_ROW,
    GROUP_WORDS,
    KIND_COMMAND,
    KIND_ENCRYPTED,
    KIND_ENVELOPE,
    OUT_OF_ORDER,
)
from bourn.layout.kernels.to_rows import metered_width, nonce_bytes

HELPERS_CHECKSUM: Final = "886ff048c6c943de"  # see the package

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]

_FENC: Final = 0x636E6566  # little endian
_E: Final = 0x65
_TRIM: Final = 0x6D697274


@inlined
def load_range(offsets: Span, index: int, gap: int) -> tuple[int, int]:
    """Return where a value starts and how long it is."""
    start = load_little_u32(offsets, 4 * index)
    return start, load_little_u32(offsets, 4 * (index + 1)) - start - gap


@inlined
def bytes_of(offsets: Span, first: int, count: int, gap: int) -> int:
    """Return how long some values are together."""
    start = load_little_u32(offsets, 4 * first)
    return load_little_u32(offsets, 4 * (first + count)) - start - gap * count


@inlined
def header_field(names: Span, values: Span, first: int, count: int, size: int, gap: int) -> int:
    """Return how many bytes the sizes of these headers take, which together have `size`."""
    if count > NARROW_MAX:
        return 4
    if size > NARROW_MAX:
        for index in range(first, first + count):
            if (
                load_range(names, index, gap)[1] > NARROW_MAX
                or load_range(values, index, gap)[1] > NARROW_MAX
            ):
                return 4
    return 2


@inlined
def op_of(value_data: Span, at: int, size: int) -> int:
    """Return which op a header's value is, or 0."""
    if size == FENCE_OP_BYTES:
        if load_little_u32(value_data, at) == _FENC and load_byte(value_data, at + 4) == _E:
            return int64(OP_FENCE)
    elif size == TRIM_OP_BYTES and load_little_u32(value_data, at) == _TRIM:
        return int64(OP_TRIM)
    return int64(0)


@inlined
def weigh_envelope(
    metered: int, body_bytes: int, first: int, count: int, names: Span, values: Span, gap: int
) -> int:
    """Return the size of a stored envelope behind its metered size, or a fault."""
    size = bytes_of(names, first, count, gap) + bytes_of(values, first, count, gap)
    if metered != 8 + 2 * count + size + body_bytes:
        return -BAD_METERED
    field = header_field(names, values, first, count, size, gap)
    return field * (1 + 2 * count) + size + body_bytes


@inlined
def weigh_command(
    metered: int, body_bytes: int, first: int, names: Span, values: Span, value_data: Span, gap: int
) -> int:
    """Return the size of a stored command behind its metered size, or a fault."""
    at, size = load_range(values, first, gap)
    op = op_of(value_data, at, size)
    if op == 0 or load_range(names, first, gap)[1] != 0:
        return -BAD_HEADERS
    if body_bytes != TRIM_BODY_BYTES if op == OP_TRIM else body_bytes > FENCE_BODY_BYTES_MAX:
        return -BAD_COMMAND
    return 1 + body_bytes if metered == 10 + size + body_bytes else -BAD_METERED


@inlined
def weigh_row(
    kind: int,
    metered: int,
    body_bytes: int,
    first: int,
    count: int,
    names: Span,
    values: Span,
    value_data: Span,
    gap: int,
) -> int:
    """Return the size of the stored record of a row, or a fault."""
    if count < 0 or body_bytes < 0 or metered > RECORD_METERED_MAX:
        return -BAD_ROW
    if kind == KIND_ENVELOPE:
        size = weigh_envelope(metered, body_bytes, first, count, names, values, gap)
    elif kind == KIND_COMMAND and count == 1:
        size = weigh_command(metered, body_bytes, first, names, values, value_data, gap)
    else:
        is_encrypted = kind == KIND_ENCRYPTED and count == 0 and body_bytes > 0
        size = body_bytes if is_encrypted else int64(-BAD_ROW)
    return 1 + metered_width(metered) + size if size >= 0 else size


@inlined
def close_group(
    groups: Span,
    group: int,
    row: int,
    count: int,
    metered: int,
    headers: int,
    size: int,
    flags: int,
) -> None:
    """Note a batch that is complete."""
    word = GROUP_WORDS * group
    store_word(groups, word + GROUP_ROW, row)
    store_word(groups, word + GROUP_COUNT, count)
    store_word(groups, word + GROUP_METERED, metered)
    store_word(groups, word + GROUP_HEADERS, headers)
    store_word(groups, word + GROUP_BYTES, 8 * count + size)
    store_word(groups, word + GROUP_FLAGS, flags)


def plan_groups(
    rows: int,
    seq_array: Bytes,
    stamp_array: Bytes,
    arrival_array: Bytes,
    retention_array: Bytes,
    kind_array: Bytes,
    metered_array: Bytes,
    headers_array: Bytes,
    names_array: Bytes,
    values_array: Bytes,
    value_array: Bytes,
    bodies_array: Bytes,
    gap: int,
    records_max: int,
    metered_max: int,
    groups_array: Words,
) -> int:
    """Cut the rows into batches; return how many, or a fault."""
    seqs, stamps, arrivals = span(seq_array), span(stamp_array), span(arrival_array)
    retentions, kinds, metered_sizes = span(retention_array), span(kind_array), span(metered_array)
    headers, names, values = span(headers_array), span(names_array), span(values_array)
    value_data, bodies, groups = span(value_array), span(bodies_array), span(groups_array)
    group = first = metered_sum = header_sum = size_sum = flags = int64(0)
    for row in range(rows):
        kind = load_byte(kinds, row)
        metered = load_little_u32(metered_sizes, 4 * row)
        header_at, header_count = load_range(headers, row, 0)
        body_bytes = load_range(bodies, row, gap)[1]
        size = weigh_row(
            kind, metered, body_bytes, header_at, header_count, names, values, value_data, gap
        )
        if size < 0:
            return size - RECORD_FAULT_BASE * row
        if row > 0:
            seq_num, before = load_little_u64(seqs, 8 * row), load_little_u64(seqs, 8 * row - 8)
            if seq_num <= before:
                return -OUT_OF_ORDER - RECORD_FAULT_BASE * row
            retention = load_word(retentions, row)
            if (
                seq_num != before + uint64(1)
                or row - first == records_max
                or metered_sum + metered > metered_max
                or retention != load_word(retentions, row - 1)
                or (retention != 0 and load_word(arrivals, row) != load_word(arrivals, row - 1))
            ):
                close_group(
                    groups, group, first, row - first, metered_sum, header_sum, size_sum, flags
                )
                group += 1
                first = row
                metered_sum = header_sum = size_sum = flags = int64(0)
            elif load_word(stamps, row) != load_word(stamps, row - 1):
                flags |= FLAG_STAMPS
        metered_sum += metered
        size_sum += size
        header_sum += (metered - 8) // 3 if kind == KIND_ENCRYPTED else header_count
        if kind == KIND_COMMAND:
            flags |= FLAG_COMMANDS
    if rows > 0:
        close_group(groups, group, first, rows - first, metered_sum, header_sum, size_sum, flags)
        group += 1
    return group


@inlined
def write_start(
    out: Span,
    to: int,
    kind: int,
    metered: int,
    first: int,
    count: int,
    names: Span,
    name_data: Span,
    values: Span,
    value_data: Span,
    gap: int,
) -> int:
    """Write a planned record up to its body, or what the column has for it."""
    width = metered_width(metered)
    store_big(out, to + 1, metered, width)
    after = to + 1 + width
    if kind == KIND_ENVELOPE:
        size = bytes_of(names, first, count, gap) + bytes_of(values, first, count, gap)
        field = header_field(names, values, first, count, size, gap)
        magic = TYPE_ENVELOPE | width << 3
        store_byte(out, to, magic if field == 2 else magic | MAGIC_WIDE)  # noqa: PLR2004  bytes
        store_big(out, after, count, field)
        after += field
        for index in range(first, first + count):
            at, size = load_range(names, index, gap)
            store_big(out, after, size, field)
            copy(out, after + field, name_data, at, size)
            after += field + size
            at, size = load_range(values, index, gap)
            store_big(out, after, size, field)
            copy(out, after + field, value_data, at, size)
            after += field + size
        return after
    if kind == KIND_COMMAND:
        store_byte(out, to, TYPE_COMMAND | width << 3)
        is_fence = load_range(values, first, gap)[1] == FENCE_OP_BYTES
        store_byte(out, after, OP_FENCE if is_fence else OP_TRIM)
        return after + 1
    store_byte(out, to, TYPE_ENCRYPTED | width << 3)
    return after


def write_groups(
    kind_array: Bytes,
    metered_array: Bytes,
    headers_array: Bytes,
    names_array: Bytes,
    name_array: Bytes,
    values_array: Bytes,
    value_array: Bytes,
    bodies_array: Bytes,
    body_array: Bytes,
    gap: int,
    groups_array: Words,
    group_count: int,
    fresh: Bytes,
) -> int:
    """Write the payloads of planned batches, one after the other; return their size or a fault."""
    kinds, metered_sizes, headers = span(kind_array), span(metered_array), span(headers_array)
    names, name_data, values = span(names_array), span(name_array), span(values_array)
    value_data, bodies, body_data = span(value_array), span(bodies_array), span(body_array)
    groups, out = span(groups_array), span(fresh)
    columns = int64(0)
    for group in range(group_count):
        word = GROUP_WORDS * group
        first, count = load_word(groups, word + GROUP_ROW), load_word(groups, word + GROUP_COUNT)
        to = area = columns + 8 * count
        for index in range(count):
            row = first + index
            kind = load_byte(kinds, row)
            start = to
            header_at, header_count = load_range(headers, row, 0)
            to = write_start(
                out,
                to,
                kind,
                load_little_u32(metered_sizes, 4 * row),
                header_at,
                header_count,
                names,
                name_data,
                values,
                value_data,
                gap,
            )
            at, body_bytes = load_range(bodies, row, gap)
            copy(out, to, body_data, at, body_bytes)
            body_at = to
            nonce = int64(0)
            if kind == KIND_ENCRYPTED:
                nonce = nonce_bytes(load_byte(body_data, at))
                body_at += 1 + nonce
            to += body_bytes
            if nonce < 0 or body_at > to:
                return -BAD_ROW - RECORD_FAULT_BASE * row
            store_little_u32(out, columns + 4 * (count + index), body_at - start)
            store_little_u32(out, columns + 4 * index, to - area)
        if to - columns != load_word(groups, word + GROUP_BYTES):
            return -CHANGED - RECORD_FAULT_BASE * first
        columns = to
    return columns


_INT: Final = types.int64

KERNELS: Final = {
    "plan_groups": (plan_groups, _INT(_INT, *[BYTES] * 11, _INT, _INT, _INT, WORDS)),
    "write_groups": (write_groups, _INT(*[BYTES] * 9, _INT, WORDS, _INT, BYTES)),
}

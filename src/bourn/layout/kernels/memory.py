"""The only code of the kernels that touches memory; every access is checked.

A kernel takes arrays, and works on their spans: address and size. A span is two numbers, so that
passing one on counts no references (which cost more than the loop around them), and so that an
access is checked against the size at no more than a comparison. An access outside of its span is a
bug of the kernel, not of the data, and raises IndexError.
"""
# ruff: noqa: PLR2004  the numbers are widths in bytes

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Array = npt.NDArray[np.uint8] | npt.NDArray[np.int64] | npt.NDArray[np.uint32]
Span = tuple[int, int]
_Function = TypeVar("_Function", bound=Callable[..., Any])

BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
WORDS: Final = types.Array(types.int64, 1, "C", readonly=False)

# Signed and unsigned never meet in an expression: numba would make floating point of them.
int64: Final = cast("Callable[[int], int]", types.int64)
uint64: Final = cast("Callable[[int], int]", types.uint64)

_raw_memcpy: Final[Callable[..., Any]] = cgutils.raw_memcpy
_WORD: Final = ir.IntType(64)
BLOCK_BYTES: Final = 64


def inlined(function: _Function) -> _Function:
    """Make a helper of kernels that leaves no call in their machine code."""
    return cast("_Function", njit(forceinline=True)(function))


def called(function: _Function) -> _Function:
    """Make a helper of kernels for what is rare: it stays a call."""
    return cast("_Function", njit(function))


def _load(bits: int, *, big: bool) -> Callable[[int], int]:
    """Make the load of an unsigned number at any address."""

    def load(_: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return builder.zext(builder.bswap(value) if big else value, _WORD)

        return types.int64(address), generate

    return cast("Callable[[int], int]", intrinsic(load))


def _store(bits: int, *, big: bool) -> Callable[[int, int], None]:
    """Make the store of a number's low bits at any address."""

    def store(_: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            low = builder.trunc(arguments[1], kind)
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            builder.store(builder.bswap(low) if big else low, pointer, align=1)
            return context.get_dummy_value()

        return types.void(address, value), generate

    return cast("Callable[[int, int], None]", intrinsic(store))


def _move(_: Any, target: Any, source: Any, size: Any) -> Any:
    """Call memcpy, which picks the widest registers."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(8).as_pointer()
        to, of = (builder.inttoptr(address, kind) for address in arguments[:2])
        _raw_memcpy(builder, to, of, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(target, source, size), generate


def _move_block(_: Any, target: Any, source: Any) -> Any:
    """Load and store 64 bytes."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(ir.IntType(8), BLOCK_BYTES).as_pointer()
        to, of = (builder.inttoptr(address, kind) for address in arguments)
        builder.store(builder.load(of, align=1), to, align=1)
        return context.get_dummy_value()

    return types.void(target, source), generate


def _leading_zeros(_: Any, value: Any) -> Any:
    """Count the zero bits above the highest one of a value that is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.IntType(1)(1))

    return types.int64(value), generate


def _trailing_zeros(_: Any, value: Any) -> Any:
    """Count the zero bits below the lowest one of a value that is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(value), generate


def _marks(build: Callable[[Any, Any, Callable[[int], Any]], Any]) -> Callable[[int], int]:
    """Make the comparison of 64 bytes at any address: a bit for each, the first one lowest."""
    block = ir.VectorType(ir.IntType(8), BLOCK_BYTES)

    def compare(_: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], block.as_pointer())
            value = builder.load(pointer, align=1)
            marks = build(builder, value, lambda byte: ir.Constant(block, [byte] * BLOCK_BYTES))
            return builder.bitcast(marks, _WORD)

        return types.uint64(address), generate

    return cast("Callable[[int], int]", intrinsic(compare))


def _is_odd(builder: Any, value: Any, all_of: Callable[[int], Any]) -> Any:
    """Compare with what does not stand for itself in a JSON string, or is not ASCII."""
    beyond = builder.icmp_unsigned(">=", builder.sub(value, all_of(0x20)), all_of(0x60))
    quote = builder.icmp_unsigned("==", value, all_of(0x22))
    return builder.or_(builder.or_(beyond, quote), _is_backslash(builder, value, all_of))


def _is_backslash(builder: Any, value: Any, all_of: Callable[[int], Any]) -> Any:
    return builder.icmp_unsigned("==", value, all_of(0x5C))


_load_byte = _load(8, big=False)
_load_big_u16 = _load(16, big=True)
_load_big_u32 = _load(32, big=True)
_load_little_u32 = _load(32, big=False)
_load_little_u64 = _load(64, big=False)
_store_byte = _store(8, big=False)
_store_big_u16 = _store(16, big=True)
_store_big_u32 = _store(32, big=True)
_store_little_u32 = _store(32, big=False)
_store_little_u64 = _store(64, big=False)
_copy_bytes = cast("Callable[[int, int, int], None]", intrinsic(_move))
_count_leading_zeros = cast("Callable[[int], int]", intrinsic(_leading_zeros))
_count_trailing_zeros = cast("Callable[[int], int]", intrinsic(_trailing_zeros))
_copy_block = cast("Callable[[int, int], None]", intrinsic(_move_block))
_mark_odd = _marks(_is_odd)
_mark_backslashes = _marks(_is_backslash)


@inlined
def span(array: Array) -> Span:
    """Return the span of an array, which the caller keeps alive.

    A span can be stored to even where its array is read-only: that is for the view of a bytes
    object made for the kernel, which nobody has seen yet.
    """
    return int64(array.ctypes.data), int64(array.size * array.itemsize)


@inlined
def check(data: Span, at: int, size: int) -> None:
    """Refuse an access of `size` bytes at `at` that is not inside of the span."""
    if at < 0 or size < 0 or at > data[1] - size:
        raise IndexError("access outside of a span")


@inlined
def load_byte(data: Span, at: int) -> int:
    """Return the byte at `at`."""
    check(data, at, 1)
    return _load_byte(data[0] + at)


@inlined
def load_big(data: Span, at: int, width: int) -> int:
    """Return the 1, 2, 3 or 4 bytes at `at`, highest first."""
    check(data, at, width)
    address = data[0] + at
    if width == 2:
        return _load_big_u16(address)
    if width == 1:
        return _load_byte(address)
    if width == 3:
        return _load_byte(address) << 16 | _load_big_u16(address + 1)
    return _load_big_u32(address)


@inlined
def load_little_u32(data: Span, at: int) -> int:
    """Return the four bytes at `at`, lowest first."""
    check(data, at, 4)
    return _load_little_u32(data[0] + at)


@inlined
def load_little_u64(data: Span, at: int) -> int:
    """Return the eight bytes at `at`, lowest first, as an unsigned number."""
    check(data, at, 8)
    return uint64(_load_little_u64(data[0] + at))


@inlined
def load_word(words: Span, index: int) -> int:
    """Return the word of that index of an array of signed words."""
    check(words, 8 * index, 8)
    return _load_little_u64(words[0] + 8 * index)


@inlined
def store_word(words: Span, index: int, value: int) -> None:
    """Set the word of that index of an array of words."""
    check(words, 8 * index, 8)
    _store_little_u64(words[0] + 8 * index, int64(value))


@inlined
def store_byte(data: Span, at: int, value: int) -> None:
    """Store a byte."""
    check(data, at, 1)
    _store_byte(data[0] + at, int64(value))


@inlined
def store_big(data: Span, at: int, value: int, width: int) -> None:
    """Store 1, 2, 3 or 4 bytes, highest first."""
    check(data, at, width)
    address = data[0] + at
    if width == 2:
        _store_big_u16(address, value)
    elif width == 1:
        _store_byte(address, value)
    elif width == 3:
        _store_byte(address, value >> 16)
        _store_big_u16(address + 1, value)
    else:
        _store_big_u32(address, value)


@inlined
def store_little_u32(data: Span, at: int, value: int) -> None:
    """Store four bytes, lowest first."""
    check(data, at, 4)
    _store_little_u32(data[0] + at, value)


@inlined
def varint_size(value: int) -> int:
    """Return how many bytes protobuf's varint of an unsigned value takes."""
    return (70 - _count_leading_zeros(uint64(value) | uint64(1))) * 37 >> 8


@inlined
def store_varint(data: Span, at: int, value: int) -> int:
    """Store a varint and return the position behind it."""
    end = at + varint_size(value)
    check(data, at, end - at)
    rest = uint64(value)
    address = data[0] + at
    while rest > uint64(0x7F):
        _store_byte(address, int64(rest | uint64(0x80)))
        rest >>= uint64(7)
        address += 1
    _store_byte(address, int64(rest))
    return end


@inlined
def copy(target: Span, target_at: int, source: Span, source_at: int, size: int) -> None:
    """Copy bytes between spans that do not overlap."""
    check(target, target_at, size)
    check(source, source_at, size)
    _copy_bytes(target[0] + target_at, source[0] + source_at, size)


@inlined
def mark_odd(data: Span, at: int) -> int:
    """Return a bit for each of 64 bytes: set where JSON escapes it, and where it is not ASCII."""
    check(data, at, BLOCK_BYTES)
    return _mark_odd(data[0] + at)


@inlined
def mark_backslashes(data: Span, at: int) -> int:
    """Return a bit for each of 64 bytes."""
    check(data, at, BLOCK_BYTES)
    return _mark_backslashes(data[0] + at)


@inlined
def first_mark(marks: int) -> int:
    """Return which byte is the first that is marked; there must be one."""
    return _count_trailing_zeros(marks)


@inlined
def marks_from(marks: int, place: int) -> int:
    """Return the marks without those below a place, which may be beyond them all."""
    return marks >> uint64(place) << uint64(place) if place < BLOCK_BYTES else uint64(0)


@inlined
def copy_block(target: Span, target_at: int, source: Span, source_at: int) -> None:
    """Copy 64 bytes, by few instructions and no call."""
    check(target, target_at, BLOCK_BYTES)
    check(source, source_at, BLOCK_BYTES)
    _copy_block(target[0] + target_at, source[0] + source_at)

"""Compiles the kernels on first use, or takes them from numba's cache on disk.

numba is imported here, as late as possible: it takes most of a second, and a client never needs it.
The cache lies beside the sources, or below the user's cache directory where an installation is
read-only; NUMBA_CACHE_DIR moves it. Where nothing can be written, every process compiles anew.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.uint32]

NAMES: Final = (
    "metered_sizes",
    "cut_sequenced",
    "write_sequenced",
    "write_append",
    "scan_append",
)
HISTORY_NAMES: Final = (
    "scan_batches",
    "fill_columns",
    "plan_groups",
    "write_groups",
    "scan_pages",
    "unpack_hybrid",
    "unpack_delta",
    "place_plain",
    "place_lists",
)
JSON_NAMES: Final = ("survey_json", "write_json", "scan_json_append", "write_json_append")
JOIN_NAMES: Final = ("locate_runs", "survey_runs", "join_runs")
CLIENT_NAMES: Final = ("scan_read", "fill_read", "plan_inputs", "write_input")


# The sanctioned way to a bytes object whose content is still to be written.
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)


def blank(size: int) -> tuple[bytes, Bytes]:
    """Return a bytes object for a kernel to write, and its view; nobody may have seen it before."""
    target: bytes = _new_bytes(None, size)
    return target, np.frombuffer(target, np.uint8)


class _Lazy:
    """Kernels by name; the first use of one compiles it, for one signature and no other."""

    what: str

    def names(self) -> tuple[str, ...]:
        """Return the names of all."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name not in self.names():
            raise AttributeError(name)
        kernel = compile_kernel(name)
        setattr(self, name, kernel)
        return kernel

    def warm(self, say: Callable[[str], None]) -> None:
        """Make sure that every kernel is compiled; say so where that takes its time."""
        names = self.names()
        for number, name in enumerate(names, 1):
            if name in vars(self):
                continue
            kernel: Any = getattr(self, name)
            if kernel.stats.cache_hits:
                continue
            how_often = "once" if kernel.stats.cache_path else "at every start (no cache)"
            say(f"compiling the {self.what}, {how_often}: {number} of {len(names)} done")


class Kernels(_Lazy):
    """The kernels of the record codec."""

    what = "record codec"
    scan_append: Callable[[Bytes, Words, Words], int]
    write_append: Callable[[Bytes, Words, int, Bytes], int]
    cut_sequenced: Callable[
        [Bytes, int, int, Bytes, int, int, int, int, int, int, int], tuple[int, int, int]
    ]
    write_sequenced: Callable[[Bytes, int, int, Bytes, int, int, int, Bytes], int]
    metered_sizes: Callable[[Bytes, int, Sizes], int]

    def names(self) -> tuple[str, ...]:
        """Return the names of all."""
        return NAMES


class HistoryKernels(_Lazy):
    """The kernels of the history."""

    what = "codec of the history"
    scan_batches: Callable[[Bytes, Words, int, Bytes, Bytes, Bytes, Bytes, Words], int]
    fill_columns: Callable[[Bytes, Words, int, Bytes, Bytes, Bytes, Bytes, Bytes, Bytes], int]
    plan_groups: Callable[..., int]
    write_groups: Callable[..., int]
    scan_pages: Callable[[Bytes, Words, int, Words], int]
    unpack_hybrid: Callable[[Bytes, int, int, int, Bytes], int]
    unpack_delta: Callable[[Bytes, int, Bytes], int]
    place_plain: Callable[[Bytes, int, Bytes], int]
    place_lists: Callable[[Bytes, Bytes, int, int, Bytes], int]

    def names(self) -> tuple[str, ...]:
        """Return the names of all."""
        return HISTORY_NAMES


class JsonKernels(_Lazy):
    """The kernels of records as JSON."""

    what = "codec of JSON"
    survey_json: Callable[[Bytes, Bytes, Bytes, int, Bytes], tuple[int, int]]
    write_json: Callable[[Bytes, Bytes, Bytes, int, Bytes, Bytes, Bytes, Bytes], int]
    scan_json_append: Callable[[Bytes, int, Words, Words], int]
    write_json_append: Callable[[Bytes, Words, int, Bytes, Bytes], int]

    def names(self) -> tuple[str, ...]:
        """Return the names of all."""
        return JSON_NAMES


class JoinKernels(_Lazy):
    """The kernels that join runs."""

    what = "reader of small batches"
    locate_runs: Callable[[Bytes, Words, int, int, int, Words], int]
    survey_runs: Callable[[Words, int, int, int, int, int, Words], int]
    join_runs: Callable[[Words, int, Bytes, Words], int]

    def names(self) -> tuple[str, ...]:
        """Return the names of all."""
        return JOIN_NAMES


class ClientKernels(_Lazy):
    """The kernels of the client."""

    what = "codec of the client"
    scan_read: Callable[[Bytes, Words], int]
    fill_read: Callable[..., int]
    plan_inputs: Callable[..., int]
    write_input: Callable[..., int]

    def names(self) -> tuple[str, ...]:
        """Return the names of all."""
        return CLIENT_NAMES


def compile_kernel(name: str) -> Any:
    """Return a kernel as machine code."""
    from numba import njit  # noqa: PLC0415  see the module

    from bourn.layout.kernels import (  # noqa: PLC0415  they import numba
        append,
        from_json,
        from_pages,
        from_read,
        from_rows,
        joining,
        sequenced,
        to_append,
        to_json,
        to_rows,
    )

    function, signature = (
        append.KERNELS
        | sequenced.KERNELS
        | to_rows.KERNELS
        | from_rows.KERNELS
        | from_pages.KERNELS
        | from_read.KERNELS
        | to_append.KERNELS
        | to_json.KERNELS
        | from_json.KERNELS
        | joining.KERNELS
    )[name]
    try:
        return njit(signature, nogil=True, cache=True)(function)
    except (RuntimeError, OSError):
        # numba has found no directory for its cache, or could not write there.
        return njit(signature, nogil=True)(function)

"""The C library, called by machine code: what kernels that do system calls have in common."""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy.ma  # noqa: F401  numba asks for it at every first call; threads that import it at once fail
from numba import njit, types

Function = TypeVar("Function", bound=Callable[..., Any])

INT: Final = types.int32
LONG: Final = types.int64
ADDRESS: Final = types.uintp
_INT_POINTER: Final[Any] = cast("Any", types.CPointer)(INT)


def symbol(name: str, result: Any, *arguments: Any) -> Any:
    """Name a function of the C library; it is looked up when the code is loaded."""
    return types.ExternalFunction(name, result(*arguments))


def compiled(function: Function) -> Function:
    """Compile at the first call, or take it from numba's cache; it runs without the GIL."""
    try:
        return cast("Function", njit(nogil=True, cache=True)(function))
    except RuntimeError:  # no directory to keep machine code in: every process compiles anew
        return cast("Function", njit(nogil=True)(function))


errno_location: Final = symbol("__errno_location", _INT_POINTER)

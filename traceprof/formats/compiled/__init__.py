"""Load the library that `scripts/build_hook.py` compiles from the C files in this folder.

It exists in wheels for common platforms, and if a C compiler was available when traceprof was
installed. Otherwise callers use slower Python code with the same results.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

LIBRARY: Final = Path(__file__).with_name("compiled.library")
"""The library is not a Python module, so its name has no suffix of one."""

_A, _N, _I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_FUNCTIONS: Final = {
    "traceprof_decode": (
        *(_I, _A, _N, _N, _A, _A, _A, _N, _N, _A, _N, _A, _A, _A, _A, _A, _N, _A),
        _N,
    ),
    "traceprof_owners": (_N, _A, _I, _A, _N, _A, _A, _N),
    "traceprof_contains": (_N, _A, _A, _A, ctypes.c_char_p, _A, None),
    "traceprof_events": (
        *(_A, _N, _N, _N, _A, _A, _A, _A, _N, _A, _A, _A, _A, _A, _N, _A, _A, _A),
        _N,
    ),
}
"""Function → types of its arguments, and type of its result last, as in the C code."""

_VERSION: Final = 2
"""Version of these functions: a library of another version is not used."""


@cache
def loaded() -> Any:
    """Return the library; None if it is missing or unsuitable, or ``TRACEPROF_COMPILED`` is 0."""
    if os.environ.get("TRACEPROF_COMPILED") == "0" or not LIBRARY.exists():
        return None
    try:
        found = ctypes.CDLL(str(LIBRARY))
        if ctypes.c_int.in_dll(found, "traceprof_version").value != _VERSION:
            return None
        for name, (*arguments, result) in _FUNCTIONS.items():
            if hasattr(found, name):
                function = getattr(found, name)
                function.argtypes, function.restype = arguments, result
    except (OSError, AttributeError, ValueError):  # compiled for another kind of machine
        return None
    return found


def address(array: npt.NDArray[Any] | None) -> int | None:
    """Return the memory address of an array; None for None."""
    return None if array is None else array.ctypes.data


def addresses(arrays: Sequence[npt.NDArray[Any] | None]) -> Any:
    """Return the memory addresses of several arrays as a C array."""
    pointers = [address(array) for array in arrays]
    return (ctypes.c_void_p * len(pointers))(*pointers)

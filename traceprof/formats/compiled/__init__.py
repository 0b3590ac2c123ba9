"""The library that `scripts/build_hook.py` compiles of the C in this folder, where it was.

That is so in wheels for common platforms, and wherever a C compiler was at hand when traceprof was
installed. Everywhere else those who call it do the same without, slower.
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
"""No module of Python, so not of a name that says so."""

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
"""Their arguments, as the C has them, and what they return."""

_VERSION: Final = 2
"""Of these functions: a library that was compiled from other source is not called."""


@cache
def loaded() -> Any:
    """Return the library; None where there is none that fits, or ``TRACEPROF_COMPILED`` is 0."""
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
    except (OSError, AttributeError, ValueError):  # compiled for another machine
        return None
    return found


def address(array: npt.NDArray[Any] | None) -> int | None:
    """Return where an array lies."""
    return None if array is None else array.ctypes.data


def addresses(arrays: Sequence[npt.NDArray[Any] | None]) -> Any:
    """Return where each of some arrays lies, as an array of C."""
    told = [address(one) for one in arrays]
    return (ctypes.c_void_p * len(told))(*told)

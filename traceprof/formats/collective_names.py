"""One vocabulary for what PyTorch, NCCL and MPI call their data types."""

from __future__ import annotations

from typing import Final

from traceprof.model.collective_names import collective_op

__all__ = ["collective_op", "dtype_bytes", "dtype_name"]

_DTYPES: Final = {
    "float": ("float32", 4),
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "double": ("float64", 8),
    "long": ("int64", 8),
    "int": ("int32", 4),
    "short": ("int16", 2),
    "char": ("int8", 1),
    "byte": ("uint8", 1),
    "bool": ("bool", 1),
    "complexfloat": ("complex64", 8),
    "complexdouble": ("complex128", 16),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e5m2": ("float8_e5m2", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
}


def dtype_name(name: str) -> str:
    """Return torch's name of a data type that Kineto calls by its C++ name."""
    return _DTYPES.get(name.lower(), (name, 0))[0]


def dtype_bytes(name: str) -> int | None:
    """Return the size of one element; None for a data type that is not known."""
    found = _DTYPES.get(name.lower())
    return found[1] if found else None

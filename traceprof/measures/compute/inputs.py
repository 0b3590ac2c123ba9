"""Inputs of PyTorch operators, as Kineto writes them, and the work that follows from them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

_ELEMENT_BYTES: Final = {
    **dict.fromkeys(("double", "long", "long int", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short"), 2),
    **dict.fromkeys(("signed char", "unsigned char", "bool", "c10::Float8_e4m3fn"), 1),
    **dict.fromkeys(("c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz"), 1),
}
"""Bytes of an element by Kineto's type name."""
PRECISIONS: Final = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "signed char": "int8",
    **dict.fromkeys((name for name in _ELEMENT_BYTES if "Float8" in name), "fp8"),
}
NUMBER: Final = re.compile(r"-?\d+")

Sizes: TypeAlias = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one operator.

    * ``flops``: FLOPs that run.
    * ``model_flops``: FLOPs without recomputation (fused attention recomputes the scores in the
      backward pass).
    * ``n_bytes``: minimum number of bytes that the operator moves; NaN if unknown.
    * ``precision``: precision of the multiplications; "" if the operator multiplies no matrices or
      the precision is unknown.
    * ``is_from_torch``: PyTorch recorded the FLOPs and bytes.
    * ``shape``: sizes of a matrix product, convolution, or attention, for example
      "M=4096 N=1024 K=1024"; otherwise "".
    """

    flops: int = 0
    model_flops: int = 0
    n_bytes: float = math.nan
    precision: str = ""
    is_from_torch: bool = False
    shape: str = ""


class OperatorInputs:
    """Inputs of an operator: sizes and types of the tensors, and numbers and booleans as text."""

    def __init__(self, dims: str, types: str, concrete: str) -> None:
        self.dims: list[Any] = _parse_list(dims)
        self.types: list[Any] = _parse_list(types)
        self.concrete: list[Any] = _parse_list(concrete)

    def sizes(self, place: int) -> tuple[int, ...]:
        """Return the sizes of the tensor at an index.

        Raises:
            LookupError: The input is not a tensor with known sizes.
        """
        found = self.dims[place]
        if not found or not all(isinstance(size, int) and size >= 0 for size in found):
            raise LookupError
        return tuple(found)

    def element_bytes(self, place: int) -> float:
        """Return the bytes per element of a tensor; NaN if its type was not recorded."""
        return _ELEMENT_BYTES[self.types[place]] if place < len(self.types) else math.nan

    def n_bytes(self, *places: int) -> float:
        """Return the total bytes of some tensors; an absent tensor has 0 bytes."""
        given = [place for place in places if place < len(self.dims) and self.dims[place]]
        return sum(math.prod(self.sizes(place)) * self.element_bytes(place) for place in given)

    def precision(self, place: int) -> str:
        """Return the precision of a tensor; "" if its type was not recorded."""
        return PRECISIONS[self.types[place]] if place < len(self.types) else ""

    def text(self, place: int) -> str:
        """Return a number, boolean, or list as Kineto wrote it; "" if it was not recorded."""
        return str(self.concrete[place]) if place < len(self.concrete) else ""

    def numbers(self, place: int) -> list[int]:
        """Return the integers of a list.

        Raises:
            LookupError: The list was not recorded.
        """
        found = [int(text) for text in NUMBER.findall(self.text(place))]
        if not found:
            raise LookupError
        return found


WorkCounter: TypeAlias = Callable[[OperatorInputs], Work]
"""Calculates the work of an operator from its inputs; raises LookupError if it is unknown."""


def sizes_text(**sizes: int | str | None) -> str:
    """Return sizes as text, for example "M=64 N=32 K=16"; sizes that are None are omitted."""
    return " ".join(f"{name}={size}" for name, size in sizes.items() if size is not None)


def _parse_list(text: str) -> list[Any]:
    """Return a JSON list; [] for any other text."""
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []

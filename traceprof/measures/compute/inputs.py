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
    "c10::Float4_e2m1fn_x2": 1,
}
"""Bytes of an element by Kineto's type name."""
PRECISIONS: Final = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "signed char": "int8",
    **dict.fromkeys((name for name in _ELEMENT_BYTES if "Float8" in name), "fp8"),
    "c10::Float4_e2m1fn_x2": "fp4",
}
TENSOR_LIST: Final = "TensorList"
"""Kineto's type of a list of tensors, whose element type is not recorded."""
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
    """Inputs of an operator: sizes and types of the tensors, and numbers and booleans as text.

    ``list_bytes`` are the bytes per element of tensors in lists; NaN if unknown.
    """

    def __init__(self, dims: str, types: str, concrete: str, list_bytes: float = math.nan) -> None:
        self.list_bytes = list_bytes
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
        if place >= len(self.types):
            return math.nan
        of_type = self.types[place]
        return self.list_bytes if of_type == TENSOR_LIST else _ELEMENT_BYTES[of_type]

    def values_per_element(self, place: int) -> int:
        """Return 2 for tensors with two 4-bit numbers in each byte, otherwise 1."""
        return 2 if place < len(self.types) and self.types[place].endswith("_x2") else 1

    def is_tensor(self, place: int) -> bool:
        """Return whether an input is a tensor, also of one element without sizes, or a list."""
        if place >= len(self.dims):
            return False
        of_type = self.types[place] if place < len(self.types) else ""
        return bool(self.dims[place]) or of_type in _ELEMENT_BYTES

    def n_elements(self, place: int) -> int:
        """Return the number of elements of a tensor or of the tensors of a list.

        The number is 0 for absent tensors and for other inputs.

        Raises:
            LookupError: The sizes of a tensor are not numbers.
        """
        if not self.is_tensor(place):
            return 0
        found = self.dims[place]
        if found and all(isinstance(sizes, list) for sizes in found):
            return sum(math.prod(sizes) for sizes in found)
        return math.prod(self.sizes(place)) if found else 1

    def n_bytes(self, *places: int) -> float:
        """Return the total bytes of some tensors; an absent tensor has 0 bytes."""
        return sum(
            n * self.element_bytes(place) for place in places if (n := self.n_elements(place))
        )

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

"""FLOPs and minimum memory traffic of PyTorch operators, calculated from their inputs.

A multiply-add counts as two FLOPs. Only matrix products, convolutions, and attention are counted,
as in torch.utils.flop_counter. There are three differences from that counter: FLOPs that a causal
mask hides do not count, queries can have more heads than keys, and groups of a convolution count
once. Bytes are a minimum: every input is read once, every output is written once. The work of an
operator is unknown if it is not listed here or its inputs were not recorded. traceprof never
guesses work from the name of a kernel.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

_ELEMENT_BYTES: Final = {
    **dict.fromkeys(("double", "long", "long int", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short"), 2),
    **dict.fromkeys(("signed char", "unsigned char", "bool", "c10::Float8_e4m3fn"), 1),
    **dict.fromkeys(("c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz"), 1),
}
"""Bytes of an element by Kineto's type name."""
_PRECISIONS: Final = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "signed char": "int8",
    **dict.fromkeys((name for name in _ELEMENT_BYTES if "Float8" in name), "fp8"),
}
_NUMBER: Final = re.compile(r"-?\d+")

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
    """

    flops: int = 0
    model_flops: int = 0
    n_bytes: float = math.nan
    precision: str = ""
    is_from_torch: bool = False


class _Inputs:
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
        return _PRECISIONS[self.types[place]] if place < len(self.types) else ""

    def text(self, place: int) -> str:
        """Return a number, boolean, or list as Kineto wrote it; "" if it was not recorded."""
        return str(self.concrete[place]) if place < len(self.concrete) else ""

    def numbers(self, place: int) -> list[int]:
        """Return the integers of a list.

        Raises:
            LookupError: The list was not recorded.
        """
        found = [int(text) for text in _NUMBER.findall(self.text(place))]
        if not found:
            raise LookupError
        return found


def _parse_list(text: str) -> list[Any]:
    """Return a JSON list; [] for any other text."""
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def first_sizes(dims: str) -> tuple[int, ...]:
    """Return the sizes of the first input of an operator; () if they are unknown."""
    try:
        return _Inputs(dims, "", "").sizes(0)
    except (LookupError, TypeError):  # no tensor
        return ()


@lru_cache(maxsize=65536)
def work_of(
    name: str, dims: str, types: str, concrete: str, flop: str = "", gigabytes: str = ""
) -> Work | None:
    """Return the work of an operator, from the sizes, types, and values of its inputs.

    ``dims``, ``types`` and ``concrete`` are JSON lists, as Kineto writes them. ``flop`` and
    ``gigabytes`` are PyTorch's own numbers for the operator. They are used if the sizes do not
    determine the work. Return None if the work is unknown.
    """
    count = OPERATORS.get(name.removesuffix("_") if name.startswith("aten::") else name)
    given = _Inputs(dims, types, concrete)
    try:
        if count is not None:
            return count(given)
    except (LookupError, TypeError, ValueError):  # an input without sizes or of another type
        pass
    flops, moved = _parse_positive(flop), _parse_positive(gigabytes) * 1e9
    if math.isnan(flops) and math.isnan(moved):
        return None
    n = 0 if math.isnan(flops) else round(flops)
    precisions = (_PRECISIONS[type_name] for type_name in given.types if type_name in _PRECISIONS)
    return Work(n, n, moved, next(precisions, "") if n else "", is_from_torch=True)


def _parse_positive(text: str) -> float:
    """Return the positive number that PyTorch wrote; NaN if it wrote none."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if 0 < number < math.inf else math.nan


WorkCounter: TypeAlias = Callable[[_Inputs], Work]
"""Calculates the work of an operator from its inputs; raises LookupError if it is unknown."""


def _matrix_product(left: int, right: int) -> WorkCounter:
    """Return the counter of a (batched) matrix product of the inputs at these indices."""

    def count(given: _Inputs) -> Work:
        a, b = given.sizes(left), given.sizes(right)
        if len(b) == 1:
            b = (*b, 1)
        (m, k), (same, n) = a[-2:], b[-2:]
        if k != same or a[:-2] != b[:-2]:
            raise LookupError
        batch = math.prod(a[:-2])
        out = batch * m * n * given.element_bytes(left)
        flops = 2 * batch * m * n * k
        return Work(flops, flops, given.n_bytes(left, right) + out, given.precision(left))

    return count


def _grouped_product(ends: int) -> WorkCounter:
    """Return the counter of the matrix products of experts (grouped GEMM).

    The input at index ``ends`` has one number per expert. A 2-D input contains the tokens of all
    experts one after the other; each token takes part in one product.
    """

    def count(given: _Inputs) -> Work:
        a, b = given.sizes(0), given.sizes(1)
        if {len(a), len(b)} - {2, 3} or a[-1] != b[-2]:
            raise LookupError
        n_experts = 1 if len(a) != len(b) else a[0] if len(a) == 3 else given.sizes(ends)[0]
        flops = 2 * math.prod(a) * b[-1] // (a[0] if len(a) > len(b) else 1)
        out = n_experts * a[-2] * b[-1] * given.element_bytes(0)
        return Work(flops, flops, given.n_bytes(0, 1) + out, given.precision(0))

    return count


def _convolution(x: int, w: int, places: Sequence[int]) -> WorkCounter:
    """Return the counter of a convolution of input ``x`` and weights ``w``.

    ``places`` are the indices of stride, padding, and dilation, optionally followed by those of
    transposed, output padding, and groups.
    """

    def count(given: _Inputs) -> Work:
        inputs, weights = given.sizes(x), given.sizes(w)
        is_transposed = len(places) > 3 and given.text(places[3]) in ("True", "true")
        if len(places) > 3 and not given.text(places[3]):
            raise LookupError
        spatial = inputs[2:]
        stride, padding, dilation = (
            _expand(given.numbers(place), len(spatial)) for place in places[:3]
        )
        ends = zip(spatial, weights[2:], stride, padding, dilation, strict=True)
        if not is_transposed:
            out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in ends]
            channels, n_positions = weights[0], math.prod(out)
        else:
            output_padding = _expand(given.numbers(places[4]), len(spatial))
            unpadded = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in ends]
            out = [size + extra for size, extra in zip(unpadded, output_padding, strict=True)]
            channels = weights[1] * given.numbers(places[5])[0]
            n_positions = math.prod(spatial)
        flops = 2 * inputs[0] * math.prod(weights) * n_positions
        written = inputs[0] * channels * math.prod(out) * given.element_bytes(x)
        return Work(flops, flops, given.n_bytes(x, w) + written, given.precision(x))

    return count


def _expand(values: list[int], n: int) -> list[int]:
    """Return one value per dimension; a single value applies to all ``n`` dimensions."""
    return values * n if len(values) == 1 else values


def _convolution_backward(
    grad: int, x: int, w: int, mask: int, transposed: int = -1
) -> WorkCounter:
    """Return the counter of a convolution's backward pass.

    The gradients of the input and of the weights need the same FLOPs each. The output mask at index
    ``mask`` says which of them are computed.
    """

    def count(given: _Inputs) -> Work:
        out, inputs, weights = (given.sizes(place) for place in (grad, x, w))
        is_transposed = transposed >= 0 and given.text(transposed) in ("True", "true")
        flags = [text in ("True", "true") for text in re.findall(r"\w+", given.text(mask))]
        if not flags:
            raise LookupError
        wanted = flags[:2]
        n_positions = math.prod((inputs if is_transposed else out)[2:])
        flops = sum(wanted) * 2 * out[0] * math.prod(weights) * n_positions
        moved = given.n_bytes(grad) * sum(wanted)
        moved += 2 * sum(
            given.n_bytes(index)
            for index, is_wanted in zip((x, w), wanted, strict=True)
            if is_wanted
        )
        return Work(flops, flops, moved, given.precision(x))

    return count


def _attention(
    first: int, causal: int, *, is_heads_first: bool = True, is_backward: bool = False
) -> WorkCounter:
    """Return the counter of attention with queries at index ``first``, then keys, then values.

    ``causal`` is the index of the flag that hides later keys. If the flag was not recorded, every
    key counts, as in torch's counter. The work of packed sequences (3-D inputs) is unknown, since
    their lengths are not recorded.
    """

    def count(given: _Inputs) -> Work:
        q, k, v = (given.sizes(first + offset) for offset in range(3))
        batch, heads, n_queries = q[0], *(q[1:3] if is_heads_first else (q[2], q[1]))
        n_keys = k[2] if is_heads_first else k[1]
        if not len(q) == len(k) == len(v) == 4 or q[3] != k[3]:
            raise LookupError
        pairs = n_queries * n_keys
        if given.text(causal) in ("True", "true", "1", "2"):
            hidden = min(n_queries, n_keys)
            pairs = n_queries * (n_keys - hidden) + hidden * (hidden + 1) // 2
        scores, values = 2 * batch * heads * pairs * q[3], 2 * batch * heads * pairs * v[3]
        forward = scores + values
        moved = given.n_bytes(first, first + 1, first + 2)
        out = math.prod(q[:3]) * v[3] * given.element_bytes(first)
        precision = given.precision(first)
        if not is_backward:
            return Work(forward, forward, moved + out, precision)
        # Five products: scores (recomputed), dQ, dK (key width), and dV, dP (value width).
        return Work(3 * scores + 2 * values, 2 * forward, 2 * (moved + out), precision)

    return count


def _count_moved(*read: int, written: Sequence[int] = ()) -> WorkCounter:
    """Return the counter of the bytes of the inputs at indices ``read`` and ``written``.

    An output has the size of the input at its index in ``written``.
    """

    def count(given: _Inputs) -> Work:
        return Work(n_bytes=given.n_bytes(*read) + sum(given.n_bytes(place) for place in written))

    return count


def _count_broadcast(given: _Inputs) -> Work:
    """Count the bytes of up to three tensors that are read and of their broadcast result."""
    places = [p for p in range(min(3, len(given.dims))) if given.dims[p]]
    shapes = [given.sizes(place) for place in places]
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = math.prod(max(axis) for axis in zip(*padded, strict=True))
    return Work(n_bytes=given.n_bytes(*places) + out * max(map(given.element_bytes, places)))


def _count_embedding(given: _Inputs) -> Work:
    """Count the bytes of the token numbers, and of the rows that are read and written."""
    n_tokens, width = math.prod(given.sizes(1)), given.sizes(0)[-1]
    return Work(n_bytes=given.n_bytes(1) + 2 * n_tokens * width * given.element_bytes(0))


GROUPED_PRODUCTS: Final = {"aten::_grouped_mm": 2, "aten::_scaled_grouped_mm": 4}
"""Matrix products of experts, and the index of the input with the end of each expert's tokens."""
_UNARY: Final = _count_moved(0, written=(0,))
_UNARY_BACKWARD: Final = _count_moved(0, 1, written=(0,))
OPERATORS: Final[dict[str, WorkCounter]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::_int_mm"), _matrix_product(0, 1)),
    "aten::_scaled_mm": _matrix_product(0, 1),
    **dict.fromkeys(("aten::addmm", "aten::_addmm_activation"), _matrix_product(1, 2)),
    **dict.fromkeys(("aten::baddbmm", "aten::addmv"), _matrix_product(1, 2)),
    **{name: _grouped_product(ends) for name, ends in GROUPED_PRODUCTS.items()},
    **dict.fromkeys(
        ("aten::convolution", "aten::_convolution"), _convolution(0, 1, (3, 4, 5, 6, 7, 8))
    ),
    "aten::cudnn_convolution": _convolution(0, 1, (3, 2, 4)),
    "aten::miopen_convolution": _convolution(0, 1, (4, 3, 5)),
    "aten::convolution_backward": _convolution_backward(0, 1, 2, 10, 7),
    "aten::cudnn_convolution_backward": _convolution_backward(1, 0, 2, 10),
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(0, 4),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11, is_backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(
        1, 7, is_backward=True
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 11, is_backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, 14, is_backward=True),
    "aten::_flash_attention_forward": _attention(0, 8, is_heads_first=False),
    "aten::_flash_attention_backward": _attention(1, 11, is_heads_first=False, is_backward=True),
    "aten::_efficient_attention_forward": _attention(0, 9, is_heads_first=False),
    "aten::_efficient_attention_backward": _attention(
        1, 14, is_heads_first=False, is_backward=True
    ),
    "flash_attn::_flash_attn_forward": _attention(0, 5, is_heads_first=False),
    "flash_attn::_flash_attn_backward": _attention(1, 11, is_heads_first=False, is_backward=True),
    **dict.fromkeys(
        [
            *(f"aten::{name}" for name in ("relu", "gelu", "silu", "sigmoid", "tanh", "exp")),
            *(f"aten::{name}" for name in ("log", "sqrt", "rsqrt", "neg", "abs", "pow", "clamp")),
            *(f"aten::{name}" for name in ("_softmax", "_log_softmax", "clone", "leaky_relu")),
        ],
        _UNARY,
    ),
    **dict.fromkeys(
        [f"aten::{name}_backward" for name in ("gelu", "silu", "sigmoid", "tanh", "threshold")]
        + ["aten::_softmax_backward_data", "aten::_log_softmax_backward_data"],
        _UNARY_BACKWARD,
    ),
    **dict.fromkeys(("aten::copy",), _count_moved(0, 1)),
    **dict.fromkeys(("aten::fill", "aten::zero", "aten::sum", "aten::mean"), _count_moved(0)),
    **dict.fromkeys(
        [f"aten::{name}" for name in ("add", "sub", "mul", "div", "where", "addcmul", "addcdiv")],
        _count_broadcast,
    ),
    "aten::native_layer_norm": _count_moved(0, 2, 3, written=(0,)),
    "aten::native_layer_norm_backward": _count_moved(0, 1, 5, written=(1, 5, 6)),
    **dict.fromkeys(
        ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"),
        _count_moved(0, 1, 2, written=(0,)),
    ),
    **dict.fromkeys(
        ("aten::native_batch_norm_backward", "aten::miopen_batch_norm_backward"),
        _count_moved(0, 1, 2, written=(1,)),
    ),
    "aten::cudnn_batch_norm_backward": _count_moved(0, 1, 2, written=(0,)),
    "aten::embedding": _count_embedding,
}
"""Counter of each operator by name. An operator inside another listed one is not counted."""

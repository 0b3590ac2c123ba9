"""How many FLOPs an operator of PyTorch does, and how many bytes it must move: from its inputs.

A multiply-add is two FLOPs. Only matrix products, convolutions and attention are counted, as
torch.utils.flop_counter does; unlike there, what a causal mask hides is not, queries may have
more heads than keys, and groups of a convolution count once. Bytes are the fewest that the
operator can move: every input read once, every output written once. What is not listed here, or
does not say what it was given, is not known: nothing is ever guessed from the name of a kernel.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

_BYTES: Final = {
    **dict.fromkeys(("double", "long", "long int", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short"), 2),
    **dict.fromkeys(("signed char", "unsigned char", "bool", "c10::Float8_e4m3fn"), 1),
    **dict.fromkeys(("c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz"), 1),
}
"""Of an element, by what Kineto calls its type."""
_PRECISIONS: Final = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "signed char": "int8",
    **dict.fromkeys((name for name in _BYTES if "Float8" in name), "fp8"),
}
_NUMBER: Final = re.compile(r"-?\d+")

Sizes: TypeAlias = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Work:
    """What one operator does.

    ``flops`` are those that run, ``model_flops`` the same without what is computed again (the
    scores, in the backward pass of fused attention); ``n_bytes`` are the fewest that it moves
    (NaN: not known), ``precision`` what it multiplies in ("" for what multiplies no matrices, or
    does not say it). ``is_told``: PyTorch itself wrote the numbers.
    """

    flops: int = 0
    model_flops: int = 0
    n_bytes: float = math.nan
    precision: str = ""
    is_told: bool = False


class _Inputs:
    """What an operator was given: sizes and types of tensors, the texts of numbers and truths."""

    def __init__(self, dims: str, types: str, concrete: str) -> None:
        self.dims: list[Any] = _listed(dims)
        self.types: list[Any] = _listed(types)
        self.concrete: list[Any] = _listed(concrete)

    def sizes(self, place: int) -> tuple[int, ...]:
        """Return the sizes of a tensor; raises LookupError where there is none."""
        found = self.dims[place]
        if not found or not all(isinstance(size, int) and size >= 0 for size in found):
            raise LookupError
        return tuple(found)

    def width(self, place: int) -> float:
        """Return the bytes of an element of a tensor; NaN where its type was not recorded."""
        return _BYTES[self.types[place]] if place < len(self.types) else math.nan

    def n_bytes(self, *places: int) -> float:
        """Return the bytes of some tensors; one that is not there has none."""
        given = [place for place in places if place < len(self.dims) and self.dims[place]]
        return sum(math.prod(self.sizes(place)) * self.width(place) for place in given)

    def precision(self, place: int) -> str:
        """Return what a tensor is multiplied in; "" where its type was not recorded."""
        return _PRECISIONS[self.types[place]] if place < len(self.types) else ""

    def texts(self, place: int) -> str:
        """Return what a number, a truth or a list of them is written as; "" where it is not."""
        return str(self.concrete[place]) if place < len(self.concrete) else ""

    def numbers(self, place: int) -> list[int]:
        """Return the whole numbers of a list; raises LookupError where it was not recorded."""
        found = [int(text) for text in _NUMBER.findall(self.texts(place))]
        if not found:
            raise LookupError
        return found


def _listed(text: str) -> list[Any]:
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []


@lru_cache(maxsize=65536)
def work_of(
    name: str, dims: str, types: str, concrete: str, flop: str = "", gigabytes: str = ""
) -> Work | None:
    """Return what an operator does that was given inputs of these sizes, types and values.

    All three are JSON lists, as Kineto writes them; ``flop`` and ``gigabytes`` are what PyTorch
    wrote of the operator itself: it counts where sizes do not tell. None where it is not known.
    """
    count = OPERATORS.get(name.removesuffix("_") if name.startswith("aten::") else name)
    given = _Inputs(dims, types, concrete)
    try:
        if count is not None:
            return count(given)
    except (LookupError, TypeError, ValueError):  # a tensor without sizes, of another kind
        pass
    flops, moved = _told(flop), _told(gigabytes) * 1e9
    if math.isnan(flops) and math.isnan(moved):
        return None
    n = 0 if math.isnan(flops) else round(flops)
    types_known = (_PRECISIONS[own] for own in given.types if own in _PRECISIONS)
    return Work(n, n, moved, next(types_known, "") if n else "", is_told=True)


def _told(text: str) -> float:
    """Return a number above 0 as PyTorch wrote it; NaN: it wrote none."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if 0 < number < math.inf else math.nan


Counting: TypeAlias = Callable[[_Inputs], Work]


def _product(left: int, right: int) -> Counting:
    """Return what counts a matrix product of the inputs at these places; of a batch, too."""

    def count(given: _Inputs) -> Work:
        a, b = given.sizes(left), given.sizes(right)
        if len(b) == 1:
            b = (*b, 1)
        (m, k), (same, n) = a[-2:], b[-2:]
        if k != same or a[:-2] != b[:-2]:
            raise LookupError
        batch = math.prod(a[:-2])
        out = batch * m * n * given.width(left)
        flops = 2 * batch * m * n * k
        return Work(flops, flops, given.n_bytes(left, right) + out, given.precision(left))

    return count


def _grouped_product(ends: int) -> Counting:
    """Return what counts the products of experts; the input at ``ends`` has a number for each.

    In an input of two sizes tokens of all experts lie one behind the other, each in one product.
    """

    def count(given: _Inputs) -> Work:
        a, b = given.sizes(0), given.sizes(1)
        if {len(a), len(b)} - {2, 3} or a[-1] != b[-2]:
            raise LookupError
        n_experts = 1 if len(a) != len(b) else a[0] if len(a) == 3 else given.sizes(ends)[0]
        flops = 2 * math.prod(a) * b[-1] // (a[0] if len(a) > len(b) else 1)
        out = n_experts * a[-2] * b[-1] * given.width(0)
        return Work(flops, flops, given.n_bytes(0, 1) + out, given.precision(0))

    return count


def _convolution(x: int, w: int, at: Sequence[int]) -> Counting:
    """Return what counts a convolution.

    ``at`` are the places of stride, padding and dilation, and of "transposed", "output padding".
    """

    def count(given: _Inputs) -> Work:
        inputs, weights = given.sizes(x), given.sizes(w)
        is_transposed = len(at) > 3 and given.texts(at[3]) in ("True", "true")
        if len(at) > 3 and not given.texts(at[3]):
            raise LookupError
        spatial = inputs[2:]
        stride, padding, dilation = (
            _for_each(given.numbers(place), len(spatial)) for place in at[:3]
        )
        if not is_transposed:
            ends = zip(spatial, weights[2:], stride, padding, dilation, strict=True)
            out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in ends]
            channels, per = weights[0], math.prod(out)
        else:
            more = _for_each(given.numbers(at[4]), len(spatial))
            ends = zip(spatial, weights[2:], stride, padding, dilation, strict=True)
            grown = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in ends]
            out = [size + one for size, one in zip(grown, more, strict=True)]
            channels = weights[1] * given.numbers(at[5])[0]
            per = math.prod(spatial)
        flops = 2 * inputs[0] * math.prod(weights) * per
        written = inputs[0] * channels * math.prod(out) * given.width(x)
        return Work(flops, flops, given.n_bytes(x, w) + written, given.precision(x))

    return count


def _for_each(values: list[int], n: int) -> list[int]:
    return values * n if len(values) == 1 else values


def _convolution_backward(grad: int, x: int, w: int, mask: int, transposed: int = -1) -> Counting:
    """Return what counts the backward pass: for the input and for the weights as much each."""

    def count(given: _Inputs) -> Work:
        out, inputs, weights = (given.sizes(place) for place in (grad, x, w))
        is_transposed = transposed >= 0 and given.texts(transposed) in ("True", "true")
        asked = [text in ("True", "true") for text in re.findall(r"\w+", given.texts(mask))]
        wanted = asked[:2]
        if not asked:
            raise LookupError
        per = math.prod((inputs if is_transposed else out)[2:])
        flops = sum(wanted) * 2 * out[0] * math.prod(weights) * per
        moved = given.n_bytes(grad) * sum(wanted)
        moved += 2 * sum(
            given.n_bytes(own) for own, is_asked in zip((x, w), wanted, strict=True) if is_asked
        )
        return Work(flops, flops, moved, given.precision(x))

    return count


def _attention(
    first: int, causal: int, *, is_heads_first: bool = True, is_backward: bool = False
) -> Counting:
    """Return what counts attention whose queries stand at ``first``, keys and values behind.

    ``causal`` is the place of what says whether later keys are hidden; where that was not
    recorded they count, as in torch's own counter. Sequences packed one behind the other
    (three sizes) do not tell how long each is.
    """

    def count(given: _Inputs) -> Work:
        q, k, v = (given.sizes(first + own) for own in range(3))
        batch, heads, n_queries = q[0], *(q[1:3] if is_heads_first else (q[2], q[1]))
        n_keys = k[2] if is_heads_first else k[1]
        if not len(q) == len(k) == len(v) == 4 or q[3] != k[3]:
            raise LookupError
        pairs = n_queries * n_keys
        if given.texts(causal) in ("True", "true", "1", "2"):
            hidden = min(n_queries, n_keys)
            pairs = n_queries * (n_keys - hidden) + hidden * (hidden + 1) // 2
        scores, values = 2 * batch * heads * pairs * q[3], 2 * batch * heads * pairs * v[3]
        forward = scores + values
        moved = given.n_bytes(first, first + 1, first + 2)
        out = math.prod(q[:3]) * v[3] * given.width(first)
        precision = given.precision(first)
        if not is_backward:
            return Work(forward, forward, moved + out, precision)
        # Scores (again), of dV and dP with the width of values, of dQ and dK with that of keys.
        return Work(3 * scores + 2 * values, 2 * forward, 2 * (moved + out), precision)

    return count


def _moved(*read: int, times: Sequence[int] = ()) -> Counting:
    """Return what counts the bytes of inputs that are read, and of those written at ``times``."""

    def count(given: _Inputs) -> Work:
        return Work(n_bytes=given.n_bytes(*read) + sum(given.n_bytes(own) for own in times))

    return count


def _broadcast(given: _Inputs) -> Work:
    """Count what is read of up to three tensors and written once, as large as all together."""
    places = [p for p in range(min(3, len(given.dims))) if given.dims[p]]
    sizes = [given.sizes(place) for place in places]
    rank = max(map(len, sizes))
    padded = [(1,) * (rank - len(own)) + own for own in sizes]
    out = math.prod(max(axis) for axis in zip(*padded, strict=True))
    return Work(n_bytes=given.n_bytes(*places) + out * max(map(given.width, places)))


def _embedding(given: _Inputs) -> Work:
    n_tokens, width = math.prod(given.sizes(1)), given.sizes(0)[-1]
    return Work(n_bytes=given.n_bytes(1) + 2 * n_tokens * width * given.width(0))


GROUPED: Final = {"aten::_grouped_mm": 2, "aten::_scaled_grouped_mm": 4}
"""Products of experts, and the input that tells where the tokens of each end."""
_PLAIN: Final = _moved(0, times=(0,))
_GRADIENT: Final = _moved(0, 1, times=(0,))
OPERATORS: Final[dict[str, Counting]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::_int_mm"), _product(0, 1)),
    "aten::_scaled_mm": _product(0, 1),
    **dict.fromkeys(("aten::addmm", "aten::_addmm_activation"), _product(1, 2)),
    **dict.fromkeys(("aten::baddbmm", "aten::addmv"), _product(1, 2)),
    **{name: _grouped_product(ends) for name, ends in GROUPED.items()},
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
        _PLAIN,
    ),
    **dict.fromkeys(
        [f"aten::{name}_backward" for name in ("gelu", "silu", "sigmoid", "tanh", "threshold")]
        + ["aten::_softmax_backward_data", "aten::_log_softmax_backward_data"],
        _GRADIENT,
    ),
    **dict.fromkeys(("aten::copy",), _moved(0, 1)),
    **dict.fromkeys(("aten::fill", "aten::zero", "aten::sum", "aten::mean"), _moved(0)),
    **dict.fromkeys(
        [f"aten::{name}" for name in ("add", "sub", "mul", "div", "where", "addcmul", "addcdiv")],
        _broadcast,
    ),
    "aten::native_layer_norm": _moved(0, 2, 3, times=(0,)),
    "aten::native_layer_norm_backward": _moved(0, 1, 5, times=(1, 5, 6)),
    **dict.fromkeys(
        ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"),
        _moved(0, 1, 2, times=(0,)),
    ),
    **dict.fromkeys(
        ("aten::native_batch_norm_backward", "aten::miopen_batch_norm_backward"),
        _moved(0, 1, 2, times=(1,)),
    ),
    "aten::cudnn_batch_norm_backward": _moved(0, 1, 2, times=(0,)),
    "aten::embedding": _embedding,
}
"""What counts each operator; one that calls another of these is counted, and the other is not."""

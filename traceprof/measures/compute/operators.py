"""FLOPs and minimum memory traffic of PyTorch operators, calculated from their inputs.

A multiply-add counts as two FLOPs. Only matrix products, convolutions, and attention are counted,
as in torch.utils.flop_counter. There are three differences from that counter: FLOPs that a causal
mask hides do not count, queries can have more heads than keys, and groups of a convolution count
once. Bytes are a minimum: every input is read once, every output is written once. The work of an
operator is unknown if it is not listed here or its inputs were not recorded. traceprof never
guesses work from the name of a kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from traceprof.measures.compute.inputs import (
    NUMBER,
    PRECISIONS,
    OperatorInputs,
    Sizes,
    Work,
    WorkCounter,
    sizes_text,
)
from traceprof.measures.compute.moved import MEMORY_BOUND


def _convolution_text(inputs: Sizes, weights: Sizes, stride: str = "") -> str:
    """Return the sizes of a convolution: batch, input size, filter, and stride, if known."""
    strides = dict.fromkeys(NUMBER.findall(stride))
    image, kernel = ("×".join(map(str, sizes[2:])) for sizes in (inputs, weights))
    return sizes_text(
        N=inputs[0],
        C=inputs[1],
        image=image,
        filters=weights[0],
        filter=kernel,
        stride="×".join(strides) if strides and strides.keys() != {"1"} else None,
    )


def first_sizes(dims: str) -> tuple[int, ...]:
    """Return the sizes of the first input of an operator; () if they are unknown."""
    try:
        return OperatorInputs(dims, "", "").sizes(0)
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
    given = OperatorInputs(dims, types, concrete)
    try:
        if count is not None:
            return count(given)
    except (LookupError, TypeError, ValueError):  # an input without sizes or of another type
        pass
    flops, moved = _parse_positive(flop), _parse_positive(gigabytes) * 1e9
    if math.isnan(flops) and math.isnan(moved):
        return None
    n = 0 if math.isnan(flops) else round(flops)
    precisions = (PRECISIONS[type_name] for type_name in given.types if type_name in PRECISIONS)
    return Work(n, n, moved, next(precisions, "") if n else "", is_from_torch=True)


def _parse_positive(text: str) -> float:
    """Return the positive number that PyTorch wrote; NaN if it wrote none."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if 0 < number < math.inf else math.nan


def _matrix_product(left: int, right: int) -> WorkCounter:
    """Return the counter of a (batched) matrix product of the inputs at these indices."""

    def count(given: OperatorInputs) -> Work:
        a, b = given.sizes(left), given.sizes(right)
        if len(b) == 1:
            b = (*b, 1)
        (m, k), (same, n) = a[-2:], b[-2:]
        if k != same or a[:-2] != b[:-2]:
            raise LookupError
        batch = math.prod(a[:-2])
        out = batch * m * n * given.element_bytes(left)
        flops = 2 * batch * m * n * k
        moved = given.n_bytes(left, right) + out
        shape = sizes_text(batch=batch if batch > 1 else None, M=m, N=n, K=k)
        return Work(flops, flops, moved, given.precision(left), shape=shape)

    return count


def _grouped_product(ends: int) -> WorkCounter:
    """Return the counter of the matrix products of experts (grouped GEMM).

    The input at index ``ends`` has one number per expert. A 2-D input contains the tokens of all
    experts one after the other; each token takes part in one product.
    """

    def count(given: OperatorInputs) -> Work:
        a, b = given.sizes(0), given.sizes(1)
        if {len(a), len(b)} - {2, 3} or a[-1] != b[-2]:
            raise LookupError
        n_experts = 1 if len(a) != len(b) else a[0] if len(a) == 3 else given.sizes(ends)[0]
        flops = 2 * math.prod(a) * b[-1] // (a[0] if len(a) > len(b) else 1)
        out = n_experts * a[-2] * b[-1] * given.element_bytes(0)
        moved = given.n_bytes(0, 1) + out
        with_experts = [sizes[0] for sizes in (a, b) if len(sizes) == 3] or given.sizes(ends)
        shape = sizes_text(experts=with_experts[0], M=a[-2], N=b[-1], K=a[-1])
        return Work(flops, flops, moved, given.precision(0), shape=shape)

    return count


def _convolution(x: int, w: int, places: Sequence[int]) -> WorkCounter:
    """Return the counter of a convolution of input ``x`` and weights ``w``.

    ``places`` are the indices of stride, padding, and dilation, optionally followed by those of
    transposed, output padding, and groups.
    """

    def count(given: OperatorInputs) -> Work:
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
        shape = _convolution_text(inputs, weights, given.text(places[0]))
        moved = given.n_bytes(x, w) + written
        return Work(flops, flops, moved, given.precision(x), shape=shape)

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

    def count(given: OperatorInputs) -> Work:
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
        shape = _convolution_text(inputs, weights)
        return Work(flops, flops, moved, given.precision(x), shape=shape)

    return count


def _attention(
    first: int,
    causal: int,
    *,
    is_top_left: bool = False,
    is_heads_first: bool = True,
    is_backward: bool = False,
) -> WorkCounter:
    """Return the counter of attention with queries at index ``first``, then keys, then values.

    ``causal`` is the index of the flag that hides later keys. If the flag was not recorded, every
    key counts, as in torch's counter. The work of packed sequences (3-D inputs) is unknown, since
    their lengths are not recorded.

    ``is_top_left``: the operator aligns a causal mask at the first query and key, so that query i
    sees keys 0 to i. FlashAttention on GPUs aligns it at the last ones (torch.nn.attention.bias).
    A flag of 1 (top left) or 2 (bottom right) says it itself.
    """

    def count(given: OperatorInputs) -> Work:
        q, k, v = (given.sizes(first + offset) for offset in range(3))
        batch, heads, n_queries = q[0], *(q[1:3] if is_heads_first else (q[2], q[1]))
        n_keys = k[2] if is_heads_first else k[1]
        if not len(q) == len(k) == len(v) == 4 or q[3] != k[3]:
            raise LookupError
        pairs, mask = n_queries * n_keys, given.text(causal)
        is_causal = mask in ("True", "true", "1", "2")
        if is_causal:
            starts_together = mask == "1" or (is_top_left and mask != "2")
            # Beyond the triangle, the last queries see every key (top left), or every query sees
            # the first keys.
            square = min(n_queries, n_keys)
            rest = (n_queries if starts_together else n_keys) - square
            pairs = square * (square + 1) // 2 + square * rest
        scores, values = 2 * batch * heads * pairs * q[3], 2 * batch * heads * pairs * v[3]
        forward = scores + values
        moved = given.n_bytes(first, first + 1, first + 2)
        out = math.prod(q[:3]) * v[3] * given.element_bytes(first)
        precision = given.precision(first)
        n_key_heads = k[1] if is_heads_first else k[2]
        shape = sizes_text(
            B=batch,
            H=heads if heads == n_key_heads else f"{heads}/{n_key_heads}",
            S=n_queries if n_queries == n_keys else f"{n_queries}/{n_keys}",
            D=q[3] if q[3] == v[3] else f"{q[3]}/{v[3]}",
        ) + (" causal" if is_causal else "")
        if not is_backward:
            return Work(forward, forward, moved + out, precision, shape=shape)
        # Five products: scores (recomputed), dQ, dK (key width), and dV, dP (value width).
        flops = 3 * scores + 2 * values
        return Work(flops, 2 * forward, 2 * (moved + out), precision, shape=shape)

    return count


GROUPED_PRODUCTS: Final = {"aten::_grouped_mm": 2, "aten::_scaled_grouped_mm": 4}
"""Matrix products of experts, and the index of the input with the end of each expert's tokens."""
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
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(0, 4, is_top_left=True),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6, is_top_left=True),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6, is_top_left=True),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11, is_backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(
        1, 7, is_top_left=True, is_backward=True
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(
        1, 11, is_top_left=True, is_backward=True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(
        1, 14, is_top_left=True, is_backward=True
    ),
    "aten::_flash_attention_forward": _attention(0, 8, is_heads_first=False),
    "aten::_flash_attention_backward": _attention(1, 11, is_heads_first=False, is_backward=True),
    "aten::_efficient_attention_forward": _attention(0, 9, is_heads_first=False),
    "aten::_efficient_attention_backward": _attention(
        1, 14, is_heads_first=False, is_backward=True
    ),
    "flash_attn::_flash_attn_forward": _attention(0, 5, is_heads_first=False),
    "flash_attn::_flash_attn_backward": _attention(1, 11, is_heads_first=False, is_backward=True),
    **MEMORY_BOUND,
}
"""Counter of each operator by name. An operator inside another listed one is not counted."""

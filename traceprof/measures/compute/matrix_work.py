"""FLOPs and minimum memory traffic of matrix products, convolutions, attention, and RNNs.

Each formula takes the indices of an operator's inputs, as `operators.txt` declares them, and
returns a `WorkCounter`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import numpy as np

from traceprof.measures.compute.inputs import (
    NUMBER,
    PRECISIONS,
    OperatorInputs,
    Sizes,
    Work,
    WorkCounter,
    sizes_text,
)

_TRUE: Final = ("True", "true")
_MULTIPLIED: Final = frozenset(
    name for name, precision in PRECISIONS.items() if precision[0] in "fb"
)
"""Types of weights in which kernels multiply; integers may be converted before."""


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


def _product(given: OperatorInputs, left: int, right: int, sizes: Sizes) -> Work:
    """Return the work of a product of two inputs; ``sizes`` are batch, M, N, and K."""
    batch, m, n, k = sizes
    k *= given.values_per_element(left)
    flops = 2 * batch * m * n * k
    moved = given.n_bytes(left, right) + batch * m * n * given.element_bytes(left)
    shape = sizes_text(batch=batch if batch > 1 else None, M=m, N=n, K=k)
    return Work(flops, flops, moved, given.precision(left), shape=shape)


def _matrix_product(left: int, right: int) -> WorkCounter:
    """Return the counter of a (batched) matrix product of the inputs at these indices."""

    def count(given: OperatorInputs) -> Work:
        a, b = given.sizes(left), given.sizes(right)
        if len(b) == 1:
            b = (*b, 1)
        (m, k), (same, n) = a[-2:], b[-2:]
        if k != same or a[:-2] != b[:-2]:
            raise LookupError
        return _product(given, left, right, (math.prod(a[:-2]), m, n, k))

    return count


def _linear(x: int, w: int) -> WorkCounter:
    """Return the counter of a product of the rows of ``x`` and a transposed matrix ``w``."""

    def count(given: OperatorInputs) -> Work:
        rows, (n, k) = given.sizes(x), given.sizes(w)
        if rows[-1] != k:
            raise LookupError
        return _product(given, x, w, (1, math.prod(rows[:-1]), n, k))

    return count


def _te_product(a: int, is_a_transposed: int, b: int, is_b_transposed: int) -> WorkCounter:
    """Return the counter of TransformerEngine's product, whose matrices are stored by columns."""

    def count(given: OperatorInputs) -> Work:
        left, right = (
            given.sizes(place) if given.text(flag) in ("1", *_TRUE) else given.sizes(place)[::-1]
            for place, flag in ((a, is_a_transposed), (b, is_b_transposed))
        )
        (m, k), (same, n) = left, right
        if k != same:
            raise LookupError
        return _product(given, a, b, (1, m, n, k))

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


def _fused_experts(x: int, up: int, down: int, ids: int) -> WorkCounter:
    """Return the counter of both products of experts in one operator (fused MoE).

    ``up`` has the weights of the first product, with or without a gate, ``down`` those of the
    second; two 4-bit numbers may be in one byte. Each token passes through the experts that
    ``ids`` lists for it. With experts on several ranks, a later input maps them to those of this
    rank; then the number of tokens here is unknown.
    """

    def count(given: OperatorInputs) -> Work:
        (_, hidden), (n_experts, rows, stored) = given.sizes(x), given.sizes(up)
        (same, out, inner), n_rows = given.sizes(down), math.prod(given.sizes(ids))
        per_value = hidden // stored
        inner *= per_value
        others = zip(given.dims[ids + 1 :], given.types[ids + 1 :], strict=False)
        is_mapped = any(kind == "int" and len(sizes) == 1 for sizes, kind in others)
        expected = n_experts, hidden, hidden
        has_sizes = (same, out, stored * per_value) == expected and rows in (inner, 2 * inner)
        if is_mapped or not has_sizes:
            raise LookupError
        flops = 2 * n_rows * hidden * (rows + inner)
        shape = sizes_text(experts=n_experts, M=n_rows, N=inner, K=hidden)
        is_wide = given.types[up] in _MULTIPLIED
        return Work(flops, flops, precision=given.precision(up) if is_wide else "", shape=shape)

    return count


def _recurrent(x: int, weights: int, times: int = 1) -> WorkCounter:
    """Return the counter of recurrent layers: every row of ``x`` is multiplied by each weight."""

    def count(given: OperatorInputs) -> Work:
        n_rows = math.prod(given.sizes(x)[:-1])
        n_weights = sum(math.prod(sizes) for sizes in given.dims[weights] if len(sizes) == 2)
        if not n_weights:
            raise LookupError
        flops = 2 * n_rows * n_weights * times
        return Work(flops, flops, precision=given.precision(x))

    return count


def _convolution(x: int, w: int, *places: int) -> WorkCounter:
    """Return the counter of a convolution of input ``x`` and weights ``w``.

    ``places`` are the indices of stride and padding, optionally followed by those of dilation, and
    of transposed, output padding, and groups.
    """

    def count(given: OperatorInputs) -> Work:
        inputs, weights = given.sizes(x), given.sizes(w)
        is_transposed = len(places) > 3 and given.text(places[3]) in _TRUE
        if len(places) > 3 and not given.text(places[3]):
            raise LookupError
        spatial = inputs[2:]
        stride, padding, dilation = (
            _expand(given.numbers(place) if place >= 0 else [1], len(spatial))
            for place in (*places, -1)[:3]
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
        is_transposed = transposed >= 0 and given.text(transposed) in _TRUE
        flags = [text in _TRUE for text in re.findall(r"\w+", given.text(mask))]
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


_CAUSAL: Final = {
    "": None,
    **dict.fromkeys(("False", "false", "0"), None),
    **dict.fromkeys(("True", "true"), False),
    "1": True,
    "2": False,
}
"""Whether a causal mask begins at the first query and key, by the operator's flag; None: no mask.

A Boolean flag leaves the alignment to the operator.
"""


@lru_cache(maxsize=4096)
def _visible_pairs(n_queries: int, n_keys: int, offset: int, before: int, after: int) -> int:
    """Return the number of keys that all queries see together.

    Query i sees the keys from i + offset - ``before`` to i + offset + ``after``. Negative numbers
    of keys are not limits.
    """
    at = np.arange(n_queries, dtype=np.int64) + offset
    last = np.minimum(at + after, n_keys - 1) if after >= 0 else np.full_like(at, n_keys - 1)
    first = np.maximum(at - before, 0) if before >= 0 else np.zeros_like(at)
    return int(np.maximum(last - first + 1, 0).sum())


def _pairs_and_words(
    given: OperatorInputs, n_queries: int, n_keys: int, options: Mapping[str, str]
) -> tuple[int, str]:
    """Return the number of pairs of query and key in one head, and the mask in words.

    Raises:
        LookupError: The mask is of an unknown kind.
    """
    flag = given.text(int(options["causal"]))
    is_top_left = _CAUSAL[flag]
    is_causal = is_top_left is not None
    is_top_left = is_top_left or (flag in _TRUE and "top_left" in options)
    place = int(options.get("window", -1))
    limits = [given.text(place + k) if place >= 0 else "" for k in (0, 1)]
    before, after = (int(text) if NUMBER.fullmatch(text) else -1 for text in limits)
    offset = 0 if is_top_left else n_keys - n_queries
    pairs = _visible_pairs(n_queries, n_keys, offset, before, 0 if is_causal else after)
    window = f" window={before}" if before >= 0 else ""
    return pairs, (" causal" if is_causal else "") + window


def _lengths(
    given: OperatorInputs, q: Sizes, k: Sizes, options: Mapping[str, str]
) -> tuple[int, int, int]:
    """Return the number of sequences, and of queries and keys in each of them.

    Packed sequences have known lengths only if all of them are as long as the longest one.

    Raises:
        LookupError: The lengths are unknown.
    """
    if any(given.is_tensor(int(place)) for place in options.get("unless", "").split(",") if place):
        raise LookupError
    places = [int(place) for place in options.get("packed", "").split(",") if place]
    if places and given.is_tensor(places[0]):
        n = given.sizes(places[0])[0] - 1
        lengths = [given.numbers(place)[0] for place in places[1:]]
        totals = [math.prod(sizes[:-2]) for sizes in (q, k)]
        if [n * length for length in lengths] != totals:
            raise LookupError
        return n, lengths[0], lengths[1]
    if not len(q) == len(k) == 4 or q[0] != k[0]:
        raise LookupError
    return (q[0], q[1], k[1]) if "last" in options else (q[0], q[2], k[2])


def _attention(*flags: str, **options: str) -> WorkCounter:
    """Return the counter of attention, with the options that `operators.txt` explains.

    If the causal flag was not recorded, every key counts, as in torch's counter. FlashAttention on
    GPUs aligns a causal mask at the last query and key (torch.nn.attention.bias).
    """
    options = {**dict.fromkeys(flags, ""), **options}
    first = int(options["q"])

    def count(given: OperatorInputs) -> Work:
        q, k, v = (given.sizes(first + offset) for offset in range(3))
        if not len(q) == len(k) == len(v) or q[-1] != k[-1]:
            raise LookupError
        batch, n_queries, n_keys = _lengths(given, q, k, options)
        heads, n_key_heads = (s[-2] if "last" in options else s[1] for s in (q, k))
        pairs, mask = _pairs_and_words(given, n_queries, n_keys, options)
        scores, values = (2 * batch * heads * pairs * width for width in (q[-1], v[-1]))
        forward = scores + values
        moved = given.n_bytes(first, first + 1, first + 2)
        out = math.prod(q[:-1]) * v[-1] * given.element_bytes(first)
        precision = given.precision(first)
        shape = (
            sizes_text(
                B=batch,
                H=heads if heads == n_key_heads else f"{heads}/{n_key_heads}",
                S=n_queries if n_queries == n_keys else f"{n_queries}/{n_keys}",
                D=q[-1] if q[-1] == v[-1] else f"{q[-1]}/{v[-1]}",
            )
            + mask
        )
        if "backward" not in options:
            return Work(forward, forward, moved + out, precision, shape=shape)
        # Five products: scores (recomputed), dQ, dK (key width), and dV, dP (value width).
        flops = 3 * scores + 2 * values
        return Work(flops, 2 * forward, 2 * (moved + out), precision, shape=shape)

    return count


def _of_indices(formula: Callable[..., WorkCounter]) -> Callable[..., WorkCounter]:
    """Return a formula that takes indices as text."""
    return lambda *places: formula(*map(int, places))


MATRIX_FORMULAS: Final[dict[str, Callable[..., WorkCounter]]] = {
    "product": _of_indices(_matrix_product),
    "linear": _of_indices(_linear),
    "te_gemm": _of_indices(_te_product),
    "experts": _of_indices(_grouped_product),
    "fused_experts": _of_indices(_fused_experts),
    "recurrent": _of_indices(_recurrent),
    "convolution": _of_indices(_convolution),
    "convolution_backward": _of_indices(_convolution_backward),
    "attention": _attention,
}
"""Formulas with FLOPs by name; each takes the words of its line in `operators.txt`."""

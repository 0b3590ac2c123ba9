"""Minimum memory traffic of PyTorch operators that compute little, such as norms and sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from traceprof.measures.compute.inputs import OperatorInputs, Work, WorkCounter


def _count_moved(*read: int, written: Sequence[int] = (), mask_bytes: int = 0) -> WorkCounter:
    """Return the counter of the bytes of the inputs at indices ``read`` and ``written``.

    An output has the size of the input at its index in ``written``. ``mask_bytes`` are the bytes of
    another output, for each element of the first input.
    """

    def count(given: OperatorInputs) -> Work:
        moved = given.n_bytes(*read) + sum(given.n_bytes(place) for place in written)
        n_elements = math.prod(given.sizes(0)) if mask_bytes else 0
        return Work(n_bytes=moved + mask_bytes * n_elements)

    return count


def _broadcast(element_bytes: int | None = None) -> WorkCounter:
    """Return the counter of the bytes of up to three inputs and of their broadcast result.

    ``element_bytes`` are those of the result; None for those of the widest input.
    """

    def count(given: OperatorInputs) -> Work:
        places = [p for p in range(min(3, len(given.dims))) if given.dims[p]]
        shapes = [given.sizes(place) for place in places]
        rank = max(map(len, shapes))
        padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        out = math.prod(max(axis) for axis in zip(*padded, strict=True))
        width = max(map(given.element_bytes, places)) if element_bytes is None else element_bytes
        return Work(n_bytes=given.n_bytes(*places) + out * width)

    return count


def _count_extreme(given: OperatorInputs) -> Work:
    """Count the bytes of a maximum: of one tensor, or of two tensors element by element."""
    is_pair = len(given.dims) > 1 and bool(given.dims[1])
    return (_broadcast() if is_pair else _count_moved(0))(given)


def _count_selected(given: OperatorInputs) -> Work:
    """Count the bytes of rows that are read at the positions of an index, and written."""
    n_selected = math.prod(given.sizes(2))
    if len(given.sizes(2)) == 1:  # index_select: whole slices along a dimension
        n_selected *= math.prod(given.sizes(0)) // given.sizes(0)[given.numbers(1)[0]]
    return Work(n_bytes=given.n_bytes(2) + 2 * n_selected * given.element_bytes(0))


def _count_pooled(given: OperatorInputs) -> Work:
    """Count the bytes of an image that is read, and of a pooled one of the sizes at index 1."""
    image, sizes = given.sizes(0), given.numbers(1)
    n_pooled = math.prod(image[: -len(sizes)]) * math.prod(sizes)
    return Work(n_bytes=given.n_bytes(0) + n_pooled * given.element_bytes(0))


def _count_embedding(given: OperatorInputs) -> Work:
    """Count the bytes of the token numbers, and of the rows that are read and written."""
    n_tokens, width = math.prod(given.sizes(1)), given.sizes(0)[-1]
    return Work(n_bytes=given.n_bytes(1) + 2 * n_tokens * width * given.element_bytes(0))


_DECLARED: Final = """
    relu gelu silu sigmoid tanh exp log sqrt rsqrt neg abs pow clamp clamp_min clamp_max: 0 > 0
    leaky_relu elu hardtanh hardswish hardsigmoid mish softplus log_sigmoid threshold erf: 0 > 0
    sin cos reciprocal floor ceil round sign log2 log1p expm1 exp2 nan_to_num: 0 > 0
    clone tril triu flip roll cumsum _softmax _log_softmax: 0 > 0
    gelu_backward silu_backward sigmoid_backward tanh_backward threshold_backward: 0 1 > 0
    leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward: 0 1 > 0
    mish_backward softplus_backward _softmax_backward_data _log_softmax_backward_data: 0 1 > 0
    copy: 0 1 >
    fill zero sum mean prod amax amin argmax argmin all any var std norm logsumexp: 0 >
    linalg_vector_norm: 0 >
    isnan isinf logical_not: 0 > mask
    native_dropout: 0 > 0 mask
    native_dropout_backward masked_fill: 0 1 > 0
    mse_loss: 0 1 >
    mse_loss_backward: 0 1 2 > 1
    native_layer_norm: 0 2 3 > 0
    native_layer_norm_backward: 0 1 5 > 1 5 6
    native_group_norm: 0 1 2 > 0
    native_group_norm_backward: 0 1 4 > 1
    _fused_rms_norm: 0 2 > 0
    _fused_rms_norm_backward: 0 1 4 > 1 4
    native_batch_norm cudnn_batch_norm miopen_batch_norm: 0 1 2 > 0
    native_batch_norm_backward miopen_batch_norm_backward: 0 1 2 > 1
    cudnn_batch_norm_backward: 0 1 2 > 0
    max_pool2d_with_indices_backward: 0 7 > 1
    avg_pool2d_backward _adaptive_avg_pool2d_backward: 0 > 1
"""
"""Operators, the indices of the inputs that they read, and those of the inputs whose size they
write; ``mask``: they also write one byte for each element of the first input.
"""


def _declared(line: str) -> dict[str, WorkCounter]:
    """Return the counter of each operator in a line of `_DECLARED`."""
    names, _, moved = line.partition(":")
    read, written = (half.split() for half in moved.split(">"))
    counter = _count_moved(
        *map(int, read),
        written=[int(place) for place in written if place != "mask"],
        mask_bytes=int("mask" in written),
    )
    return {f"aten::{name}": counter for name in names.split()}


MEMORY_BOUND: Final[dict[str, WorkCounter]] = {
    **{
        name: counter
        for line in _DECLARED.strip().splitlines()
        for name, counter in _declared(line).items()
    },
    **dict.fromkeys(
        (
            *("aten::add", "aten::sub", "aten::mul", "aten::div", "aten::where", "aten::lerp"),
            *("aten::addcmul", "aten::addcdiv", "aten::maximum", "aten::minimum"),
        ),
        _broadcast(),
    ),
    **dict.fromkeys(
        (
            *("aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge"),
            *("aten::logical_and", "aten::logical_or", "aten::logical_xor"),
        ),
        _broadcast(element_bytes=1),
    ),
    **dict.fromkeys(("aten::max", "aten::min"), _count_extreme),
    **dict.fromkeys(("aten::gather", "aten::index_select"), _count_selected),
    "aten::_adaptive_avg_pool2d": _count_pooled,
    "aten::embedding": _count_embedding,
}
"""Counter of each memory-bound operator by name."""

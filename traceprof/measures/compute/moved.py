"""Minimum memory traffic of PyTorch operators that compute little, such as norms and sums.

Each formula takes the words of its line in `operators.txt` and returns a `WorkCounter`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

from traceprof.measures.compute.inputs import NUMBER, OperatorInputs, Work, WorkCounter

_PLACE: Final = re.compile(r"(\d+)(?:@(\d+)|\*(\d+))?")


def _bytes_of(given: OperatorInputs, place: str) -> float:
    """Return the bytes of an input: "2"; "0@2" with the type of input 2; "0*8", 8 per element."""
    match = _PLACE.fullmatch(place)
    assert match, place
    n = given.n_elements(int(match[1]))
    return n and n * (
        float(match[3]) if match[3] else given.element_bytes(int(match[2] or match[1]))
    )


def _moves(*places: str) -> WorkCounter:
    """Return the counter of inputs that are read and, after ">", of outputs of their sizes."""
    moved = [place for place in places if place != ">"]
    main = int(NUMBER.findall(moved[0])[0])

    def count(given: OperatorInputs) -> Work:
        if not given.n_elements(main):
            raise LookupError
        return Work(n_bytes=sum(_bytes_of(given, place) for place in moved))

    return count


def count_every(given: OperatorInputs) -> Work:
    """Count each tensor once."""
    return Work(n_bytes=given.n_bytes(*range(len(given.dims))) or math.nan)


def _broadcast(element_bytes: str = "") -> WorkCounter:
    """Return the counter of the bytes of up to three inputs and of their broadcast result.

    ``element_bytes`` are those of the result; "" for those of the widest input with sizes.
    """

    def count(given: OperatorInputs) -> Work:
        places = [place for place in range(3) if given.is_tensor(place)]
        with_sizes = [place for place in places if given.dims[place]] or places
        shapes = [given.sizes(place) if given.dims[place] else () for place in places]
        rank = max(map(len, shapes))
        padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        out = math.prod(max(axis) for axis in zip(*padded, strict=True))
        width = float(element_bytes or max(map(given.element_bytes, with_sizes)))
        return Work(n_bytes=given.n_bytes(*places) + out * width)

    return count


def _count_extreme(given: OperatorInputs) -> Work:
    """Count the bytes of a maximum: of one tensor, or of two tensors element by element."""
    is_pair = len(given.dims) > 1 and bool(given.dims[1])
    return (_broadcast() if is_pair else _moves("0"))(given)


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


def _count_dense_rows(given: OperatorInputs) -> Work:
    """Count the bytes of gradients and token numbers, and of the dense gradient of all rows."""
    n_written = given.numbers(2)[0] * given.sizes(0)[-1]
    return Work(n_bytes=given.n_bytes(0, 1) + n_written * given.element_bytes(0))


def _windows(index_bytes: str = "0") -> WorkCounter:
    """Return the counter of pooling; ``index_bytes`` are those of another output per element."""

    def count(given: OperatorInputs) -> Work:
        image, size = given.sizes(0), given.numbers(1)
        stride = [int(text) for text in NUMBER.findall(given.text(2))] or size
        padding, dilation = given.numbers(3), given.numbers(4) if int(index_bytes) else [1]
        n = len(size)
        axes = zip(
            image[-n:],
            size,
            stride,
            *(values * (n // len(values)) for values in (padding, dilation)),
            strict=True,
        )
        n_pooled = math.prod((e + 2 * p - d * (k - 1) - 1) // s + 1 for e, k, s, p, d in axes)
        n_pooled *= math.prod(image[:-n])
        width = given.element_bytes(0) + float(index_bytes)
        return Work(n_bytes=given.n_bytes(0) + n_pooled * width)

    return count


MEMORY_FORMULAS: Final[dict[str, Callable[..., WorkCounter]]] = {
    "moves": _moves,
    "broadcast": _broadcast,
    "every": lambda: count_every,
    "extreme": lambda: _count_extreme,
    "selected": lambda: _count_selected,
    "pooled": lambda: _count_pooled,
    "windows": _windows,
    "embedding": lambda: _count_embedding,
    "dense_rows": lambda: _count_dense_rows,
}
"""Formulas with bytes alone by name; each takes the words of its line in `operators.txt`."""

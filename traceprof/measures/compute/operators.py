"""Work of PyTorch operators, calculated from their inputs.

A multiply-add counts as two FLOPs. Only matrix products, convolutions, attention, and recurrent
layers are counted, as in torch.utils.flop_counter. There are three differences from that counter:
FLOPs that a causal mask hides do not count, queries can have more heads than keys, and groups of a
convolution count once. Bytes are a minimum: every input is read once, every output is written once.
The work of an operator is unknown if `operators.txt` does not list it or its inputs were not
recorded. traceprof never guesses work from the name of a kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from traceprof.measures.compute.inputs import PRECISIONS, OperatorInputs, Work, WorkCounter
from traceprof.measures.compute.matrix_work import MATRIX_FORMULAS
from traceprof.measures.compute.moved import MEMORY_FORMULAS, count_every

_TRITON: Final = re.compile(r"triton_[a-z]+_")
"""Operators that Inductor generates. Their inputs are the buffers that the kernel reads or writes.
"""


def _declared() -> Iterator[tuple[str, str, WorkCounter]]:
    """Yield the name of each operator in `operators.txt`, of its formula, and its counter."""
    formulas = {**MATRIX_FORMULAS, **MEMORY_FORMULAS}
    for line in Path(__file__).with_name("operators.txt").read_text("utf-8").splitlines():
        declaration, _, names = line.partition("#")[0].partition(": ")
        formula, *words = declaration.split() or [""]
        if formula:
            options = dict(word.split("=") for word in words if "=" in word)
            count = formulas[formula](*(word for word in words if "=" not in word), **options)
            for name in names.split():
                yield (
                    name.lstrip(".") if "::" in name or name[0] == "." else f"aten::{name}",
                    formula,
                    count,
                )


def _counters() -> dict[str, tuple[WorkCounter, ...]]:
    found: dict[str, tuple[WorkCounter, ...]] = {}
    for name, _, count in _declared():
        found[name] = (*found.get(name, ()), count)
    return found


OPERATORS: Final = _counters()
"""Counters of each operator by name; the first one that fits the inputs counts.

An operator inside another listed one is not counted.
"""
GROUPED_PRODUCTS: Final = {name for name, formula, _ in _declared() if formula == "experts"}
"""Matrix products of experts."""


def sizes_of_input(dims: str, place: int = 0) -> tuple[int, ...]:
    """Return the sizes of the first input of an operator, or of another; () if unknown."""
    try:
        return OperatorInputs(dims, "", "").sizes(place)
    except (LookupError, TypeError):  # no tensor
        return ()


@lru_cache(maxsize=65536)
def work_of(
    name: str,
    dims: str,
    types: str,
    concrete: str,
    by_torch: tuple[str, str] = ("", ""),
    list_bytes: float = math.nan,
) -> Work | None:
    """Return the work of an operator, from the sizes, types, and values of its inputs.

    ``dims``, ``types`` and ``concrete`` are JSON lists, as Kineto writes them. ``by_torch``
    has the FLOPs and gigabytes that PyTorch recorded. They are used if the sizes do not determine
    the work. ``list_bytes`` are the bytes per element of tensors in lists. Return None
    if the work is unknown.
    """
    counters = OPERATORS.get(name.removesuffix("_") if name.startswith("aten::") else name, ())
    given = OperatorInputs(dims, types, concrete, list_bytes)
    is_generated = not by_torch[1] and _TRITON.match(name)
    for count in (count_every,) if is_generated else counters:
        try:
            return count(given)
        except (LookupError, TypeError, ValueError):  # an input without sizes or of another type
            continue
    flops, moved = _parse_positive(by_torch[0]), _parse_positive(by_torch[1]) * 1e9
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


_INPUT, _GRAD, _WEIGHTS = range(3)
_OF_CONVOLUTION: Final[dict[str, dict[int, int]]] = {
    f"aten::{backend}_convolution{of}": tensors
    for backend in ("cudnn", "miopen")
    for of, tensors in (
        ("", {_INPUT: 0, _WEIGHTS: 1}),
        ("_backward_input", {_GRAD: 1, _WEIGHTS: 2}),
        ("_backward_weight", {_GRAD: 1, _INPUT: 2}),
        ("_backward", {_INPUT: 0, _GRAD: 1, _WEIGHTS: 2}),
    )
}
"""Operator → its tensors: index of each among its inputs."""


def work_of_convolutions(operators: Sequence[tuple[str, str]]) -> list[Work | None]:
    """Return the work of convolutions whose strides were not recorded (before PyTorch 2.1).

    ``operators`` are names and sizes of all operators of a trace. The backward pass has the sizes
    of input, weights, and output, from which the FLOPs follow. An operator with two of these sizes
    has the FLOPs of the convolutions that have them, too, if these agree.
    """
    sizes = [
        {tensor: sizes_of_input(dims, place) for tensor, place in _OF_CONVOLUTION[name].items()}
        if name in _OF_CONVOLUTION
        else {}
        for name, dims in operators
    ]
    whole = {tuple(own[tensor] for tensor in range(3)) for own in sizes if len(own) == 3}
    by_pair: dict[tuple[Any, ...], set[int]] = {}
    for convolution in whole:
        flops = 2 * math.prod(convolution[_GRAD]) * math.prod(convolution[_WEIGHTS][1:])
        for absent in range(3) if all(convolution) else ():
            pair = tuple(None if n == absent else own for n, own in enumerate(convolution))
            by_pair.setdefault(pair, set()).add(flops)
    fitting = (
        by_pair.get(tuple(map(own.get, range(3))), ()) if len(own) == 2 else () for own in sizes
    )
    return [Work(n := max(flops), n) if len(flops) == 1 else None for flops in fitting]

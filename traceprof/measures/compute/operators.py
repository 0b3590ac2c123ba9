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
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

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


def first_sizes(dims: str) -> tuple[int, ...]:
    """Return the sizes of the first input of an operator; () if they are unknown."""
    try:
        return OperatorInputs(dims, "", "").sizes(0)
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

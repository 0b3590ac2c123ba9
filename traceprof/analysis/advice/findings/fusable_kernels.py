"""Pointwise kernels that follow one another and could be one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Ground, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace
from traceprof.names.kernels import short_name
from traceprof.values import dataclass

__all__ = ["RULE", "pairs_of"]

_LEAST: Final = 0.03
_POINTWISE: Final = ("elementwise", "random", "rng_dropout")
_BY_COMPILERS: Final = r"triton|nvfuser|fused"
"""What a compiler made: it has fused what it could."""


def pairs_of(part: Trace) -> npt.NDArray[np.int64]:
    """Return the rows of the kernels that form pairs, the first and the second of each in a row.

    Of pointwise kernels that follow one another on a stream the first and the second are a pair,
    the third and the fourth, and so on.
    """
    kernels = part.kernels
    order = np.lexsort((kernels["start_ns"], kernels["stream"], kernels["device"]))
    fits = _is_pointwise(kernels)[order]
    device, stream = (kernels[name].to_numpy()[order] for name in ("device", "stream"))
    follows = np.zeros(len(order), np.bool_)
    follows[1:] = fits[1:] & fits[:-1] & (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    run_start = np.maximum.accumulate(np.where(follows, 0, np.arange(len(order))))
    second = np.flatnonzero(follows & ((np.arange(len(order)) - run_start) % 2 == 1))
    return order[np.column_stack((second - 1, second))]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The pairs of a rank: how many, how long, how long the shorter of each, when, by name."""

    count: int
    sum_ns: int
    shorter_ns: int
    times: dict[int, Intervals]
    by_name: pd.Series


def _pairs_of_one(part: Trace, typical: Intervals) -> _Pairs:
    kernels, pairs = part.kernels, pairs_of(part)
    starts, ends = (kernels[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    pairs = pairs[typical.covered_ns(starts[pairs[:, 0]], ends[pairs[:, 0]]) > 0]
    lengths = (ends - starts)[pairs]
    rows = pairs.ravel()
    device = kernels["device"].to_numpy()[rows]
    own = {int(number): rows[device == number] for number in np.unique(device)}
    names = kernels["name"].astype(object).to_numpy()[rows]
    return _Pairs(
        len(pairs),
        int(lengths.sum()),
        int(lengths.min(axis=1).sum()),
        {number: Intervals.union_of(starts[at], ends[at]) for number, at in own.items()},
        pd.Series(lengths.ravel()).groupby(names).sum(),
    )


def _is_pointwise(kernels: pd.DataFrame) -> npt.NDArray[np.bool_]:
    names = kernels["name"].cat
    compiled = pd.Series(names.categories.astype(str)).str.contains(_BY_COMPILERS, case=False)
    of_compiler = np.append(compiled.to_numpy(np.bool_), False)[names.codes.to_numpy()]
    return np.asarray(kernels["activity"].isin(_POINTWISE).to_numpy() & ~of_compiler, np.bool_)


def _check(context: Context) -> Iterator[Finding]:
    times: dict[int, Intervals] = {}
    found = context.ranks.each(_pairs_of_one, context.typical)
    for own in found:
        times |= own.times
    n_pairs = sum(own.count for own in found)
    sum_ns, shorter_ns = sum(own.sum_ns for own in found), sum(own.shorter_ns for own in found)
    tops = [own.by_name for own in found]
    if not n_pairs:
        return
    claim = context.left(times, Ground.COMPUTE, shorter_ns / max(1, sum_ns))
    share = context.share(claim)
    if share * claim.saved_ratio < _LEAST:
        return
    top = pd.concat(tops).groupby(level=0).sum().nlargest(2)
    yield Finding(
        title=Note.of(
            "pointwise kernels one after the other: {share:ratio} of the time, and they could be "
            "fused",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note("two that follow one another become one, which takes as long as the longer"),
        evidence=(
            context.counted(n_pairs, "pair(s) of them"),
            *(
                context.timed(int(ns), after=" in {name}", name=short_name(str(name)))
                for name, ns in top.items()
            ),
        ),
        action=context.advice(
            pytorch="let torch.compile fuse them, or use fused versions (of activations with bias, "
            "dropout, residuals)",
            other="fuse them: what one writes to memory the next reads again",
        ),
        caveat="kernels on different tensors cannot be fused",
        ncu=context.ncu(top),
    )


RULE = Rule(
    name="fusable_kernels",
    subject="fusion",
    summary="pointwise kernels that could be one",
    needs=("kernels",),
    show="classes",
    check=_check,
)

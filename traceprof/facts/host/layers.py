"""Which host spans stand for the layers of the model, and which work each of them launched.

Spans are taken from the best source that a run has: the ``layer:`` ranges that `traceprof record
--layers` injects; the ranges of ``emit_nvtx`` and ``record_function``; other NVTX ranges; the
operators of a CPU trace. Sequence numbers in the names (", seq = 12") tie a backward operator to
the forward one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.host.range_work import find_parents, is_outermost_of
from traceprof.facts.launches import adopting_range_of_launches, launches_of
from traceprof.model.ranks import Ranks
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import are_matched, codes_containing, numbers_in, plain_names
from traceprof.values import dataclass

__all__ = ["LAYER", "LayerSpans", "layer_spans", "layers_of_work", "source_of_layers"]

_Int64Array = npt.NDArray[np.int64]

LAYER: Final = "layer:"
"""How the names of the ranges begin that `traceprof record --layers` injects."""

_RECORDED, _RANGES, _OPERATORS = "layers recorded by traceprof", "ranges", "operators"
_SEQUENCE: Final = re.compile(r",\s*seq\s*=\s*(?P<number>\d{1,18})")
_BACKWARD: Final = re.compile(r"autograd::engine|Backward\d*\b")


@dataclass(frozen=True, slots=True, eq=False)
class LayerSpans:
    """The spans of the whole recording that stand for layers: one element for each.

    ``parent`` is the span around it (-1: none) at ``depth`` - 1, ``layer`` its place in ``names``,
    ``is_outermost`` whether no span of the same layer is around it. ``backward`` are the spans of
    backward operators and ``forward`` those that they belong to; both None where the names carry
    no numbers that tell.
    """

    start_ns: _Int64Array
    end_ns: _Int64Array
    parent: _Int64Array
    depth: _Int64Array
    layer: _Int64Array
    names: tuple[str, ...]
    is_outermost: npt.NDArray[np.bool_]
    backward: _Int64Array | None
    forward: _Int64Array | None


def source_of_layers(ranks: Ranks) -> str:
    """Return the best source of layers that any rank has, "" where none has any."""
    rows = [_rows_by_source(part) for part in ranks]
    return next((s for s in (_RECORDED, _RANGES, _OPERATORS) if any(len(r[s]) for r in rows)), "")


@fact
def _rows_by_source(trace: Trace) -> Mapping[str, _Int64Array]:
    """Return the rows of ranges, or of host operators, that each source has."""
    ranges, operators = trace.ranges, trace.host_ops
    is_nested = (ranges["kind"] == "push_pop").to_numpy()
    is_own = (ranges["domain"] == OWN_DOMAIN).to_numpy()
    texts = ranges["name"].cat.categories
    named = [i for i in codes_containing(texts, [LAYER]) if str(texts[i]).startswith(LAYER)]
    is_layer = np.isin(ranges["name"].cat.codes, named)
    return {
        _RECORDED: np.flatnonzero(is_nested & is_own & is_layer),
        _RANGES: np.flatnonzero(is_nested & ~is_own),
        _OPERATORS: np.flatnonzero(operators["source"] == "cpu_op"),
    }


def _spans(trace: Trace, source: str) -> pd.DataFrame:
    frame = trace.host_ops if source == _OPERATORS else trace.ranges
    columns = frame[["start_ns", "end_ns", "process", "thread", "name"]]
    return columns.iloc[_rows_by_source(trace)[source]].reset_index(drop=True)


@fact
def layer_spans(trace: Trace, source: str) -> LayerSpans:
    """Return the spans that stand for layers where these are from ``source``."""
    spans = _spans(trace, source)
    parent, depth = find_parents(spans)
    names = plain_names(spans["name"])
    layer = np.asarray(names.codes, np.int64)
    backward, forward = _operators(spans, parent)
    return LayerSpans(
        start_ns=spans["start_ns"].to_numpy(np.int64),
        end_ns=spans["end_ns"].to_numpy(np.int64),
        parent=parent,
        depth=depth,
        layer=layer,
        names=tuple(map(str, names.categories)),
        is_outermost=is_outermost_of(layer, parent),
        backward=backward,
        forward=forward,
    )


def layers_of_work(trace: Trace, source: str) -> Mapping[str, _Int64Array]:
    """Return, for each table of work in the window, the innermost span that launched each row.

    -1 where none did. What threads without a span of their own launch, as autograd's do, counts
    for the span that is open on the thread that calls backward.
    """
    return {
        name: _layers_of_table(trace, source, name)[trace.rows_in_whole(name)]
        for name in DEVICE_TABLES
    }


@fact
def _layers_of_table(trace: Trace, source: str, table: str) -> _Int64Array:
    return adopting_range_of_launches(trace, _spans(trace, source), launches_of(trace, table))


def _operators(
    spans: pd.DataFrame, parent: _Int64Array
) -> tuple[_Int64Array, _Int64Array] | tuple[None, None]:
    """Return the outermost backward operators and the forward ones of the same number."""
    names = spans["name"].cat
    numbers = numbers_in(names.categories, _SEQUENCE)
    of_backward = are_matched(names.categories, _BACKWARD)
    sequence, is_backward = numbers[names.codes], of_backward[names.codes]
    if not (is_backward & (sequence >= 0)).any():
        return None, None
    numbered = pd.DataFrame({"process": spans["process"], "sequence": sequence})
    numbered["row"] = np.arange(len(spans))
    # Of nested operators with the same number the innermost is the one that has a gradient.
    forward = numbered[~is_backward & (sequence >= 0)].drop_duplicates(
        ["process", "sequence"], keep="last"
    )
    above = np.where(parent >= 0, sequence[np.maximum(parent, 0)], -1)
    outermost = numbered[is_backward & (sequence >= 0) & (above != sequence)]
    pairs = outermost.merge(forward, on=["process", "sequence"], suffixes=("", "_of"))
    return pairs["row"].to_numpy(np.int64), pairs["row_of"].to_numpy(np.int64)

"""Host and device time by layer of the model: module paths, or operators where none are named.

Spans are taken from the best source that the trace has: the ``layer:`` ranges that `traceprof
record --layers` injects; the ranges of ``emit_nvtx`` and ``record_function``; other NVTX ranges;
the operators of a CPU trace. Backward work counts for a layer where the names carry sequence
numbers (", seq = 12"), which tie a backward operator to the forward one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.host.range_work import RangeWork, find_range_work
from traceprof.facts.host.self_time import self_time_ns
from traceprof.model.steps import OWN_DOMAIN
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS", "Layers", "measure_layers", "plain_name"]

_Int64Array = npt.NDArray[np.int64]

_LAYER: Final = "layer:"
_NUMBERS: Final = re.compile(r",\s*(?:seq|op_id|sizes|input_op_ids)\s*=.*$")
_SEQUENCE: Final = re.compile(r",\s*seq\s*=\s*(\d+)")
_NONE: Final = "no layers are named: record with `traceprof record --layers`, or with emit_nvtx"
_COLUMNS: Final = ("layer", "type", "count", "host_ns", "host_self_ns")
_BACKWARD: Final = re.compile(r"autograd::engine|Backward\d*\b")


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """One row per layer, by device time, else by host time.

    ``table``: layer, type (of the module, "" where not known), count, host_ns, host_self_ns,
    device_ns and device_self_ns (of all kernels and copies that it launched, added up over
    streams; self: not inside another layer), backward_ns (device time of its backward
    operators; NaN where the names do not tell), work_count (kernels and copies).
    """

    table: pd.DataFrame
    source: str
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def plain_name(name: str) -> str:
    """Return the name of a range without what `emit_nvtx` adds to it (", op_id = 7")."""
    return _NUMBERS.sub("", name)


def measure_layers(trace: Trace) -> Layers:
    """Return the time of every layer."""
    source, spans = _spans(trace)
    if spans.empty:
        return Layers(pd.DataFrame(columns=list(_COLUMNS)), "", (_NONE,))
    work = find_range_work(trace, spans, adopt=True)
    labels = _labels(spans)
    backward = _backward_ns(spans, work)
    table = _table(trace, spans, labels, work, backward)
    notes = [f"layers are from: {source}"]
    if backward is None and (trace.recorded & set(DEVICE_TABLES)):
        notes.append(
            "backward work is not told apart by layer: no backward operator carries the sequence "
            "number of a forward one (torch.autograd.profiler.emit_nvtx writes them)"
        )
    return Layers(table, source, tuple(notes))


def _spans(trace: Trace) -> tuple[str, pd.DataFrame]:
    """Return the nested host spans that stand for layers, and what they are."""
    ranges = trace.whole.ranges
    nested = ranges[ranges["kind"] == "push_pop"]
    own = nested[nested["domain"] == OWN_DOMAIN]
    foreign = nested[nested["domain"] != OWN_DOMAIN]
    operators = trace.whole.host_ops[trace.whole.host_ops["source"] == "cpu_op"]
    for source, frame in (
        ("layers recorded by traceprof", own[_starts_with(own["name"], _LAYER)]),
        ("ranges", foreign),
        ("operators", operators),
    ):
        if len(frame):
            return source, frame.reset_index(drop=True)
    return "", nested.iloc[:0]


def _starts_with(names: pd.Series, prefix: str) -> npt.NDArray[np.bool_]:
    categories = names.cat.categories
    codes = [i for i, name in enumerate(categories) if str(name).startswith(prefix)]
    return np.isin(names.cat.codes, codes)


def _labels(spans: pd.DataFrame) -> pd.Categorical:
    """Return the layer of each span: names without numbers, forward and backward told apart."""
    names = spans["name"].cat
    plain = [plain_name(str(name)) for name in names.categories]
    distinct = sorted(set(plain))
    place = {name: i for i, name in enumerate(distinct)}
    codes = np.array([place[name] for name in plain], np.int64)[names.codes]
    return pd.Categorical.from_codes(codes, pd.Index(distinct, dtype=object))


def _backward_ns(spans: pd.DataFrame, work: RangeWork) -> _Int64Array | None:
    """Return the device time of the backward operators of each span; None without numbers."""
    names = spans["name"].cat
    found = [_SEQUENCE.search(str(name)) for name in names.categories]
    sequence = np.array([int(match.group(1)) if match else -1 for match in found], np.int64)
    is_backward = np.array([bool(_BACKWARD.search(str(n))) for n in names.categories], np.bool_)
    sequence, is_backward = sequence[names.codes], is_backward[names.codes]
    if not (is_backward & (sequence >= 0)).any():
        return None
    numbered = pd.DataFrame({"process": spans["process"], "sequence": sequence})
    numbered["row"] = np.arange(len(spans))
    # Of nested operators with the same number the innermost is the one that has a gradient.
    forward = numbered[~is_backward & (sequence >= 0)].drop_duplicates(
        ["process", "sequence"], keep="last"
    )
    outermost = is_backward & (sequence >= 0)
    above = np.where(work.parent >= 0, sequence[np.maximum(work.parent, 0)], -1)
    outermost &= above != sequence
    pairs = numbered[outermost].merge(forward, on=["process", "sequence"], suffixes=("", "_of"))
    backward = np.zeros(len(spans), np.int64)
    np.add.at(backward, pairs["row_of"].to_numpy(), work.total_ns[pairs["row"].to_numpy()])
    return _with_children(backward, work.parent)


def _with_children(values: _Int64Array, parent: _Int64Array) -> _Int64Array:
    total = values.copy()
    above, source = parent.copy(), np.arange(len(values))
    while len(source):
        inside = above >= 0
        source, above = source[inside], above[inside]
        np.add.at(total, above, values[source])
        above = parent[above]
    return total


def _table(
    trace: Trace,
    spans: pd.DataFrame,
    labels: pd.Categorical,
    work: RangeWork,
    backward: _Int64Array | None,
) -> pd.DataFrame:
    window = trace.span
    starts, ends = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    clipped = spans.assign(
        start_ns=np.clip(starts, window.start_ns, window.end_ns),
        end_ns=np.clip(ends, window.start_ns, window.end_ns),
    )
    once = work.is_outermost_of(np.asarray(labels.codes, np.int64))
    columns: dict[str, object] = {
        "layer": labels,
        "count": window.overlaps(starts, ends).astype(np.int64),
        "host_ns": (clipped["end_ns"] - clipped["start_ns"]).to_numpy() * once,
        "host_self_ns": self_time_ns(clipped, ("process", "thread")).to_numpy(),
    }
    if trace.recorded & set(DEVICE_TABLES):
        columns |= {"device_ns": work.total_ns * once, "device_self_ns": work.self_ns}
        if backward is not None:
            columns["backward_ns"] = backward * once
        columns["work_count"] = work.work_count * once
    sums = pd.DataFrame(columns).groupby("layer", observed=True).sum().reset_index()
    shown = sums[(sums["count"] > 0) | (sums.get("work_count", 0) > 0)]
    names = shown["layer"].astype(str).str.removeprefix(_LAYER)
    is_own = shown["layer"].astype(str).str.startswith(_LAYER)
    types = names.str.rpartition(":")[2].where(is_own, "")
    paths = names.str.rpartition(":")[0].where(is_own, names)
    table = shown.assign(layer=paths.astype(object)).reset_index(drop=True)
    table.insert(1, "type", types.astype(object).to_numpy())
    order = "device_ns" if "device_ns" in table and table["device_ns"].any() else "host_ns"
    return table.sort_values(order, ascending=False, kind="stable", ignore_index=True)


ANALYSIS = Analysis(
    name="layers",
    needs=(),
    run=measure_layers,
)

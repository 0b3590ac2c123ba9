"""Host and device time by layer of the model: module paths, or operators where none are named.

`traceprof.facts.host.layers` says what stands for a layer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.host.layers import (
    LAYER,
    LayerSpans,
    layer_spans,
    layers_of_work,
    source_of_layers,
)
from traceprof.facts.host.range_work import add_to_parents, sum_work
from traceprof.model.combining import combine
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, key, same, total
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS"]

_Int64Array = npt.NDArray[np.int64]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "layers",
            "one row per layer, by device time, else by host time",
            (
                key("layer", "the path of the module, else the name of a range or operator"),
                key("type", 'the class of the module; "" where it is not known'),
                total("count", Unit.COUNT, "how often it ran in the window"),
                total("host_ns", Unit.NS, "when the host was in it"),
                total("host_self_ns", Unit.NS, "when the host was in it, and in no other inside"),
                total(
                    "device_ns",
                    Unit.NS,
                    "the durations of all that it launched, added up over streams and devices",
                ),
                total("device_self_ns", Unit.NS, "the same without the layers inside it"),
                total(
                    "backward_ns",
                    Unit.NS,
                    "the device time of its backward operators; not there where names do not tell",
                ),
                total("work_count", Unit.COUNT, "how many kernels and copies it launched"),
            ),
        ),
    ),
    scalars=(same("source", Unit.TEXT, 'what the layers are read from; "" where there are none'),),
)
_NONE: Final = "no layers are named: record with `traceprof record --layers`, or with emit_nvtx"


def measure_layers(ranks: Ranks) -> Result:
    """Return the time of every layer, in all ranks from the same source."""
    source = source_of_layers(ranks)
    if not source:
        return Result("layers", SPEC, {"layers": SPEC.tables[0].frame()}, {"source": ""})
    return combine(ranks.each(_measure, source))


def _measure(trace: Trace, source: str) -> Result:
    spans = layer_spans(trace, source)
    outermost = spans.is_outermost
    starts, ends = (
        np.clip(instants, trace.span.start_ns, trace.span.end_ns)
        for instants in (spans.start_ns, spans.end_ns)
    )
    measures = {
        "count": trace.span.overlaps(spans.start_ns, spans.end_ns).astype(np.int64),
        "host_ns": (ends - starts) * outermost,
        "host_self_ns": _self_ns(starts, ends, spans.parent),
    }
    if trace.recorded & set(DEVICE_TABLES):
        measures |= _device_times(trace, source, spans)
    columns = {name: _sums(spans, values) for name, values in measures.items()}
    layers, types = _paths(spans.names)
    table = pd.DataFrame({"layer": layers, "type": types, **columns})
    return Result("layers", SPEC, {"layers": table}, {"source": source})


def _self_ns(starts: _Int64Array, ends: _Int64Array, parent: _Int64Array) -> _Int64Array:
    """Return what of each span no other right inside it covers."""
    own = ends - starts
    inside = np.flatnonzero((parent >= 0) & (own > 0))
    outer = parent[inside]
    covered = np.maximum(np.minimum(ends[inside], ends[outer]) - starts[inside], 0)
    np.subtract.at(own, outer, covered)
    return np.asarray(np.maximum(own, 0), np.int64)


def _device_times(trace: Trace, source: str, spans: LayerSpans) -> dict[str, _Int64Array]:
    outermost = spans.is_outermost
    work = sum_work(trace, layers_of_work(trace, source), spans.parent, spans.depth)
    times = {"device_ns": work.total_ns * outermost, "device_self_ns": work.self_ns}
    if spans.forward is not None:
        backward = np.zeros(len(spans.parent), np.int64)
        np.add.at(backward, spans.forward, work.total_ns[spans.backward])
        times["backward_ns"] = add_to_parents(backward, spans.parent, spans.depth) * outermost
    return times | {"work_count": work.work_count * outermost}


def _sums(spans: LayerSpans, values: _Int64Array) -> _Int64Array:
    sums = np.zeros(len(spans.names), np.int64)
    np.add.at(sums, spans.layer, values)
    return sums


def _paths(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return paths and classes of layers; names that traceprof did not record are paths."""
    split = [
        name.removeprefix(LAYER).rpartition(":")[::2] if name.startswith(LAYER) else (name, "")
        for name in names
    ]
    return [path for path, _ in split], [kind for _, kind in split]


def _finish(result: Result) -> Result:
    table = result.table
    if not result.scalars["source"]:
        return result.with_notes(Note(_NONE))
    shown = table[(table["count"] > 0) | (table.get("work_count", 0) > 0)]
    largest = "device_ns" if "device_ns" in shown and shown["device_ns"].any() else "host_ns"
    order = [largest, "layer", "type"]
    finished = result.with_table(
        shown.sort_values(order, ascending=[False, True, True], ignore_index=True)
    ).with_notes(Note.of("layers are from: {source}", source=result.scalars["source"]))
    if "device_ns" not in table or "backward_ns" in table:
        return finished
    return finished.with_notes(
        Note(
            "backward work is not told apart by layer: no backward operator carries the sequence "
            "number of a forward one (torch.autograd.profiler.emit_nvtx writes them)"
        )
    )


ANALYSIS = Analysis(
    name="layers",
    spec=SPEC,
    uses=("ranges", "host_ops", "kernels", "copies", "api_calls"),
    whole=("ranges", "host_ops"),
    of_ranks=measure_layers,
    finish=_finish,
)

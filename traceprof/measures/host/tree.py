"""Ranges or operators inside one another, added up by the names around them: a flame graph.

They are those that stand for layers (`traceprof.measures.host.layers`), from the same source.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.host.layers import (
    LayerSpans,
    layer_spans,
    layers_of_work,
    paths_of_layers,
    source_of_layers,
)
from traceprof.measures.host.range_work import sum_work
from traceprof.measures.rows import Ints, sums_at
from traceprof.model.combining import combine
from traceprof.model.grouping import groups_of
from traceprof.model.nesting import levels_of
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table, objects
from traceprof.model.trace import DEVICE_TABLES, Trace

BETWEEN: Final = " › "
"""What stands between the names of a path."""

TREE_SPEC: Final = ResultSpec.of("""
    table nodes: one row per path of names, those around it first, by device time, else host time
    key path: the names around it, the outermost first, and its own, with › between them
    same name: its own name
    same depth [number]: how many are around it
    total count: how often it ran in the window
    total host_ns: their durations on the host, within the window
    total device_ns: the durations of the kernels and copies launched inside
    scalars:
    same source: what the names are of; "" where there are none
    same left_out_count: paths that take less time and are not told, or are deeper
    """)
_DEEPEST: Final = 14
_MOST: Final = 1_000
_NONE: Final = "no ranges and no operators were recorded"


def measure_tree(ranks: Ranks) -> Result:
    """Return host and device time by path, in all ranks from the same source."""
    source = source_of_layers(ranks)
    if not source:
        nothing = {"nodes": TREE_SPEC.tables[0].of_rows()}
        return Result("tree", TREE_SPEC, nothing, {"source": "", "left_out_count": 0})
    return combine(ranks.each(_measure, source))


def _measure(trace: Trace, source: str) -> Result:
    spans = layer_spans(trace, source)
    node, above, layers = _nodes(spans)
    names, _ = paths_of_layers(spans.names)
    paths: list[str] = []
    depths: list[int] = []
    for place, layer in zip(above.tolist(), layers.tolist(), strict=True):
        paths.append(names[layer] if place < 0 else f"{paths[place]}{BETWEEN}{names[layer]}")
        depths.append(0 if place < 0 else depths[place] + 1)
    starts, ends = (
        np.clip(instants, trace.span.start_ns, trace.span.end_ns)
        for instants in (spans.start_ns, spans.end_ns)
    )
    inside = trace.span.overlaps(spans.start_ns, spans.end_ns).astype(np.int64)
    measures = {"count": inside, "host_ns": ends - starts}
    if trace.recorded & set(DEVICE_TABLES):
        work = sum_work(trace, layers_of_work(trace, source), spans.parent, spans.depth)
        measures["device_ns"] = work.total_ns
    kept = np.flatnonzero(node >= 0)
    table = Table(
        {
            "path": objects(paths),
            "name": objects(names[layer] for layer in layers.tolist()),
            "depth": np.array(depths, np.int64),
            **{name: sums_at(node[kept], own[kept], len(paths)) for name, own in measures.items()},
        }
    )
    used = table.take((table["count"] > 0) | (table.get("device_ns", 0) > 0))
    scalars = {"source": source, "left_out_count": 0}
    return Result("tree", TREE_SPEC, {"nodes": used}, scalars)


def _nodes(spans: LayerSpans) -> tuple[Ints, Ints, Ints]:
    """Return the node of each span (-1 of deep ones), and of each node the one above and its name.

    A node is what has the same names around it; those above come first.
    """
    node = np.full(len(spans.parent), -1, np.int64)
    above, layers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    n_nodes = 0
    for rows in levels_of(spans.depth)[:_DEEPEST]:
        parents = spans.parent[rows]
        around = np.where(parents >= 0, node[np.maximum(parents, 0)], -1)
        groups = groups_of(around, spans.layer[rows])
        node[rows] = n_nodes + groups.number
        keys = np.array(groups.keys, np.int64).reshape(-1, 2)
        above.append(keys[:, 0])
        layers.append(keys[:, 1])
        n_nodes += len(keys)
    return node, np.concatenate(above), np.concatenate(layers)


def _finish(result: Result) -> Result:
    if not result.scalars["source"]:
        return result.with_notes(Note(_NONE))
    times = [name for name in ("device_ns", "host_ns") if name in result.table]
    # What is around takes at least as long, so that no path is kept without those above it.
    table = result.table.in_order(*(f"-{name}" for name in times), "depth", "path")
    notes = [Note.of("these are: {source}", source=result.scalars["source"])]
    if left_out := max(0, len(table) - _MOST):
        notes.append(Note.of("{n:count} path(s) that take less are left out", n=left_out))
    kept = result.with_table(table.head(_MOST)).with_scalars(left_out_count=left_out)
    return kept.with_notes(*notes)


TREE = Analysis(
    "tree",
    TREE_SPEC,
    uses=("ranges", "host_ops", "api_calls", *DEVICE_TABLES),
    whole=("ranges", "host_ops"),
    of_ranks=measure_tree,
    finish=_finish,
)

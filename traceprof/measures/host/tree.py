"""Ranges or operators inside one another, added up by the names around them: a flame graph.

They are those that stand for layers (`traceprof.measures.host.layers`), from the same source.
"""

from __future__ import annotations

import sys
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
    table nodes: one row per path of nested names, parents first, by GPU time, or by CPU time if no
        GPU time was recorded
    key path: names from the outermost to the innermost, separated by ›
    same name: innermost name of the path
    same depth [number]: number of names around the innermost name
    total count: number of times that the path ran in the window
    total host_ns: total duration on the CPU within the window
    total device_ns: total duration of the kernels and copies launched inside
    scalars:
    same source: source of the names; "" if the trace contains none
    same left_out_count: number of paths that the table omits because they take less time
    """)
_DEEPEST: Final = 14
_MOST: Final = 1_000
_NONE: Final = "the trace contains no ranges and no operators"


def measure_tree(ranks: Ranks) -> Result:
    """Return host and device time by path, in all ranks from the same source."""
    source = source_of_layers(ranks)
    if not source:
        nothing = {"nodes": TREE_SPEC.tables[0].of_rows()}
        return Result("tree", TREE_SPEC, nothing, {"source": "", "left_out_count": 0})
    # Of one rank no more is needed than what takes the most, and as much; of several all.
    return combine(ranks.each(_measure, source, _MOST if len(ranks) == 1 else sys.maxsize))


def _measure(trace: Trace, source: str, most: int) -> Result:
    spans = layer_spans(trace, source)
    node, above, layers = _nodes(spans)
    instants = spans.start_ns, spans.end_ns
    inside = trace.span.overlaps(*instants).astype(np.int64)
    starts, ends = map(trace.span.elapsed_ns, instants)
    measures = {"count": inside, "host_ns": ends - starts}
    if trace.recorded & set(DEVICE_TABLES):
        work = sum_work(trace, layers_of_work(trace, source), spans.parent, spans.depth)
        measures["device_ns"] = work.total_ns
    kept = np.flatnonzero(node >= 0)
    sums = {name: sums_at(node[kept], own[kept], len(above)) for name, own in measures.items()}
    used = np.flatnonzero((sums["count"] > 0) | (sums.get("device_ns", 0) > 0))
    longest = sums.get("device_ns", sums["host_ns"])[used]
    least = np.partition(longest, -most)[-most] if len(used) > most else 0
    told = used[longest >= least]
    chains = [_chain(place, above.data, layers.data) for place in told.tolist()]
    layer = tuple({layer for chain in chains for layer in chain})
    names, _ = paths_of_layers(tuple(spans.names[own] for own in layer))
    name_of = dict(zip(layer, names, strict=True))
    paths = [[name_of[own] for own in reversed(chain)] for chain in chains]
    about = {"path": map(BETWEEN.join, paths), "name": (path[-1] for path in paths)}
    columns = {name: objects(texts) for name, texts in about.items()}
    depth = np.array([len(path) - 1 for path in paths], np.int64)
    table = Table({**columns, "depth": depth, **{name: own[told] for name, own in sums.items()}})
    scalars = {"source": source, "left_out_count": len(used) - len(told)}
    return Result("tree", TREE_SPEC, {"nodes": table}, scalars)


def _chain(node: int, above: memoryview, layers: memoryview) -> list[int]:
    """Return the layer of a node and of those around it, the outermost last."""
    found = []
    while node >= 0:
        found.append(layers[node])
        node = above[node]
    return found


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
        return result.lacking(_NONE)
    times = [name for name in ("device_ns", "host_ns") if name in result.table]
    # What is around takes at least as long, so that no path is kept without those above it.
    table = result.table.in_order(*(f"-{name}" for name in times), "depth", "path")
    notes = [Note.of("Names come from {source}.", source=result.scalars["source"])]
    if left_out := max(0, len(table) + result.scalars["left_out_count"] - _MOST):
        notes.append(Note.of("The table omits {n:count} path(s) with less time.", n=left_out))
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

"""Sum nested ranges or operators by path of names, as for a flame graph.

The ranges or operators are the spans of layers (`traceprof.measures.host.layers`).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.host.layers import (
    PROGRAM_FUNCTIONS,
    LayerSpans,
    is_sampled,
    layer_spans,
    layers_of_work,
    paths_of_layers,
    source_of_layers,
)
from traceprof.measures.host.range_work import sum_work
from traceprof.measures.host.samples import notes_on_samples
from traceprof.measures.rows import Ints, sums_at
from traceprof.model.combining import combine
from traceprof.model.grouping import groups_of
from traceprof.model.nesting import levels_of
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table, objects
from traceprof.model.trace import DEVICE_TABLES, Trace

BETWEEN: Final = " › "
"""Separator of the names of a path."""

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
_MAX_LEVELS: Final = 14
_MAX_PATHS: Final = 1_000
_NO_NAMES: Final = "the trace contains no ranges and no operators"


def measure_tree(ranks: Ranks) -> Result:
    """Return host and device time by path. All ranks use the same source of names."""
    source = source_of_layers(ranks)
    if not source:
        nothing = {"nodes": TREE_SPEC.tables[0].of_rows()}
        return Result("tree", TREE_SPEC, nothing, {"source": "", "left_out_count": 0})
    # With one rank, the longest paths suffice. With several ranks, combining needs all paths.
    return _measured(ranks, source)


def measure_stacks(ranks: Ranks) -> Result:
    """Return host and device time by path of nested Python functions of the program."""
    return replace(_measured(ranks, PROGRAM_FUNCTIONS), name="function-stacks")


def _measured(ranks: Ranks, source: str) -> Result:
    """Return host and device time by path of the names of a source."""
    return combine(ranks.each(_measure, source, _MAX_PATHS if len(ranks) == 1 else sys.maxsize))


def _measure(trace: Trace, source: str, max_paths: int) -> Result:
    """Return the time by path of one rank: the ``max_paths`` longest paths, and ties."""
    spans = layer_spans(trace, source)
    node, parents, layers = _nodes(spans)
    instants = spans.start_ns, spans.end_ns
    inside = trace.span.overlaps(*instants).astype(np.int64)
    starts, ends = map(trace.span.elapsed_ns, instants)
    measures = {"count": inside, "host_ns": ends - starts}
    if trace.recorded & set(DEVICE_TABLES) and not is_sampled(trace, source):
        work = sum_work(trace, layers_of_work(trace, source), spans.parent, spans.depth)
        measures["device_ns"] = work.total_ns
    kept = np.flatnonzero(node >= 0)
    sums = {
        name: sums_at(node[kept], values[kept], len(parents)) for name, values in measures.items()
    }
    used = np.flatnonzero((sums["count"] > 0) | (sums.get("device_ns", 0) > 0))
    longest = sums.get("device_ns", sums["host_ns"])[used]
    threshold = np.partition(longest, -max_paths)[-max_paths] if len(used) > max_paths else 0
    reported = used[longest >= threshold]
    chains = [_chain(place, parents.data, layers.data) for place in reported.tolist()]
    used_layers = tuple({layer for chain in chains for layer in chain})
    names, _ = paths_of_layers(tuple(spans.names[layer] for layer in used_layers))
    name_of = dict(zip(used_layers, names, strict=True))
    paths = [[name_of[layer] for layer in reversed(chain)] for chain in chains]
    columns = {
        "path": objects(map(BETWEEN.join, paths)),
        "name": objects(path[-1] for path in paths),
        "depth": np.array([len(path) - 1 for path in paths], np.int64),
    }
    table = Table({**columns, **{name: values[reported] for name, values in sums.items()}})
    scalars = {"source": source, "left_out_count": len(used) - len(reported)}
    found = Result("tree", TREE_SPEC, {"nodes": table}, scalars)
    return found.with_notes(*notes_on_samples(trace)) if source == PROGRAM_FUNCTIONS else found


def _chain(node: int, parents: memoryview, layers: memoryview) -> list[int]:
    """Return the layers of a node and of its ancestors, the outermost last."""
    found = []
    while node >= 0:
        found.append(layers[node])
        node = parents[node]
    return found


def _nodes(spans: LayerSpans) -> tuple[Ints, Ints, Ints]:
    """Return the node of each span (-1: too deep), and the parent and layer of each node.

    Spans with the same path of names are one node. Parents precede their children.
    """
    node = np.full(len(spans.parent), -1, np.int64)
    parents_of_nodes, layers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    n_nodes = 0
    for rows in levels_of(spans.depth)[:_MAX_LEVELS]:
        parents = spans.parent[rows]
        parent_nodes = np.where(parents >= 0, node[np.maximum(parents, 0)], -1)
        groups = groups_of(parent_nodes, spans.layer[rows])
        node[rows] = n_nodes + groups.number
        keys = np.array(groups.keys, np.int64).reshape(-1, 2)
        parents_of_nodes.append(keys[:, 0])
        layers.append(keys[:, 1])
        n_nodes += len(keys)
    return node, np.concatenate(parents_of_nodes), np.concatenate(layers)


def _finish(result: Result) -> Result:
    """Return the combined result of all ranks with order and notes: at most `_MAX_PATHS` paths."""
    if not result.scalars["source"]:
        return result.lacking(_NO_NAMES)
    times = [name for name in ("device_ns", "host_ns") if name in result.table]
    # A parent takes at least as long as its children, so every path is kept with its parents.
    table = result.table.in_order(*(f"-{name}" for name in times), "depth", "path")
    notes = [Note.of("Names come from {source}.", source=result.scalars["source"])]
    if left_out := max(0, len(table) + result.scalars["left_out_count"] - _MAX_PATHS):
        notes.append(Note.of("The table omits {n:count} path(s) with less time.", n=left_out))
    kept = result.with_table(table.head(_MAX_PATHS)).with_scalars(left_out_count=left_out)
    return kept.with_notes(*notes)


TREE = Analysis(
    "tree",
    TREE_SPEC,
    uses=("ranges", "host_ops", "api_calls", *DEVICE_TABLES),
    whole=("ranges", "host_ops"),
    of_ranks=measure_tree,
    finish=_finish,
)


STACKS = Analysis(
    "function-stacks",
    TREE_SPEC,
    needs=("functions",),
    uses=("marks", "ranges", "host_ops", "api_calls", *DEVICE_TABLES),
    whole=("ranges", "host_ops", "functions"),
    of_ranks=measure_stacks,
    finish=_finish,
)

"""Measure host and device time by layer of the model.

The spans of layers come from the best source of a run, in this order: the ``layer:`` ranges that
`traceprof record --layers` injects; the ranges of ``emit_nvtx`` and ``record_function``; other NVTX
ranges; the operators of a CPU trace. Sequence numbers in names (", seq = 12") link a backward
operator to its forward operator. Python functions are measured in the same way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.facts import fact, of_rows
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.phases import owning_range_of_launches
from traceprof.measures.host.range_work import add_to_parents, is_outermost_of, sum_work
from traceprof.measures.host.ranges import find_parents, self_times
from traceprof.measures.host.samples import count_samples, notes_on_samples
from traceprof.measures.host.states import find_host_phases
from traceprof.measures.rows import Bools, Ints, bounds, sums_at
from traceprof.model.combining import combine
from traceprof.model.grouping import groups_of
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table, objects
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.functions import is_of_program, sleeps, waits
from traceprof.names.ranges import are_matched, codes_containing, numbers_in, plain_names

LAYER: Final = "layer:"
"""Prefix of the names of ranges that `traceprof record --layers` injects."""
_LAYER_BACKWARD: Final = "layer.backward:"
"""The same for the backward pass. These ranges do not nest: each belongs to the innermost layer."""
OUTSIDE: Final = "outside any layer"
"""Name of the row with the remaining CPU time of a recording without GPU activity."""

_RECORDED, _RANGES, _OPERATORS = "layers recorded by traceprof", "ranges", "operators"
_FUNCTIONS: Final = "functions"
PROGRAM_FUNCTIONS: Final = "functions of the program"
_SEQUENCE: Final = re.compile(r",\s*seq\s*=\s*(?P<number>\d{1,18})")
_BACKWARD: Final = re.compile(r"autograd::engine|Backward\d*\b")


@dataclass(frozen=True, slots=True, eq=False)
class LayerSpans:
    """The spans of layers in the whole recording, one element per span.

    ``parent`` is the span around it (-1: none), at ``depth`` - 1. ``layer`` is its place in
    ``names``. ``is_outermost`` is whether no span of the same layer is around it. ``backward`` are
    the spans of backward operators, and ``forward`` the spans of the forward operators that they
    belong to. Both are None if the names contain no sequence numbers.
    """

    start_ns: Ints
    end_ns: Ints
    parent: Ints
    depth: Ints
    layer: Ints
    names: tuple[str, ...]
    is_outermost: Bools
    backward: Ints | None
    forward: Ints | None


def source_of_layers(ranks: Ranks) -> str:
    """Return the best source of layers over all ranks; "" if there is none."""
    rows = [_rows_by_source(part) for part in ranks]
    return next((s for s in (_RECORDED, _RANGES, _OPERATORS) if any(len(r[s]) for r in rows)), "")


@fact
def _rows_by_source(trace: Trace) -> Mapping[str, Ints]:
    """Return the rows of ranges, or of host operators, of each source of layers."""
    is_nested = trace.ranges["kind"] == "push_pop"
    is_from_traceprof = trace.ranges["domain"] == TRACEPROF_DOMAIN
    names = trace.ranges["name"]
    likely = names.texts[codes_containing(names.texts, [LAYER])].tolist()
    is_layer = names.isin([text for text in likely if text.startswith(LAYER)])
    functions = trace.functions["name"]
    of_program = functions.by_text(list(map(is_of_program, functions.texts.tolist())))
    return {
        _RECORDED: np.flatnonzero(is_nested & is_from_traceprof & is_layer),
        _RANGES: np.flatnonzero(is_nested & ~is_from_traceprof),
        _OPERATORS: np.flatnonzero(trace.host_ops["source"] == "cpu_op"),
        _FUNCTIONS: np.arange(len(functions)),
        PROGRAM_FUNCTIONS: np.flatnonzero(of_program),
    }


def _spans(trace: Trace, source: str) -> Table:
    """Return the spans of layers from ``source``."""
    of_functions = dict.fromkeys((_FUNCTIONS, PROGRAM_FUNCTIONS), trace.functions)
    tables = {_OPERATORS: trace.host_ops, **of_functions}
    table = tables.get(source, trace.ranges)
    columns = table.select("start_ns", "end_ns", "process", "thread", "name")
    return columns.take(_rows_by_source(trace)[source])


def is_sampled(trace: Trace, source: str) -> bool:
    """Return whether the spans come from samples, which may be late for the launches of work."""
    return source in (_FUNCTIONS, PROGRAM_FUNCTIONS) and count_samples(trace.whole) > 0


@fact
def layer_spans(trace: Trace, source: str) -> LayerSpans:
    """Return the spans of layers from ``source``, and how they nest."""
    spans = _spans(trace, source)
    parent, depth = find_parents(spans)
    names = plain_names(spans["name"])
    layer = np.asarray(names.codes, np.int64)
    backward, forward = _link_backward(spans, parent)
    return LayerSpans(
        start_ns=spans["start_ns"],
        end_ns=spans["end_ns"],
        parent=parent,
        depth=depth,
        layer=layer,
        names=tuple(names.texts.tolist()),
        is_outermost=is_outermost_of(layer, parent),
        backward=backward,
        forward=forward,
    )


def layers_of_work(trace: Trace, source: str) -> Mapping[str, Ints]:
    """Return, by device table, the innermost span that launched each row in the window; -1: none.

    Work launched by threads without a span of their own, such as autograd's threads, belongs to the
    span that is open on the thread that calls backward.
    """
    return {name: _layers_of(trace, source, name) for name in DEVICE_TABLES}


@of_rows
def _layers_of(trace: Trace, source: str, table: str) -> Ints:
    return owning_range_of_launches(trace, _spans(trace, source), launches_of(trace, table))


def _link_backward(spans: Table, parent: Ints) -> tuple[Ints, Ints] | tuple[None, None]:
    """Return the outermost backward operators, and the forward operators with their numbers.

    Both are None if no backward operator has a sequence number.
    """
    names = spans["name"]
    sequence = names.by_text(numbers_in(names.texts, _SEQUENCE))
    is_backward = names.by_text(are_matched(names.texts, _BACKWARD))
    if not (is_backward & (sequence >= 0)).any():
        return None, None
    groups = groups_of(spans["process"], sequence)
    forward = np.flatnonzero(~is_backward & (sequence >= 0))
    # Of nested operators with the same sequence number, the innermost is the one with a gradient.
    last_forward = np.full(len(groups.keys), -1, np.int64)
    np.maximum.at(last_forward, groups.number[forward], forward)
    sequence_of_parent = np.where(parent >= 0, sequence[np.maximum(parent, 0)], -1)
    outermost = np.flatnonzero(is_backward & (sequence >= 0) & (sequence_of_parent != sequence))
    forward_of = last_forward[groups.number[outermost]]
    return outermost[forward_of >= 0], forward_of[forward_of >= 0]


LAYERS_SPEC: Final = ResultSpec.of(f"""
    table layers: one row per layer, by GPU time, or by CPU time if no GPU time was recorded; then a
        row for the time outside any layer follows, if traceprof recorded the layers
    key layer: path of the module, or name of the range or operator, or "{OUTSIDE}"
    key type: class of the module; "" if unknown
    total count: number of times that the layer ran in the window
    total host_ns: CPU time in the layer, without its backward pass
    total host_self_ns: CPU time in the layer, without nested layers
    total host_backward_ns: CPU time in the backward pass of the layer, with nested layers; missing
        if it was not recorded
    total device_ns: total duration of the kernels and copies that the layer launched, summed over
        streams and GPUs
    total device_self_ns: device_ns without nested layers
    total backward_ns: GPU time of the layer's backward operators; missing if the trace does not
        link backward operators to layers
    total work_count: number of kernels and copies that the layer launched
    scalars:
    same source: source of the layer names; "" if the trace contains none
    """)
_NO_HOST_BACKWARD: Final = (
    "The backward pass was not recorded by layer. It is part of the time outside any layer."
)
_NO_LAYERS: Final = (
    "the trace contains no layer names; record with `traceprof record --layers 2` or emit_nvtx"
)


def measure_layers(ranks: Ranks) -> Result:
    """Return the time of every layer. All ranks use the same source of layers."""
    source = source_of_layers(ranks)
    if not source:
        empty = LAYERS_SPEC.tables[0].of_rows()
        return Result("layers", LAYERS_SPEC, {"layers": empty}, {"source": ""})
    return combine(ranks.each(_measure, source))


def _measure(trace: Trace, source: str) -> Result:
    """Return the time of every layer of one rank."""
    spans = layer_spans(trace, source)
    outermost = spans.is_outermost
    starts, ends = map(trace.span.elapsed_ns, (spans.start_ns, spans.end_ns))
    measures = {
        "count": trace.span.overlaps(spans.start_ns, spans.end_ns).astype(np.int64),
        "host_ns": (ends - starts) * outermost,
        "host_self_ns": self_times(starts, ends, spans.parent),
    }
    if trace.recorded & set(DEVICE_TABLES) and not is_sampled(trace, source):
        measures |= _device_times(trace, source, spans)
    columns = {
        name: sums_at(spans.layer, values, len(spans.names)) for name, values in measures.items()
    }
    layers, types = paths_of_layers(spans.names)
    backward_ns = _host_backward_times(trace) if source == _RECORDED else {}
    if backward_ns:
        times = [backward_ns.get(path, 0) if path else 0 for path in layers]
        columns["host_backward_ns"] = np.array(times)
    table = Table({"layer": layers, "type": types, **columns})
    if source == _RECORDED and not trace.recorded & set(DEVICE_TABLES):
        top_ns = int((ends - starts)[spans.parent < 0].sum())
        table = Table.stacked([table, _rest_of_host(trace, table, top_ns, backward_ns.get("", 0))])
    return Result("layers", LAYERS_SPEC, {"layers": table}, {"source": source})


def _host_backward_times(trace: Trace) -> dict[str, int]:
    """Return the CPU time of the backward pass of each layer in the window, by path.

    The time of a layer contains that of its nested layers; that of the path "" is the sum.
    """
    names = trace.whole.ranges["name"]
    likely = names.texts[codes_containing(names.texts, [_LAYER_BACKWARD])].tolist()
    texts = [text for text in likely if text.startswith(_LAYER_BACKWARD)]
    ranges = trace.whole.ranges.take(names.isin(texts))
    ranges = ranges.take(ranges["domain"] == TRACEPROF_DOMAIN)
    starts, ends = map(trace.span.elapsed_ns, bounds(ranges))
    sums = Counter[str]()
    for text, ns in zip(ranges["name"], (ends - starts).tolist(), strict=True):
        parts = text.removeprefix(_LAYER_BACKWARD).rpartition(":")[0].split(".")
        for n in range(len(parts) + 1):
            sums[".".join(parts[:n])] += ns
    return dict(sums)


def _rest_of_host(trace: Trace, layers: Table, top_ns: int, layers_backward_ns: int) -> Table:
    """Return the row of the CPU time outside any layer.

    ``top_ns`` is the time of the outermost layers, and ``layers_backward_ns`` that of the backward
    pass of all layers. The row and the outermost layers add up to the window of each process.
    """
    passes = [
        host.times["backward"].total_ns
        for host in find_host_phases(trace)
        if "backward" in host.times
    ]
    processes = np.unique(_spans(trace.whole, _RECORDED)["process"])
    backward_ns = max(sum(passes) - layers_backward_ns, 0) if "host_backward_ns" in layers else 0
    whole_ns = trace.span.duration_ns * len(processes)
    rest_ns = max(whole_ns - top_ns - layers_backward_ns - backward_ns, 0)
    row = {name: [0] for name in layers} | {"layer": [OUTSIDE], "type": [""]}
    row |= {"host_ns": [rest_ns], "host_self_ns": [rest_ns]}
    if "host_backward_ns" in layers:
        row["host_backward_ns"] = [backward_ns]
    return Table(row)


def _device_times(trace: Trace, source: str, spans: LayerSpans) -> dict[str, Ints]:
    """Return the columns of device times and work counts, one element per span."""
    outermost = spans.is_outermost
    work = sum_work(trace, layers_of_work(trace, source), spans.parent, spans.depth)
    times = {"device_ns": work.total_ns * outermost, "device_self_ns": work.self_ns}
    if spans.forward is not None:
        backward = sums_at(spans.forward, work.total_ns[spans.backward], len(spans.parent))
        times["backward_ns"] = add_to_parents(backward, spans.parent, spans.depth) * outermost
    return times | {"work_count": work.work_count * outermost}


def paths_of_layers(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the paths and classes of layers. Names that traceprof did not record are paths."""
    split = [
        name.removeprefix(LAYER).rpartition(":")[::2] if name.startswith(LAYER) else (name, "")
        for name in names
    ]
    return [path for path, _ in split], [kind for _, kind in split]


def _finish(result: Result) -> Result:
    """Return the combined result of all ranks with order and notes, without unused layers."""
    table = result.table
    if not result.scalars["source"]:
        return result.lacking(_NO_LAYERS)
    is_rest = table["layer"].astype(str) == OUTSIDE
    is_used = (table["count"] > 0) | (table.get("work_count", 0) > 0)
    is_used |= table.get("host_backward_ns", np.zeros(len(table))) > 0
    used = table.take(is_used | is_rest)
    largest = "device_ns" if "device_ns" in used and used["device_ns"].any() else "host_ns"
    note = Note.of("Layer names come from {source}.", source=result.scalars["source"])
    both_ns = used[largest] + (used["host_backward_ns"] if _is_of_host(used) else 0)
    used = used.assign(order=both_ns, is_rest=used["layer"].astype(str) == OUTSIDE)
    table = used.in_order("is_rest", "-order", "layer", "type").without("order", "is_rest")
    finished = result.with_table(table).with_notes(note)
    if is_rest.any() and "host_backward_ns" not in table:
        return finished.with_notes(Note(_NO_HOST_BACKWARD))
    if "device_ns" not in table or "backward_ns" in table:
        return finished
    return finished.with_notes(
        Note(
            "Backward work is not reported by layer because no backward operator has the sequence "
            "number of a forward operator. Record with torch.autograd.profiler.emit_nvtx, which "
            "writes sequence numbers."
        )
    )


def _is_of_host(table: Table) -> bool:
    """Return whether the layers are sorted by CPU time, with their backward pass."""
    has_device_times = "device_ns" in table and bool(table["device_ns"].any())
    return "host_backward_ns" in table and not has_device_times


LAYERS = Analysis(
    "layers",
    LAYERS_SPEC,
    uses=("ranges", "host_ops", "kernels", "copies", "api_calls"),
    whole=("ranges", "host_ops"),
    of_ranks=measure_layers,
    finish=_finish,
)


FUNCTIONS_SPEC: Final = ResultSpec.of("""
    table functions: one row per Python function, by CPU time without nested functions
    key function: file, line, and name of the function
    key part: program, library, or waiting (for another thread or a message, or sleeping)
    total count: number of calls that last 50 µs or more
    total host_self_ns: CPU time in the function, without nested functions of 50 µs or more
    total host_ns: CPU time in the function; recursion counts once
    total device_ns: total duration of the kernels and copies launched in the function and in nested
        functions, summed over streams and GPUs
    total work_count: number of these kernels and copies
    """)
_PROGRAM, _LIBRARY, _WAITING = "program", "library", "waiting"


def measure_functions(trace: Trace) -> Result:
    """Return the time of every Python function of one rank."""
    measured = _measure(trace, _FUNCTIONS).table
    texts = [str(name) for name in measured["layer"]]
    table = measured.renamed(layer="function").assign(part=objects(map(_part_of, texts)))
    functions = FUNCTIONS_SPEC.tables[0].of_rows(table)
    found = Result("functions", FUNCTIONS_SPEC, {"functions": functions})
    return found.with_notes(*notes_on_samples(trace))


def _part_of(name: str) -> str:
    """Return what a function is part of: the program or a library; or that it waits."""
    if waits(name) or sleeps(name):
        return _WAITING
    return _PROGRAM if is_of_program(name) else _LIBRARY


def _finish_functions(result: Result) -> Result:
    """Return the combined result of all ranks in order, with a note on short calls."""
    table = result.table.take(result.table["count"] > 0)
    table = table.in_order("-host_self_ns", "function", "part")
    if result.notes:  # sampled, so the duration of a call is unknown
        return result.with_table(table)
    return result.with_table(table).with_notes(
        Note(
            "The time of calls below 50 µs is part of their caller. The profiler slows down "
            "functions that make many short calls."
        )
    )


FUNCTIONS = Analysis(
    "functions",
    FUNCTIONS_SPEC,
    needs=("functions",),
    uses=("marks", "ranges", "host_ops", "kernels", "copies", "api_calls"),
    whole=("ranges", "host_ops", "functions"),
    of_rank=measure_functions,
    finish=_finish_functions,
)

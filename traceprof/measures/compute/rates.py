"""FLOP/s by operator, class, phase and layer, against the dense peak of what each multiplies in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from traceprof.hardware.catalogue import Link
from traceprof.measures.analyses import Analysis
from traceprof.measures.compute.counted import TOLD, counted_kernels, counted_operators
from traceprof.measures.compute.operators import GROUPED
from traceprof.measures.device.peaks import flop_peak_of, peak_of
from traceprof.measures.facts import of_window
from traceprof.measures.host.layers import layer_spans, layers_of_work, source_of_layers
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.host.range_work import SpanKinds
from traceprof.measures.rows import Floats, grouped, ratio_of
from traceprof.model.combining import combine
from traceprof.model.grouping import grouped_by, groups_of, numbered
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Column, Names, Table, is_known, objects
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, UNCLAIMED

_MEASURES: Final = """
    total count: number of kernels
    total total_ns: total duration over streams and GPUs
    derived share_ratio: total_ns as a share of all kernels
    total flop: FLOPs of the operators that launched the kernels, from the sizes of their inputs. A
        multiply-add counts as two. Only matrix products, convolutions, and attention are counted
    derived achieved_flop_per_s: flop divided by known_flop_ns
    mean(known_flop_ns) peak_ratio: achieved rate as a share of the dense peak of each kernel's
        precision; empty if a peak is unknown
    total moved_bytes: minimum number of bytes that the operators move: every input read once, every
        output written once
    derived bandwidth_bytes_per_s: moved_bytes divided by known_bytes_ns; a lower bound
    mean(known_bytes_ns) memory_ratio: bandwidth as a share of peak memory bandwidth
    derived intensity [number]: arithmetic intensity: FLOPs per byte of moved_bytes
    total known_flop_ns: total_ns of the kernels with known FLOPs
    total unknown_ns: total_ns of compute-heavy kernels with unknown FLOPs (GEMM, convolution,
        attention, experts, recurrent, FFT, whole CUDA graphs); these kernels are not counted
    total known_bytes_ns: total_ns of the kernels with known bytes
    """
_SCALARS: Final = """
    scalars:
    total kernels_ns: total duration of all kernels
    total unknown_ns: total duration of compute-heavy kernels with unknown FLOPs
    total counted_by_torch_ns: total duration of kernels with FLOPs and bytes recorded by PyTorch
    """
_ADDED: Final = (
    *("count", "total_ns", "flop", "moved_bytes", "known_flop_ns", "unknown_ns", "known_bytes_ns"),
    *("ideal_ns", "memory_ns"),
)
"""What adds up of kernels; the last two give the shares of the peaks."""


_PEAKS: Final = """
    table peaks: one row per kernel precision: the hardware peaks at that precision
    key precision: precision of the kernel's multiplications
    same peak_flop_per_s: dense peak of the GPU at this precision
    same memory_bytes_per_s: peak memory bandwidth
    """


def _spec(table: str, about: str, keys: str, more: str = "") -> ResultSpec:
    return ResultSpec.of(f"table {table}: one row per {about}", keys, _MEASURES, more, _SCALARS)


@of_window
def measured_kernels(trace: Trace) -> Table:
    """Return what adds up of each kernel in the window: `_ADDED`, a row each.

    ideal_ns is its FLOPs at the peak, memory_ns its bytes at that of the memory (NaN: not known).
    """
    found = counted_kernels(trace)
    length = found["length_ns"].astype(np.int64)
    peak, memory = _peaks(trace, found["precision"])
    is_counted, moves = found["is_counted"], found["has_bytes"]
    return Table(
        {
            "count": np.ones(len(found), np.int64),
            "total_ns": length,
            "flop": found["flop"],
            "moved_bytes": found["n_bytes"],
            "known_flop_ns": length * is_counted,
            "unknown_ns": length * found["is_uncounted"],
            "counted_by_torch_ns": length * found["is_told"],
            "known_bytes_ns": length * moves,
            "ideal_ns": np.where(is_counted, ratio_of(found["flop"] * 1e9, peak), 0.0),
            "memory_ns": np.where(moves, ratio_of(found["n_bytes"] * 1e9, memory), 0.0),
        },
        len(found),
    )


def _peaks(trace: Trace, precision: Names) -> tuple[Floats, Floats]:
    """Return the FLOP/s and the bytes per second that each kernel can reach; 0: not known."""
    devices = trace.kernels["device"]
    flops, memory = np.zeros(len(devices)), np.zeros(len(devices))
    number, first = numbered(devices, precision.packed)
    for place, row in enumerate(first.tolist()):
        device = int(devices[row])
        own, link = number == place, peak_of(trace, device, Link.MEMORY)
        flops[own] = flop_peak_of(trace, device, str(precision[row])) or 0.0
        memory[own] = 0.0 if link is None else link.bytes_per_s
    return flops, memory


def _by(trace: Trace, name: str, spec: ResultSpec, keys: Mapping[str, Column]) -> Result:
    """Return the kernels by ``keys``, a value for each kernel."""
    trace.require("operator_inputs")
    kernels = measured_kernels(trace)
    groups, found = grouped(keys)
    sums = {own: groups.reduced(np.add, kernels[own]) for own in _ADDED}
    return _result(name, spec, Table({**found, **sums}), kernels)


def _result(name: str, spec: ResultSpec, table: Table, kernels: Table) -> Result:
    table = table.assign(
        peak_ratio=ratio_of(table["ideal_ns"], table["known_flop_ns"]),
        memory_ratio=ratio_of(table["memory_ns"], table["known_bytes_ns"]),
    )
    whole = {
        "kernels_ns": "total_ns",
        "unknown_ns": "unknown_ns",
        "counted_by_torch_ns": "counted_by_torch_ns",
    }
    scalars = {scalar: int(kernels[own].sum()) for scalar, own in whole.items()}
    return Result(name, spec, {spec.tables[0].name: spec.tables[0].of_rows(table)}, scalars)


OPERATORS_SPEC: Final = _spec(
    "flops",
    "PyTorch operator that launched kernels and precision, sorted by time",
    """
    key operator: outermost operator with known work; "" for the kernels of all other operators
    key precision: precision of the multiplications, from the operator's inputs and the kernel's
        name
    """,
    f"""{_PEAKS.rstrip()}
    table experts: one row per process with products of tokens sorted by expert
    key process: process
    total count: number of products
    total tokens_count: number of tokens in all products, including padding
    total experts_count: number of experts in all products
    derived expert_tokens [number]: mean number of tokens per expert
    total total_ns: total duration of the kernels
    """,
)
KERNELS_SPEC: Final = _spec(
    "flops_kernels",
    "kernel name and precision, sorted by time",
    """
    key name: kernel name
    key precision: precision of the kernel's multiplications
    """,
    _PEAKS,
)


def measure_operators(trace: Trace) -> Result:
    """Return FLOPs, bytes and rates by operator."""
    found, operators = counted_kernels(trace), counted_operators(trace)["name"]
    codes = np.append(operators.codes, len(operators.texts))
    names = Names.coded([*operators.texts.tolist(), ""], codes)
    computes = np.append(counted_operators(trace)["flop"] > 0, False)[found["operator"]]
    is_computing = computes | found["is_uncounted"]
    precision = found["precision"].plain()
    keys = {
        "operator": names[found["operator"]],
        "precision": Names.of(np.where(is_computing, precision, "")),
    }
    result = _with_peaks(trace, _by(trace, "flops", OPERATORS_SPEC, keys))
    experts = _experts(trace)
    table = result.spec.table("experts").of_rows(experts)
    return result.with_table(table, "experts") if len(experts) else result


def _experts(trace: Trace) -> Table:
    """Return tokens and time of the products in which tokens are sorted by expert, by process."""
    operators, found = counted_operators(trace), counted_kernels(trace)
    ns = np.bincount(found["operator"] + 1, found["length_ns"], len(operators) + 1)[1:]
    own = operators.assign(total_ns=ns.astype(np.int64))
    own = own.take(own["name"].isin(GROUPED) & (ns > 0))
    # Other than two sizes with three have tokens where weights are, or tell no number of experts.
    given = (json.loads(text)[:2] for text in own["dims"])
    told = [(a[0], b[0]) if len(a) == 2 and len(b) == 3 else (0, 0) for a, b in given]
    sizes = np.array(told, np.int64).reshape(-1, 2)
    own = own.assign(tokens_count=sizes[:, 0], experts_count=sizes[:, 1]).take(sizes[:, 1] > 0)
    table, groups = grouped_by(own, "process")
    summed = ("tokens_count", "experts_count", "total_ns")
    return table.assign(count=groups.counts, **{name: groups.sums(own[name]) for name in summed})


def measure_kernels(trace: Trace) -> Result:
    """Return FLOPs, bytes and rates by name of the kernel."""
    found = counted_kernels(trace)
    is_computing = found["is_counted"] | found["is_uncounted"]
    precision = Names.of(np.where(is_computing, found["precision"].plain(), ""))
    keys = {"name": trace.kernels["name"], "precision": precision}
    return _with_peaks(trace, _by(trace, "flops-kernels", KERNELS_SPEC, keys))


def _with_peaks(trace: Trace, result: Result) -> Result:
    """Return the result with the roofs over its kernels."""
    found = counted_kernels(trace)
    own = np.flatnonzero(found["is_counted"])
    peak, memory = _peaks(trace, found["precision"])
    precision = found["precision"][own]
    first = own[numbered(precision.packed)[1]]
    table = Table(
        {
            "precision": found["precision"][first].plain(),
            "peak_flop_per_s": np.where(peak[first] > 0, peak[first], np.nan),
            "memory_bytes_per_s": np.where(memory[first] > 0, memory[first], np.nan),
        },
        len(first),
    )
    return result.with_table(result.spec.table("peaks").of_rows(table), "peaks")


CLASSES_SPEC: Final = _spec(
    "flops_classes", "kernel class, sorted by time", "key activity: class of the kernels\n"
)


def measure_classes(trace: Trace) -> Result:
    """Return FLOPs, bytes and rates by class of kernels."""
    return _by(trace, "flops-classes", CLASSES_SPEC, {"activity": trace.kernels["activity"]})


PHASES_SPEC: Final = _spec(
    "flops_phases",
    "phase of the training loop, sorted by time",
    'key phase: phase that launched the kernels; "" if no phases are named\n',
)


def measure_phases(trace: Trace) -> Result:
    """Return FLOPs, bytes and rates by phase."""
    names = Names.coded([*PHASES, UNCLAIMED], phases_of_work(trace, "kernels") % (len(PHASES) + 1))
    return _by(trace, "flops-phases", PHASES_SPEC, {"phase": names})


LAYERS_SPEC: Final = _spec(
    "flops_layers",
    "model layer, sorted by time; a layer includes its inner layers, so the rows overlap",
    "key layer: module path, or the name of a range or operator\n",
)


def measure_layers(ranks: Ranks) -> Result:
    """Return FLOPs, bytes and rates by layer."""
    ranks.require("operator_inputs")
    return combine(ranks.each(_layers_of_rank, source_of_layers(ranks)))


def _layers_of_rank(trace: Trace, source: str) -> Result:
    kernels = measured_kernels(trace)
    if not source:
        empty = Table(dict.fromkeys(("layer", *_ADDED), ()))
        return _result("flops-layers", LAYERS_SPEC, empty, kernels)
    spans = layer_spans(trace, source)
    kinds = SpanKinds.of(spans.layer, len(spans.names), spans.parent)
    sums = {name: np.zeros(len(spans.names), kernels[name].dtype) for name in _ADDED}
    for kind, row in kinds.inside(layers_of_work(trace, source)["kernels"]):
        for name, own in sums.items():
            np.add.at(own, kind, kernels[name][row])
    # Paths of layers without their class: instances of one path are one layer.
    table = Table({"layer": objects(map(_path, spans.names)), **sums})
    table = _joined(table.take(table["count"] > 0))
    return _result("flops-layers", LAYERS_SPEC, table, kernels)


def _path(name: str) -> str:
    return name.removeprefix("layer:").rpartition(":")[0] if name.startswith("layer:") else name


def _joined(table: Table) -> Table:
    groups = groups_of(Names.of(table["layer"]).packed)
    sums = {name: groups.reduced(np.add, table[name]) for name in _ADDED}
    return table.take(groups.first_rows).assign(**sums)


def _finish(result: Result, keys: tuple[str, ...]) -> Result:
    spec = result.spec.tables[0]
    table = result.tables[spec.name]
    known = {"flop": table["known_flop_ns"] > 0, "moved_bytes": table["known_bytes_ns"] > 0}
    table = table.assign(
        **{name: np.where(own, np.rint(table[name]), np.nan) for name, own in known.items()}
    )
    table = table.assign(
        share_ratio=table["total_ns"] / (result.scalars["kernels_ns"] or np.nan),
        achieved_flop_per_s=ratio_of(table["flop"], table["known_flop_ns"] / 1e9),
        bandwidth_bytes_per_s=ratio_of(table["moved_bytes"], table["known_bytes_ns"] / 1e9),
        intensity=ratio_of(table["flop"], table["moved_bytes"]),
    )
    table = table.in_order("-total_ns", *keys)
    notes = [*_notes(result, table), *(_on_modules(table) if "layer" in keys else ())]
    result = result.with_table(table, spec.name).with_notes(*notes)
    return _on_experts(result) if "experts" in result.tables else result


_EXPERT: Final = re.compile(r"(.*\bexperts)\.(\d+)")


def _on_modules(table: Table) -> Iterator[Note]:
    """Yield how uneven experts are that are modules each: of the layer where they are it most."""
    found: dict[str, dict[int, float]] = {}
    for row in table.take(table["known_flop_ns"] > 0).rows():
        if own := _EXPERT.fullmatch(str(row["layer"])):
            found.setdefault(own[1], {})[int(own[2])] = row["flop"]
    every = [(max(e.values()) * len(e) / sum(e.values()), name) for name, e in found.items()]
    text = "{layer}: one of {n:count} experts has {times:number} times the mean FLOPs (tokens)."
    for times, layer in sorted(every)[-1:]:
        yield Note.of(text, layer=layer, n=len(found[layer]), times=times)


def _on_experts(result: Result) -> Result:
    """Return the result with how unevenly the ranks' experts have tokens, and what that costs."""
    table = result.tables["experts"].in_order("-tokens_count", "process")
    tokens, ns = table["tokens_count"], table["total_ns"]
    table = table.assign(expert_tokens=ratio_of(tokens, table["experts_count"]))
    result = result.with_table(table, "experts")
    if len(table) < 2 or len({*table["count"].tolist()}) > 1:
        return result
    text = (
        "The experts of the busiest of {n:count} ranks get {times:number} times the mean number of "
        "tokens. Their matrix products take {more:ns} longer than the mean."
    )
    told = {"times": tokens.max() / tokens.mean(), "more": ns[0] - ns.mean()}
    return result.with_notes(Note.of(text, n=len(table), **told))


_ABOVE: Final = {
    "peak_ratio": (
        "{name} exceeds the dense peak ({share:ratio}). Either the GPU model is wrong (--gpu), "
        "masked attention was counted in full, or sparse tensor cores were used."
    ),
    "memory_ratio": (
        "{name} exceeds peak memory bandwidth ({share:ratio}). Either part of the data was in a "
        "cache, or the GPU model is wrong (--gpu)."
    ),
}


def _notes(result: Result, table: Table) -> list[Note]:
    whole, unknown = result.scalars["kernels_ns"], result.scalars["unknown_ns"]
    notes = []
    if whole and unknown:
        text = (
            "Compute-heavy kernels with unknown FLOPs take {share:ratio} of kernel time. They are "
            "not counted, since no PyTorch operator with complete input sizes launched them."
        )
        notes.append(Note.of(text, share=unknown / whole))
    if told := result.scalars["counted_by_torch_ns"]:
        notes.append(Note.of(TOLD, share=told / whole))
    keys = [key.name for key in result.spec.tables[0] if key.is_key]
    for ratio, text in _ABOVE.items():
        for row in table.take(np.nan_to_num(table[ratio]) > 1).rows()[:1]:
            name = " ".join(filter(None, (str(row[key]) for key in keys)))
            notes.append(Note.of(text, name=name or "the other work", share=row[ratio]))
    counted = table.take(table["known_flop_ns"] > 0)
    if len(counted) and not is_known(counted["peak_ratio"]).any():
        notes.append(
            Note("Shares of peak are not reported: specify the GPU with --gpu or --hardware.")
        )
    return notes


_READS: Final = ("kernels", "operator_inputs")
_USES: Final = ("host_ops", "api_calls", "devices", "environment")


def _analysis(name: str, spec: ResultSpec, *keys: str, **more: Any) -> Analysis:
    finish = partial(_finish, keys=keys)
    return Analysis(name, spec, needs=_READS, whole=_READS, finish=finish, **more)


FLOPS: Final = _analysis(
    "flops", OPERATORS_SPEC, "operator", "precision", uses=_USES, of_rank=measure_operators
)
FLOPS_KERNELS: Final = _analysis(
    "flops-kernels", KERNELS_SPEC, "name", "precision", uses=_USES, of_rank=measure_kernels
)
FLOPS_CLASSES: Final = _analysis(
    "flops-classes", CLASSES_SPEC, "activity", uses=_USES, of_rank=measure_classes
)
FLOPS_PHASES: Final = _analysis(
    "flops-phases", PHASES_SPEC, "phase", uses=(*_USES, "ranges"), of_rank=measure_phases
)
FLOPS_LAYERS: Final = _analysis(
    "flops-layers", LAYERS_SPEC, "layer", uses=(*_USES, "ranges", "copies"), of_ranks=measure_layers
)

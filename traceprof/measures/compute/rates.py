"""FLOP/s by operator, class, phase, and layer, compared with the dense peak of each precision."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from traceprof.hardware.catalogue import Link
from traceprof.measures.analyses import Analysis
from traceprof.measures.compute.counted import (
    TOLD,
    counted_kernels,
    counted_operators,
    launching_operators,
)
from traceprof.measures.compute.experts import (
    experts_of_products,
    note_uneven_modules,
    with_expert_balance,
)
from traceprof.measures.device.peaks import flop_peak_of, peak_of
from traceprof.measures.facts import of_window
from traceprof.measures.host.layers import layer_spans, layers_of_work, source_of_layers
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.host.range_work import SpanKinds
from traceprof.measures.rows import Floats, grouped, lengths_of, owner_of, ratio_of
from traceprof.measures.steps.ledger import step_ledger
from traceprof.model.combining import combine
from traceprof.model.grouping import groups_of, numbered
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Column, Names, Table, is_known, objects
from traceprof.model.tables import ABSENT
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
    total known_flop_ns: total_ns of the operators with known FLOPs, with all kernels that they
        launch, such as layout conversions; by kernel and by class: of the kernels with known FLOPs
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
_SUMMED: Final = (
    *("count", "total_ns", "flop", "moved_bytes", "known_flop_ns", "unknown_ns", "known_bytes_ns"),
    *("ideal_ns", "memory_ns"),
)
"""Columns that are summed over kernels; the last two give the shares of the peaks."""


_PEAKS: Final = """
    table peaks: one row per kernel precision: the hardware peaks at that precision
    key precision: precision of the kernel's multiplications
    same peak_flop_per_s: dense peak of the GPU at this precision
    same memory_bytes_per_s: peak memory bandwidth
    """


def rates_spec(table: str, about: str, keys: str, tables: str = "") -> ResultSpec:
    """Return the declaration of a table of rates with one row per ``about``."""
    return ResultSpec.of(f"table {table}: one row per {about}", keys, _MEASURES, tables, _SCALARS)


@of_window
def measured_kernels(trace: Trace) -> Table:
    """Return the columns of `_SUMMED` and counted_by_torch_ns, one row per kernel in the window.

    ideal_ns is the time of the FLOPs at the peak. memory_ns is the time of the bytes at the peak
    memory bandwidth. Both are NaN if the peak is unknown, and 0 if the FLOPs or bytes are unknown.
    counted_by_torch_ns is the duration if PyTorch recorded the FLOPs and bytes, otherwise 0.
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
            "counted_by_torch_ns": length * found["is_from_torch"],
            "known_bytes_ns": length * moves,
            "ideal_ns": np.where(is_counted, ratio_of(found["flop"] * 1e9, peak), 0.0),
            "memory_ns": np.where(moves, ratio_of(found["n_bytes"] * 1e9, memory), 0.0),
        },
        len(found),
    )


def _peaks(trace: Trace, precision: Names) -> tuple[Floats, Floats]:
    """Return the peak FLOP/s and the peak memory bytes/s for each kernel; 0 if unknown."""
    devices = trace.kernels["device"]
    flops, memory = np.zeros(len(devices)), np.zeros(len(devices))
    number, first_rows = numbered(devices, precision)
    for place, row in enumerate(first_rows.tolist()):
        device = int(devices[row])
        in_group, memory_peak = number == place, peak_of(trace, device, Link.MEMORY)
        flops[in_group] = flop_peak_of(trace, device, str(precision[row])) or 0.0
        memory[in_group] = 0.0 if memory_peak is None else memory_peak.bytes_per_s
    return flops, memory


@of_window
def kernels_of_operators(trace: Trace) -> Table:
    """Return `measured_kernels` with known_flop_ns for every kernel of an operator with FLOPs.

    Layout conversions and reductions of an operator are part of its time.
    """
    kernels = measured_kernels(trace)
    has_flop = np.append(counted_operators(trace)["flop"] > 0, False)
    is_counted = has_flop[counted_kernels(trace)["operator"]]
    return kernels.assign(known_flop_ns=kernels["total_ns"] * is_counted)


def rates_by(
    trace: Trace, name: str, spec: ResultSpec, keys: Mapping[str, Column], kernels: Table
) -> Result:
    """Return the rates of ``kernels`` grouped by ``keys``; each column has one value per kernel."""
    trace.require("operator_inputs")
    groups, found = grouped(keys)
    found |= {column: groups.reduced(np.add, kernels[column]) for column in _SUMMED}
    return _make_result(name, spec, Table(found), kernels)


def _make_result(name: str, spec: ResultSpec, table: Table, kernels: Table) -> Result:
    """Return a result of a table of sums, with shares of peaks and the totals over ``kernels``."""
    table = table.assign(
        peak_ratio=ratio_of(table["ideal_ns"], table["known_flop_ns"]),
        memory_ratio=ratio_of(table["memory_ns"], table["known_bytes_ns"]),
    )
    columns = (
        ("kernels_ns", "total_ns"),
        ("unknown_ns", "unknown_ns"),
        ("counted_by_torch_ns", "counted_by_torch_ns"),
    )
    scalars = {scalar: int(kernels[column].sum()) for scalar, column in columns}
    return Result(name, spec, {spec.tables[0].name: spec.tables[0].of_rows(table)}, scalars)


OPERATORS_SPEC: Final = rates_spec(
    "flops",
    "PyTorch operator that launched kernels and precision, sorted by time",
    """
    key operator: outermost operator with known work, otherwise the innermost operator; "" if no
        operator launched the kernel
    key precision: precision of the multiplications, from the operator's inputs and the kernel's
        name
    """,
    f"""{_PEAKS.rstrip()}
    table experts: one row per process with products of tokens sorted by expert
    key process: process
    total count: number of products
    total tokens_count: number of tokens in all products, including padding
    same experts_count: number of experts of a product
    same expert_tokens [number]: mean number of tokens of an expert in one product
    total total_ns: total duration of the kernels
    """,
)
KERNELS_SPEC: Final = rates_spec(
    "flops_kernels",
    "kernel name and precision, sorted by time",
    """
    key name: kernel name
    key precision: precision of the kernel's multiplications
    """,
    _PEAKS,
)


def texts_of_operators(trace: Trace, column: str) -> Names:
    """Return a column of the operator that launched each kernel; "" for unknown operators."""
    texts = counted_operators(trace)[column]
    codes = np.append(texts.codes, len(texts.texts))
    of_kernel: Names = Names.coded([*texts.texts.tolist(), ""], codes)[
        counted_kernels(trace)["operator"]
    ]
    return of_kernel


def _operators_of_kernels(trace: Trace) -> dict[str, Names]:
    """Return the keys of `OPERATORS_SPEC` for each kernel in the window."""
    found = counted_kernels(trace)
    has_flop = np.append(counted_operators(trace)["flop"] > 0, False)[found["operator"]]
    precision = np.where(has_flop | found["is_uncounted"], found["precision"].plain(), "")
    names = texts_of_operators(trace, "name").plain()
    innermost = launching_operators(trace)["name"][trace.rows_in_whole("kernels")].plain()
    names = np.where(found["operator"] >= 0, names, innermost)
    return {"operator": Names.of(names), "precision": Names.of(precision)}


def measure_operators(trace: Trace) -> Result:
    """Return FLOPs, bytes, and rates by operator."""
    keys = _operators_of_kernels(trace)
    kernels = kernels_of_operators(trace)
    result = with_peaks(trace, rates_by(trace, "flops", OPERATORS_SPEC, keys, kernels))
    experts = result.spec.table("experts").of_rows(experts_of_products(trace))
    return result.with_table(experts, "experts") if len(experts) else result


def _names_of_kernels(trace: Trace) -> dict[str, Names]:
    """Return the keys of `KERNELS_SPEC` for each kernel in the window."""
    found = counted_kernels(trace)
    is_heavy = found["is_counted"] | found["is_uncounted"]
    precision = Names.of(np.where(is_heavy, found["precision"].plain(), ""))
    return {"name": trace.kernels["name"], "precision": precision}


def measure_kernels(trace: Trace) -> Result:
    """Return FLOPs, bytes, and rates by kernel name."""
    keys, kernels = _names_of_kernels(trace), measured_kernels(trace)
    return with_peaks(trace, rates_by(trace, "flops-kernels", KERNELS_SPEC, keys, kernels))


def longest_executions(ranks: Ranks, *, by_kernel: bool) -> Table:
    """Return the longest kernel of each row of `KERNELS_SPEC` (``by_kernel``) or `OPERATORS_SPEC`.

    Columns: the keys of the row, process, start_ns, length_ns, and step: the step in which it ran,
    `ABSENT` if none.
    """
    found = Table.stacked(ranks.each(_longest_of_rank, by_kernel=by_kernel))
    found = _longest_rows(found.in_order("-length_ns", "start_ns"), *list(found)[:2])
    ledger = step_ledger(ranks.whole)
    spans = ledger.assign(start_ns=ledger["device_start_ns"], end_ns=ledger["device_end_ns"])
    row = owner_of(spans, found["process"], found["start_ns"])
    return found.assign(step=np.append(ledger["step"], ABSENT)[row])


def _longest_of_rank(trace: Trace, *, by_kernel: bool) -> Table:
    """Return the longest kernel of each row, without its step."""
    keys = _names_of_kernels(trace) if by_kernel else _operators_of_kernels(trace)
    kernels = trace.kernels.select("process", "start_ns").assign(
        length_ns=lengths_of(trace.kernels)
    )
    table = Table({**keys, **kernels.columns}).in_order("-length_ns", "start_ns")
    return _longest_rows(table, *keys)


def _longest_rows(table: Table, *keys: str) -> Table:
    """Return the first row of each combination of ``keys``."""
    return table.take(numbered(*(table[key] for key in keys))[1])


def with_peaks(trace: Trace, result: Result) -> Result:
    """Return the result with table ``peaks``: hardware peaks at each precision of its kernels."""
    found = counted_kernels(trace)
    rows = np.flatnonzero(found["is_counted"])
    peak, memory = _peaks(trace, found["precision"])
    first_rows = rows[numbered(found["precision"][rows])[1]]
    table = Table(
        {
            "precision": found["precision"][first_rows].plain(),
            "peak_flop_per_s": np.where(peak[first_rows] > 0, peak[first_rows], np.nan),
            "memory_bytes_per_s": np.where(memory[first_rows] > 0, memory[first_rows], np.nan),
        },
        len(first_rows),
    )
    return result.with_table(result.spec.table("peaks").of_rows(table), "peaks")


CLASSES_SPEC: Final = rates_spec(
    "flops_classes", "kernel class, sorted by time", "key activity: class of the kernels\n"
)


def measure_classes(trace: Trace) -> Result:
    """Return FLOPs, bytes, and rates by kernel class."""
    keys = {"activity": trace.kernels["activity"]}
    return rates_by(trace, "flops-classes", CLASSES_SPEC, keys, measured_kernels(trace))


PHASES_SPEC: Final = rates_spec(
    "flops_phases",
    "phase of the training loop, sorted by time",
    'key phase: phase that launched the kernels; "" if no phases are named\n',
)


def measure_phases(trace: Trace) -> Result:
    """Return FLOPs, bytes, and rates by phase."""
    names = Names.coded([*PHASES, UNCLAIMED], phases_of_work(trace, "kernels") % (len(PHASES) + 1))
    kernels = kernels_of_operators(trace)
    return rates_by(trace, "flops-phases", PHASES_SPEC, {"phase": names}, kernels)


LAYERS_SPEC: Final = rates_spec(
    "flops_layers",
    "model layer, sorted by time; a layer includes its inner layers, so the rows overlap",
    "key layer: module path, or the name of a range or operator\n",
)


def measure_layers(ranks: Ranks) -> Result:
    """Return FLOPs, bytes, and rates by layer."""
    ranks.require("operator_inputs")
    return combine(ranks.each(_layers_of_rank, source_of_layers(ranks)))


def _layers_of_rank(trace: Trace, source: str) -> Result:
    """Return FLOPs, bytes, and rates by layer of one rank; no rows if ``source`` is empty."""
    kernels = kernels_of_operators(trace)
    if not source:
        empty = Table(dict.fromkeys(("layer", *_SUMMED), ()))
        return _make_result("flops-layers", LAYERS_SPEC, empty, kernels)
    spans = layer_spans(trace, source)
    kinds = SpanKinds.of(spans.layer, len(spans.names), spans.parent)
    sums = {name: np.zeros(len(spans.names), kernels[name].dtype) for name in _SUMMED}
    for kind, row in kinds.inside(layers_of_work(trace, source)["kernels"]):
        for name, total in sums.items():
            np.add.at(total, kind, kernels[name][row])
    # Instances of one module path are one layer, whatever their class.
    table = Table({"layer": objects(map(_module_path, spans.names)), **sums})
    table = _merge_layers(table.take(table["count"] > 0))
    return _make_result("flops-layers", LAYERS_SPEC, table, kernels)


def _module_path(name: str) -> str:
    """Return the module path of a layer, without its class; other names are unchanged."""
    return name.removeprefix("layer:").rpartition(":")[0] if name.startswith("layer:") else name


def _merge_layers(table: Table) -> Table:
    """Return one row per layer; rows of the same layer are summed."""
    groups = groups_of(Names.of(table["layer"]).packed)
    return table.take(groups.first_rows).assign(
        **{name: groups.reduced(np.add, table[name]) for name in _SUMMED}
    )


def finish_rates(result: Result, keys: tuple[str, ...]) -> Result:
    """Return the result with derived columns, sorted by time, and with notes."""
    spec = result.spec.tables[0]
    table = result.tables[spec.name]
    table = table.assign(
        flop=np.where(table["known_flop_ns"] > 0, np.rint(table["flop"]), np.nan),
        moved_bytes=np.where(table["known_bytes_ns"] > 0, np.rint(table["moved_bytes"]), np.nan),
    )
    table = table.assign(
        share_ratio=table["total_ns"] / (result.scalars["kernels_ns"] or np.nan),
        achieved_flop_per_s=ratio_of(table["flop"], table["known_flop_ns"] / 1e9),
        bandwidth_bytes_per_s=ratio_of(table["moved_bytes"], table["known_bytes_ns"] / 1e9),
        intensity=ratio_of(table["flop"], table["moved_bytes"]),
    ).in_order("-total_ns", *keys)
    notes = [*_notes(result, table), *(note_uneven_modules(table) if "layer" in keys else ())]
    result = result.with_table(table, spec.name).with_notes(*notes)
    return with_expert_balance(result) if "experts" in result.tables else result


_OVER_PEAK_TEXTS: Final = {
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
    """Return notes on unknown FLOPs, FLOPs from PyTorch, and rates above the peak."""
    whole, unknown = result.scalars["kernels_ns"], result.scalars["unknown_ns"]
    notes = []
    if whole and unknown:
        notes.append(
            Note.of(
                "Compute-heavy kernels with unknown FLOPs take {share:ratio} of kernel time. They "
                "are not counted, since no PyTorch operator with complete input sizes launched "
                "them.",
                share=unknown / whole,
            )
        )
    if recorded_ns := result.scalars["counted_by_torch_ns"]:
        notes.append(Note.of(TOLD, share=recorded_ns / whole))
    keys = [key.name for key in result.spec.tables[0] if key.is_key]
    for ratio, text in _OVER_PEAK_TEXTS.items():
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
USES: Final = ("host_ops", "api_calls", "devices", "environment")


def rates_analysis(name: str, spec: ResultSpec, *keys: str, **options: Any) -> Analysis:
    """Return the analysis of a table of rates, sorted by time and then by ``keys``."""
    return Analysis(
        name, spec, needs=_READS, whole=_READS, finish=partial(finish_rates, keys=keys), **options
    )


FLOPS: Final = rates_analysis(
    "flops", OPERATORS_SPEC, "operator", "precision", uses=USES, of_rank=measure_operators
)
FLOPS_KERNELS: Final = rates_analysis(
    "flops-kernels", KERNELS_SPEC, "name", "precision", uses=USES, of_rank=measure_kernels
)
FLOPS_CLASSES: Final = rates_analysis(
    "flops-classes", CLASSES_SPEC, "activity", uses=USES, of_rank=measure_classes
)
FLOPS_PHASES: Final = rates_analysis(
    "flops-phases", PHASES_SPEC, "phase", uses=(*USES, "ranges"), of_rank=measure_phases
)
FLOPS_LAYERS: Final = rates_analysis(
    "flops-layers", LAYERS_SPEC, "layer", uses=(*USES, "ranges", "copies"), of_ranks=measure_layers
)

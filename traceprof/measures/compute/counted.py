"""FLOPs and bytes of kernels, from the PyTorch operators that launched them.

When operators call each other, the outermost operator with known work counts, with all kernels
that it launched. Its FLOPs are divided among its matrix kernels in proportion to their durations.
If it launched no matrix kernel, they are divided among all of its kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceprof.measures.compute.inputs import TENSOR_LIST, Work
from traceprof.measures.compute.operators import work_of, work_of_convolutions
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import innermost, launches_of
from traceprof.measures.host.ranges import find_parents
from traceprof.measures.host.recomputed import are_recomputed
from traceprof.measures.rows import Bools, Floats, Ints, lengths_of, ratio_of
from traceprof.model.activity import Activity
from traceprof.model.grouping import groups_of, pieces_of
from traceprof.model.table import Names, Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import (
    MATRIX_WORK,
    MatrixUnits,
    element_bytes_of,
    matrix_units,
    precisions,
    wide_precision_of,
)

COMPUTE_HEAVY: Final = frozenset(
    {*MATRIX_WORK, Activity.MOE, Activity.RECURRENT, Activity.FFT, Activity.CUDA_GRAPH}
)
"""Compute-heavy kernel classes: FLOPs are missing if the operator of such a kernel is unknown."""
WITHOUT_TENSOR_CORES: Final = " without tensor cores"
"""Suffix of a tensor-core precision, for kernels that do not use tensor cores."""
TOLD: Final = (
    "For {share:ratio} of kernel time, FLOPs and bytes are from PyTorch (kernel_flop, "
    "kernel_num_gb), since the input sizes do not determine them."
)
_N_VALUES_OPERATOR: Final = "aten::_nnz"
_TENSOR_CORE_PRECISIONS: Final = ("fp16", "bf16")


@fact
def counted_operators(trace: Trace) -> Table:
    """Return the operators with known work; no operator is inside another one.

    Columns: start_ns, end_ns, process, thread, name and dims (Names), flop, model_flop (0 for
    recomputation), n_bytes, precision and shape (Names), and is_from_torch, as in `Work`.
    """
    given = trace.operator_inputs
    texts = [given[name] for name in ["name", "dims", "types", "concrete", "flop", "gigabytes"]]
    groups = groups_of(*texts, _list_bytes(trace))
    found, sizes = [], []
    for *key, list_bytes in groups.keys:
        *inputs, flop, moved = (
            str(column.texts[code]) for column, code in zip(texts, key, strict=True)
        )
        name, dims, types, concrete = inputs
        found.append(work_of(name, dims, types, concrete, (flop, moved), list_bytes or math.nan))
        sizes.append((name, dims))
    found = [own or other for own, other in zip(found, work_of_convolutions(sizes), strict=True)]
    rows = np.flatnonzero(np.array([work is not None for work in found], np.bool_)[groups.number])
    place, works = groups.number[rows], [work or Work() for work in found]
    table = given.select("start_ns", "end_ns", "process", "thread", "name", "dims").take(rows)
    model_flop = np.array([work.model_flops for work in works], np.float64)[place]
    is_recomputed = are_recomputed(
        trace, *(table[key] for key in ("process", "thread", "start_ns"))
    )
    table = table.assign(
        flop=np.array([work.flops for work in works], np.float64)[place],
        model_flop=model_flop * ~is_recomputed,
        n_bytes=np.array([work.n_bytes for work in works], np.float64)[place],
        precision=Names.of([work.precision for work in works])[place],
        shape=Names.of([work.shape for work in works])[place],
        is_from_torch=np.array([work.is_from_torch for work in works], np.bool_)[place],
    )
    table = table.take(find_parents(table)[0] < 0)
    dense = ~_are_sparse(table, given)
    return table.assign(
        flop=table["flop"] * dense,
        model_flop=table["model_flop"] * dense,
        n_bytes=np.where(dense, table["n_bytes"], np.nan),
    )


def _list_bytes(trace: Trace) -> Ints:
    """Return the bytes per element of the lists of tensors of each operator; 0 if unknown.

    The element type of a list is not recorded. But the kernels that read it have it in their name.
    """
    given = trace.operator_inputs
    has_list = given["types"].by_text([TENSOR_LIST in text for text in given["types"].texts])
    rows = np.flatnonzero(has_list)
    launches, names = launches_of(trace, "kernels"), trace.kernels["name"]
    found = np.zeros(len(given), np.int64)
    if not len(rows):
        return found
    operators = innermost(given.take(rows), launches.process, launches.thread, launches.start_ns)
    widths = names.by_text([element_bytes_of(name) for name in names.texts])
    is_known = launches.is_known & (operators >= 0) & (widths > 0)
    operators, widths = operators[is_known], widths[is_known]
    narrowest = np.full(len(rows), np.iinfo(np.int64).max)
    np.minimum.at(narrowest, operators, widths)
    np.maximum.at(found, rows[operators], widths)
    found[rows] *= found[rows] == narrowest  # kernels of several types: unknown
    return found


def _are_sparse(operators: Table, given: Table) -> Bools:
    """Return which operators have a sparse input, whose number of values is not recorded.

    The type of such an input is recorded as that of its values. But the operator asks for their
    number, with an operator of its own.
    """
    asking = given.take(given["name"].isin({_N_VALUES_OPERATOR}))
    rows = innermost(operators, *(asking[name] for name in ("process", "thread", "start_ns")))
    are_sparse = np.zeros(len(operators), np.bool_)
    are_sparse[rows[rows >= 0]] = True
    return are_sparse


@fact
def work_of_kernels(trace: Trace) -> Table:
    """Return the work of each kernel of the whole recording, one row per kernel.

    Columns: operator (row index in `counted_operators`, -1 if unknown), flop, model_flop and
    n_bytes (shares of the operator's work; 0 if it has none), precision (Names: from the operator's
    inputs, otherwise from the kernel name), is_uncounted (a compute-heavy kernel with unknown
    FLOPs) and is_from_torch (PyTorch recorded the FLOPs and bytes).
    """
    operators, launches = counted_operators(trace), launches_of(trace, "kernels")
    operator_rows = innermost(operators, launches.process, launches.thread, launches.start_ns)
    operator_rows = np.where(launches.is_known, operator_rows, -1)
    # Kernels are processed in pieces, since the intermediate arrays of all kernels are large.
    kernels = trace.kernels.select("start_ns", "end_ns", "name", "activity")

    def pieces() -> Iterator[tuple[Ints, Table]]:
        return (
            (operator_rows[rows], kernels.take(rows))
            for rows in pieces_of(max(len(operator_rows), 1))
        )

    sums = np.sum([_sum_operator_times(operators, *piece) for piece in pieces()], axis=0)
    work = Table.stacked([_split_work(operators, sums, *piece).on_disk() for piece in pieces()])
    precision_codes = np.append(operators["precision"].codes, -1)[operator_rows]
    groups = groups_of(kernels["name"], kernels["activity"], precision_codes)
    first_rows = groups.first_rows
    precision, on_units = _find_precision(
        operators, operator_rows[first_rows], kernels.take(first_rows)
    )
    has_flop = work["flop"] > 0
    sources = [has_flop, has_flop & on_units[groups.number]]
    precision = _share_precision(precision[groups.number], operator_rows, sources, len(operators))
    return Table({"operator": operator_rows, **work.columns, "precision": precision})


@fact
def launching_operators(trace: Trace) -> Table:
    """Return the name of the innermost operator that launched each kernel; "" if none did."""
    given, launches = trace.operator_inputs, launches_of(trace, "kernels")
    rows = innermost(given, launches.process, launches.thread, launches.start_ns)
    names = np.append(given["name"].plain(), "")[np.where(launches.is_known, rows, -1)]
    return Table({"name": Names.of(names)})


def _sum_operator_times(operators: Table, row: Ints, kernels: Table) -> Floats:
    """Return the time of each operator's matrix kernels and of all its kernels, in ns.

    The array has the shape (2, number of operators).
    """
    is_known, lengths = row >= 0, lengths_of(kernels)
    times = (lengths * kernels["activity"].isin(MATRIX_WORK), lengths)
    sums = [np.bincount(row[is_known], ns[is_known], minlength=len(operators)) for ns in times]
    return np.stack(sums).astype(np.float64)


def _split_work(operators: Table, sums: Floats, row: Ints, kernels: Table) -> Table:
    """Return the columns of `work_of_kernels` that each kernel takes from its operator.

    ``sums`` are those of `_sum_operator_times`; ``row`` is the operator of each kernel.
    """
    lengths, activity = lengths_of(kernels).astype(np.float64), kernels["activity"]
    matrix_ns, all_ns = (np.append(ns, 0.0)[row] for ns in sums)
    time_share = ratio_of(lengths, all_ns)
    matrix_share = ratio_of(lengths * activity.isin(MATRIX_WORK), matrix_ns)
    flop_share = np.where(matrix_ns > 0, matrix_share, time_share)
    shares = {"flop": flop_share, "model_flop": flop_share, "n_bytes": np.nan_to_num(time_share)}
    has_work = np.append(operators["flop"] > 0, False)[row]
    return Table(
        {
            **{
                name: np.nan_to_num(np.append(operators[name], 0.0)[row] * share)
                for name, share in shares.items()
            },
            "is_uncounted": activity.isin(COMPUTE_HEAVY) & ~has_work,
            "is_from_torch": np.append(operators["is_from_torch"], False)[row],
        }
    )


def _share_precision(precision: Names, row: Ints, sources: Sequence[Bools], n: int) -> Names:
    """Return the precision of kernels, the same for all kernels of an operator.

    A kernel whose name shows the precision decides for its operator's other kernels. ``sources``
    are masks of these kernels, the most reliable mask last. ``n`` is the number of operators.
    """
    codes = np.full(n + 1, -1, np.int64)
    for is_source in sources:
        codes[row[is_source]] = precision.codes[is_source]
    return Names(np.where(codes[row] >= 0, codes[row], precision.codes), precision.texts)


def _find_precision(operators: Table, row: Ints, kernels: Table) -> tuple[Names, Bools]:
    """Return the precision of each kernel, and a mask of kernels on tensor (AMD: matrix) cores.

    The operator's input types decide, otherwise the kernel name. The kernel name distinguishes
    the precisions of FP32 inputs, such as TF32.
    """
    names, by_kernel, units = kernels["name"], precisions(kernels), matrix_units(kernels)
    is_on_units = units == MatrixUnits.YES.value
    wide = names.by_text([wide_precision_of(name) for name in names.texts.tolist()])
    wide = np.where(wide == "", np.where(by_kernel == "tf32", "tf32", ""), wide)
    by_operator = np.append(operators["precision"].plain(), "")[row]
    found = np.where(by_operator == "", by_kernel, by_operator)
    by_units = np.where(is_on_units, "tf32", "fp32")
    found = np.where(found == "fp32", np.where(wide == "", by_units, wide), found)
    is_off_units = (units == MatrixUnits.NO.value) & kernels["activity"].isin(MATRIX_WORK)
    is_off_cores = np.isin(found, _TENSOR_CORE_PRECISIONS) & is_off_units
    suffix = np.where(is_off_cores, WITHOUT_TENSOR_CORES, "").astype(object)
    return Names.of(found.astype(object) + suffix), is_on_units


@of_window
def counted_kernels(trace: Trace) -> Table:
    """Return `work_of_kernels` for the kernels in the window, with length_ns.

    A kernel that the window cuts has the share of its work that is inside. Two columns are
    added: is_counted (the kernel has FLOPs) and has_bytes.
    """
    rows = trace.rows_in_whole("kernels")
    found, length = work_of_kernels(trace).take(rows), lengths_of(trace.kernels)
    whole = lengths_of(trace.whole.kernels)[rows]
    inside: Floats = np.where(whole > 0, length / np.maximum(whole, 1), 1.0)
    scaled = {name: found[name] * inside for name in ("flop", "model_flop", "n_bytes")}
    is_counted: Bools = found["flop"] > 0
    return found.assign(
        **scaled, length_ns=length, is_counted=is_counted, has_bytes=found["n_bytes"] > 0
    )

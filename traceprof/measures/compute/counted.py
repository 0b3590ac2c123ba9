"""The FLOPs and bytes of kernels: those of the operator of PyTorch that launched them.

Of operators that call one another the outermost counts that is known, with all that it launched.
Its FLOPs belong to its kernels of matrix work, to each as much as it takes of their time; where it
launched none, to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceprof.measures.compute.operators import Work, work_of
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import innermost, launches_of
from traceprof.measures.host.ranges import find_parents
from traceprof.measures.host.threads import autograd_rows
from traceprof.measures.rows import Bools, Floats, Ints, lengths_of, ratio_of
from traceprof.model.activity import Activity
from traceprof.model.grouping import groups_of, pieces_of
from traceprof.model.table import Names, Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import (
    MATRIX_WORK,
    MatrixUnits,
    matrix_units,
    precisions,
    wide_precision_of,
)

UNCOUNTED: Final = frozenset(
    {*MATRIX_WORK, Activity.MOE, Activity.RECURRENT, Activity.FFT, Activity.CUDA_GRAPH}
)
"""Classes of kernels that compute much: where their operator is not known, FLOPs are missing."""
ON_CORES: Final = " without tensor cores"
"""Behind a precision that tensor cores would multiply in, of kernels that do not use them."""
TOLD: Final = (
    "For {share:ratio} of kernel time, FLOPs and bytes are from PyTorch (kernel_flop, "
    "kernel_num_gb), since the input sizes do not determine them."
)
_FORWARD: Final = (
    *("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d"),
    "aten::scaled_dot_product_attention",
)
"""Operators that nobody but a forward pass calls."""
_NARROW: Final = ("fp16", "bf16")


@fact
def counted_operators(trace: Trace) -> Table:
    """Return the operators whose work is known, none inside another.

    Columns: start_ns, end_ns, process, thread, name and dims (Names), flop, model_flop, n_bytes,
    precision (Names) and is_told, as in `Work`.
    """
    given = trace.operator_inputs
    texts = [given[name] for name in ["name", "dims", "types", "concrete", "flop", "gigabytes"]]
    groups = groups_of(*(own.packed for own in texts))
    found = [
        work_of(*(own.texts[code] for own, code in zip(texts, key, strict=True)))
        for key in groups.keys
    ]
    rows = np.flatnonzero(np.array([one is not None for one in found], np.bool_)[groups.number])
    place, works = groups.number[rows], [one or Work() for one in found]
    table = given.select("start_ns", "end_ns", "process", "thread", "name", "dims").take(rows)
    is_again = _are_recomputed(trace, table)
    table = table.assign(
        flop=np.array([one.flops for one in works], np.float64)[place],
        model_flop=np.array([one.model_flops for one in works], np.float64)[place] * ~is_again,
        n_bytes=np.array([one.n_bytes for one in works], np.float64)[place],
        precision=Names.of([one.precision for one in works])[place],
        is_told=np.array([one.is_told for one in works], np.bool_)[place],
    )
    return table.take(find_parents(table)[0] < 0)


def _are_recomputed(trace: Trace, operators: Table) -> Bools:
    """Return which operators run a second time: forward ones inside the backward pass.

    So does activation checkpointing: a whole layer of the forward pass (aten::linear, not just the
    product that a gradient needs) is called inside an operator of autograd.
    """
    calls = trace.host_ops.select("start_ns", "end_ns", "process", "thread", "name")
    forward = calls.take(calls["name"].isin(_FORWARD))
    forward = forward.take(find_parents(forward)[0] < 0)
    inside = _around(forward, operators)
    backward = calls.take(autograd_rows(calls["name"]))
    backward = backward.take(find_parents(backward)[0] < 0)
    again: Bools = np.append(_around(backward, forward) >= 0, False)[inside]
    return again


def _around(spans: Table, rows: Table) -> Ints:
    return innermost(spans, rows["process"], rows["thread"], rows["start_ns"])


@fact
def work_of_kernels(trace: Trace) -> Table:
    """Return what each kernel of the whole recording does, a row for each.

    Columns: operator (its row among `counted_operators`, -1: not known), flop, model_flop and
    n_bytes (shares of the operator's; 0 where it has none), precision (Names: what it multiplies
    in, of kernels without a known operator what their name says), is_uncounted (it computes
    much, and how much is not known) and is_told (PyTorch itself wrote what it does).
    """
    operators, launches = counted_operators(trace), launches_of(trace, "kernels")
    row = innermost(operators, launches.process, launches.thread, launches.start_ns)
    row = np.where(launches.is_known, row, -1)
    # In pieces of the kernels: all that is worked out of them takes much memory at once.
    kernels = trace.kernels.select("start_ns", "end_ns", "name", "activity")

    def pieces() -> Iterator[tuple[Ints, Table]]:
        return ((row[own], kernels.take(own)) for own in pieces_of(max(len(row), 1)))

    sums = np.sum([_sums(operators, *piece) for piece in pieces()], axis=0)
    worked = Table.stacked([_worked(operators, sums, *piece).on_disk() for piece in pieces()])
    said = np.append(operators["precision"].codes, -1)[row]
    alike = groups_of(kernels["name"].packed, kernels["activity"].packed, said)
    some = alike.first_rows
    precision, on_units = _precision(operators, row[some], kernels.take(some))
    has_flop = worked["flop"] > 0
    telling = [has_flop, has_flop & on_units[alike.number]]
    precision = _of_operators(precision[alike.number], row, telling, len(operators))
    return Table({"operator": row, **worked.columns, "precision": precision})


def _sums(operators: Table, row: Ints, kernels: Table) -> Floats:
    """Return the time of matrix work and of all kernels of each operator, in ns."""
    kept, lengths = row >= 0, lengths_of(kernels)
    is_matrix = kernels["activity"].isin([own.value for own in MATRIX_WORK])
    own, weights = row[kept], (lengths * is_matrix, lengths)
    of_each = [np.bincount(own, ns[kept], minlength=len(operators)) for ns in weights]
    return np.stack(of_each).astype(np.float64)


def _worked(operators: Table, sums: Floats, row: Ints, kernels: Table) -> Table:
    """Return the columns of `work_of_kernels` that are shares of the operator's."""
    weights = lengths_of(kernels).astype(np.float64)
    is_matrix = kernels["activity"].isin([own.value for own in MATRIX_WORK])
    of_matrix, of_all = (np.append(own, 0.0)[row] for own in sums)
    of_time = ratio_of(weights, of_all)
    share = np.where(of_matrix > 0, ratio_of(weights * is_matrix, of_matrix), of_time)
    shares = {"flop": share, "model_flop": share, "n_bytes": np.nan_to_num(of_time)}
    is_heavy = kernels["activity"].isin([own.value for own in UNCOUNTED])
    has_work = np.append(operators["flop"] > 0, False)[row]
    return Table(
        {
            **{
                name: np.nan_to_num(np.append(operators[name], 0.0)[row] * own)
                for name, own in shares.items()
            },
            "is_uncounted": is_heavy & ~has_work,
            "is_told": np.append(operators["is_told"], False)[row],
        }
    )


def _of_operators(precision: Names, row: Ints, telling: Sequence[Bools], n: int) -> Names:
    """Return the precision of kernels, of those that help others of their operator that of these.

    ``telling`` are the kernels that tell it, the surest last.
    """
    codes = np.full(n + 1, -1, np.int64)
    for kernels in telling:
        codes[row[kernels]] = precision.codes[kernels]
    return Names(np.where(codes[row] >= 0, codes[row], precision.codes), precision.texts)


def _precision(operators: Table, row: Ints, kernels: Table) -> tuple[Names, Bools]:
    """Return what kernels multiply in: as operators read it, and as names of kernels refine it.

    And which use tensor or matrix cores.
    """
    names, told, units = kernels["name"], precisions(kernels), matrix_units(kernels)
    is_on_units = units == MatrixUnits.YES.value
    wide = names.by_text([wide_precision_of(name) for name in names.texts.tolist()])
    wide = np.where(wide == "", np.where(told == "tf32", "tf32", ""), wide)
    said = np.append(operators["precision"].plain(), "")[row]
    found = np.where(said == "", told, said)
    is_wide = found == "fp32"
    on_units = np.where(is_on_units, "tf32", "fp32")
    found = np.where(is_wide, np.where(wide == "", on_units, wide), found)
    is_matrix = kernels["activity"].isin([own.value for own in MATRIX_WORK])
    off = np.isin(found, _NARROW) & is_matrix & (units == MatrixUnits.NO.value)
    suffix = np.where(off, ON_CORES, "").astype(object)
    return Names.of(found.astype(object) + suffix), is_on_units


@of_window
def counted_kernels(trace: Trace) -> Table:
    """Return `work_of_kernels` of those in the window; of one that it cuts the part inside.

    With length_ns, is_counted (it has FLOPs) and has_bytes.
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

"""The code that called each collective (phase, caller range, step), and its overlap with compute.

Facts are computed once for every collective of the whole recording and indexed by its row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.operations import find_collectives, require_collectives
from traceprof.measures.collectives.rates import sizes_of
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import Launches
from traceprof.measures.host.phases import owning_range_of_launches, phases_of_all_ranges
from traceprof.measures.rows import Bools, lengths_of, ratio_of, where_known
from traceprof.measures.steps.find import find_steps, steps_of_calls
from traceprof.model.grouping import grouped_by, groups_of
from traceprof.model.intervals import Int64Array
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, UNCLAIMED, codes_containing

_IS_COLLECTIVE: Final = re.compile(
    r"comm:|comm\.async:|[nr]ccl|gloo:|record_param_comms", re.IGNORECASE
)
_SHARDED: Final = re.compile(r"FSDP|FullySharded|all_gather_params|PartitionedParam|DeepSpeedZero")
"""Matches names of ranges that gather parameters or reduce-scatter gradients."""
_COLLECTIVE_WORDS: Final = ("comm:", "comm.async:", "ccl", "gloo:", "record_param_comms")
"""Every name that `_IS_COLLECTIVE` matches contains one of these."""


@fact
def phases_of_collectives(trace: Trace) -> Names:
    """Return the phase that called each collective of the whole recording, by row.

    Ranges of the collectives themselves do not count.
    """
    phases = phases_of_all_ranges(trace)
    kept = (phases >= 0) & (phases != PHASES.index("communication"))
    return _find_calling_ranges(trace, kept, Names(phases, PHASES), UNCLAIMED)


@fact
def callers_of_collectives(trace: Trace) -> Names:
    """Return the innermost range (layer, module, user range) around each call; "" without a range.

    One name per collective of the whole recording, by row. Ranges of the collectives themselves and
    NCCL's own ranges do not count.
    """
    names = trace.ranges["name"]
    is_collective = np.zeros(len(names.texts), np.bool_)
    likely = codes_containing(names.texts, _COLLECTIVE_WORDS)
    is_collective[likely] = [_IS_COLLECTIVE.match(text) is not None for text in names.texts[likely]]
    return _find_calling_ranges(trace, ~names.by_text(is_collective), names, "")


def _find_calling_ranges(
    trace: Trace, is_candidate: npt.NDArray[np.bool_], names: Names, nothing: str
) -> Names:
    """Return the name of the innermost candidate range around the call of each collective.

    ``is_candidate`` and ``names`` have one value per range. ``nothing`` is the name for a call
    outside all candidates.
    """
    work = find_collectives(trace)
    calls = Table(
        {"start_ns": work["call_ns"], "end_ns": work["call_end_ns"], "thread": work["thread"]}
    )
    call = np.where(work["call_ns"] == ABSENT, ABSENT, np.arange(len(work)))
    rows = np.flatnonzero(is_candidate & (trace.ranges["kind"] == "push_pop"))
    launches = Launches(call, work["process"], calls)
    found = owning_range_of_launches(trace, trace.ranges.take(rows), launches)
    codes = np.append(names.codes[rows], len(names.texts))
    used, place = np.unique(codes[found], return_inverse=True)
    return Names.coded([*names.texts[used[used < len(names.texts)]], nothing], place)


@fact
def steps_of_collectives(trace: Trace) -> Int64Array:
    """Return the step that called each collective, as a row of the steps of the whole recording.

    `ABSENT` for no step. A collective without a known call belongs to the step in which it started.
    """
    return steps_of_calls(find_steps(trace), find_collectives(trace))


def values_of_rows(rows: Table, facts: Sequence[Any]) -> Any:
    """Return the value of a fact for each of ``rows``, which have part and row.

    ``facts`` has one array or Names per part, with a value per collective of the whole recording.
    """
    offsets = np.cumsum([0, *map(len, facts)])
    together = Names.joined(facts) if isinstance(facts[0], Names) else np.concatenate(facts)
    return together[offsets[rows["part"]] + rows["row"]]


SPEC: Final = ResultSpec.of("""
    table callers: one row per phase, caller, and operation, sorted by exposed time
    key phase: phase of the training loop that called the collectives
    key caller: innermost range around the call; empty if the call is outside all ranges
    key op: operation
    total count: number of collectives, summed over ranks
    total size_bytes: total input size of all ranks; empty if any size is unknown
    total total_ns: total duration, summed over ranks
    total exposed_ns: time not overlapped with compute; empty if unknown for any collective
    derived hidden_ns: time overlapped with compute: total_ns minus exposed_ns
    derived exposed_ratio: exposed_ns as a share of total_ns
    total unknown_size_count: number of these with unknown size
    total unknown_device_count: number of these with a duration but without a GPU
    total without_compute_count: number of these on a GPU that ran no compute at the same time
    total sharded_count: number of these that gather parameters or reduce-scatter gradients (FSDP,
        ZeRO). traceprof detects them from ranges around the calls of the group, or from a group
        that reduces only in backward
    total gathered_bytes: total output size of the all-gathers among these (the shards of all
        ranks); empty if any size is unknown
    """)
_CALLERS: Final = SPEC.tables[0]


def measure_callers(trace: Trace) -> Result:
    """Return the collectives that start in the window, by the code that called them.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    require_collectives(trace)
    work = find_collectives(trace)
    timed, exposed = work["is_timed"], work["exposed_ns"]
    work = work.assign(
        phase=phases_of_collectives(trace)[work["row"]],
        caller=callers_of_collectives(trace)[work["row"]],
        size_bytes=np.maximum(work["n_bytes"], 0),
        unknown_size_count=work["n_bytes"] < 0,
        unknown_device_count=timed & np.isnan(exposed),
        total_ns=where_known(lengths_of(work), timed),
        exposed_ns=where_known(exposed, timed),
        without_compute_count=timed & (exposed >= lengths_of(work)),
    )
    is_sharded = _are_sharded(work)
    gathered = sizes_of(work)["operation_bytes"]
    work = work.assign(
        sharded_count=is_sharded,
        gathered_bytes=np.where(is_sharded & (work["op"] == _GATHER), gathered, 0.0),
    )
    table, groups = grouped_by(work, "phase", "caller", "op")
    table = table.assign(count=groups.counts, **{name: groups.sums(work[name]) for name in _SUMMED})
    return Result("callers", SPEC, {"callers": _CALLERS.of_rows(table)})


_SUMMED: Final = (
    *("size_bytes", "total_ns", "exposed_ns", "unknown_size_count", "unknown_device_count"),
    *("without_compute_count", "sharded_count", "gathered_bytes"),
)
_GATHER, _REDUCE = "all_gather", "reduce_scatter"


def _are_sharded(work: Table) -> Bools:
    """Return which rows gather parameters or reduce-scatter gradients (FSDP, ZeRO).

    A group counts if a range around its calls has a matching name, or if it both gathers and
    reduces, and reduces only in backward. Tensor parallelism also gathers and reduces
    (activations), but it reduces in the forward pass as well.
    """
    groups = groups_of(work["process"], work["group"])

    def has_any(rows: Bools) -> Bools:
        return np.asarray(groups.reduced(np.logical_or, rows), np.bool_)

    callers, gathers, reduces = work["caller"], work["op"] == _GATHER, work["op"] == _REDUCE
    is_sharded_name = np.array([bool(_SHARDED.search(name)) for name in callers.texts], np.bool_)
    is_named = callers.by_text(is_sharded_name)
    reduces_in_forward = reduces & (work["phase"] != "backward")
    by_phase = has_any(gathers) & has_any(reduces) & ~has_any(reduces_in_forward)
    is_sharded = (has_any(is_named) | by_phase)[groups.number]
    return np.asarray(is_sharded & (gathers | reduces), np.bool_)


def _finish(result: Result) -> Result:
    table = result.table
    if table.empty:
        nothing = Note("No collective starts in this window.")
        return result.with_table(_CALLERS.of_rows()).with_notes(nothing)
    total_ns = table["total_ns"]
    exposed = where_known(table["exposed_ns"], table["unknown_device_count"] == 0)
    table = table.assign(
        size_bytes=where_known(table["size_bytes"], table["unknown_size_count"] == 0),
        gathered_bytes=where_known(table["gathered_bytes"], table["unknown_size_count"] == 0),
        without_compute_count=where_known(
            table["without_compute_count"], table["unknown_device_count"] == 0
        ),
        exposed_ns=exposed,
        hidden_ns=total_ns - exposed,
        exposed_ratio=ratio_of(exposed, total_ns),
        longest=np.nan_to_num(total_ns),
        most=np.nan_to_num(exposed),
    )
    table = table.in_order("-most", "-longest", "caller", "op", "phase")
    return result.with_table(table).with_notes(*_notes_on_gathers(table))


def _notes_on_gathers(table: Table) -> Iterator[Note]:
    """Yield notes on the size of parameter all-gathers and their missing overlap with compute."""
    gathers = table.take((table["op"] == _GATHER) & (table["sharded_count"] > 0))
    names = ("sharded_count", "gathered_bytes", "without_compute_count", "exposed_ns", "total_ns")
    n, size, alone, exposed, total = (float(gathers[name].sum()) for name in names)
    if size > 0:
        text = "{n:count} parameter all-gathers gather {size:bytes}, summed over ranks."
        yield Note.of(text, n=int(n), size=size)
    if alone > 0 and total > 0 and exposed == exposed:
        text = (
            "{alone:count} of {n:count} parameter all-gathers did not overlap with compute. They "
            "started after the preceding work had finished (not prefetched, or called late). "
            "Exposed time: {exposed:ns} of {total:ns}."
        )
        yield Note.of(text, alone=int(alone), n=int(n), exposed=exposed, total=total)


CALLERS: Final = Analysis(
    "callers",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges"),
    whole=("ranges",),
    of_steps=True,
    of_rank=measure_callers,
    finish=_finish,
)

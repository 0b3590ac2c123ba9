"""Rules on unusual steps and on the time that the profiler takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import STEPS
from traceprof.findings.claims import ClaimKind, Kind
from traceprof.findings.context import Context
from traceprof.findings.excess import ExcessCause, find_cause
from traceprof.findings.kernel_times import largest, summed, times_of
from traceprof.findings.machine import cpu_wait_ratio, notes_on_allocator, notes_on_machine
from traceprof.findings.processor import ACTION
from traceprof.findings.rules import SUBJECTS, Finding, rule
from traceprof.measures.ranks.steps import find_rank_steps
from traceprof.measures.rows import lengths_of, owner_of
from traceprof.measures.steps.base import independent_processes
from traceprof.measures.steps.ledger import SLOW, USUAL, WARMUP, launching_spans
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.parts import BETWEEN_STEPS, CPU_WAIT
from traceprof.model.grouping import find_matching_rows, rows_by_values
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.timing import TRACEPROF_DOMAIN, TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASE_WORDS

_MIN_WARMUP_RATIO: Final = 0.05
_MIN_STEPS: Final = 2
MIN_STEPS_FOR_SLOW: Final = 4
TOO_FEW_STEPS: Final = "too few steps are marked to detect slow steps"
_MIN_SLOW_RATIO: Final = 0.01
_MIN_OVERHEAD_RATIO: Final = 0.02
_MIN_LATE_RATIO: Final = 0.5
_MIN_MAIN_RATIO: Final = 0.5
_MAX_STEPS_EXPLAINED: Final = 3


@rule("warm-up", "leading steps that are slower than the rest", about=STEPS, show="steps")
def warmup(context: Context) -> Iterator[Finding]:
    """Find leading warm-up steps that distort measurements."""
    steps = context.all_steps
    if len(np.unique(steps.table["step"])) < _MIN_STEPS:
        few = f"fewer than {_MIN_STEPS} steps are marked" if len(steps) else "no steps are marked"
        raise NotRecordedError(few)
    leading = steps.warmup()
    if leading.all() or not leading.any():
        return
    processes = steps.table["process"]
    first = processes == processes[0]
    count = int((leading & first).sum())
    usual = float(np.median(steps.durations_ns[~leading]))
    lengths = steps.whole_lengths_ns
    excess_ns = float((lengths[leading] - usual).clip(min=0).sum())
    whole_ratio = excess_ns / float(lengths.sum())
    inside = int((context.kinds == WARMUP).sum())
    if whole_ratio < _MIN_WARMUP_RATIO or (count < _MIN_STEPS and not inside):
        return
    each_ns = excess_ns / len(np.unique(processes))
    numbers = steps.table["step"][leading & first]
    where = "inside the window" if inside else "outside the window"
    costs = "step costs" if count == 1 else "{n:count} steps cost"
    words = f"step {{first}} is {where}" if count == 1 else f"steps {{first}}–{{last}} are {where}"
    yield Finding(
        title=Note.of(
            f"Warm-up: the first {costs} {{excess:ns}} more than usual, {{share:ratio}} of the "
            "total time of all recorded steps",
            excess=each_ns,
            n=count,
            share=whole_ratio,
        ),
        claims=(),
        kind=Kind.ONCE,
        one_time_ns=round(each_ns),
        evidence=(
            Note.of(
                f"{words}; mean {{mean:ns}}, median of the other steps {{usual:ns}}",
                first=int(numbers[0]),
                last=int(numbers[-1]),
                mean=float(lengths[leading & first].mean()),
                usual=usual,
            ),
        ),
        action=context.advice(
            pytorch="Exclude these steps from measurements (`--window steady`). In short jobs, "
            "cache compiled kernels, limit `torch.backends.cudnn.benchmark` to fixed shapes, and "
            "start the DataLoader workers earlier.",
            other="Exclude these steps from measurements (`--window steady`). In short jobs, cache "
            "compiled kernels.",
        ),
        caveat="A learning-rate or batch-size schedule changes the first steps on purpose.",
        window=f"step:{numbers[0]}..{numbers[-1]}",
    )


@rule(
    "step time variation",
    "single steps that are far slower than the others",
    about=STEPS,
    show="steps",
)
def slow_steps(context: Context) -> Iterator[Finding]:
    """Find single steps that take much longer than the others."""
    if len(context.steps) < MIN_STEPS_FOR_SLOW:
        raise NotRecordedError(TOO_FEW_STEPS)
    table = measured_steps(context.ranks).table
    slow = context.slow_steps
    if not len(slow) or context.slow_ratio < _MIN_SLOW_RATIO:
        return
    durations, time = context.steps.durations_ns, context.slow_time
    worst = slow[np.argsort(-durations[slow], kind="stable")]
    worst = worst[np.sort(np.unique(table["step"][worst], return_index=True)[1])]
    n_ranks = len(np.unique(table["process"]))
    noun = "processes" if independent_processes(context.ranks) else "ranks"
    single = "One slow step out of {of:count} takes {excess:ns} more than usual"
    several = "{n:count} slow steps out of {of:count} take {excess:ns} more than usual in total"
    reasons = [_explain_step(context, i) for i in worst[:_MAX_STEPS_EXPLAINED].tolist()]
    main = _main_reason(reasons, float(table["excess_ns"][worst].sum()))
    text, values = _words_on_main(main)
    allocating = [*notes_on_allocator(table, slow, context.kinds == USUAL)]
    restarts = _note_on_restarts(context, slow)
    # The search for algorithms waits for its kernels.
    is_open = main is None or main.cause is None or main.cause.subject in _SEARCHING
    smaller = _note_on_batches(table, slow, context.kinds == USUAL) if is_open else ()
    smaller = () if restarts else smaller
    if restarts and main is None:
        text, values = ", mostly due to the start of a pass over the DataLoader", {}
    if smaller:
        text, values = ", although their batches are smaller (new shapes)", {}
    is_data = set(table["grown_phase"][slow].tolist()) == {"data"}
    if is_data and not text:
        text = ", mostly due to input pipeline"
    yield Finding(
        title=Note.of(
            (single if len(worst) == 1 else several)
            + (f" (mean of {{ranks:count}} {noun})" if n_ranks > 1 else "")
            + ", {share:ratio} of the total time of all steps"
            + text,
            n=len(worst),
            of=len(np.unique(table["step"][np.isin(context.kinds, (USUAL, SLOW))])),
            excess=context.slow_excess_ns / n_ranks,
            ranks=n_ranks,
            share=context.slow_ratio,
            **values,
        ),
        claims=(context.unclaimed(dict.fromkeys(context.places, time), ClaimKind.SLOW),),
        kind=Kind.MEASURED,
        evidence=(
            *(reason.note for reason in reasons),
            *notes_on_machine(table, slow, context.kinds == USUAL),
            *restarts,
            *smaller,
        ),
        action=_KEEP_WORKERS
        if restarts
        else _DROP_LAST
        if smaller
        else _action(context, main, table, slow),
        caveat="Evaluation or checkpointing without a named range can be intended.",
        window=f"step:{table['step'][worst[0]]}",
        other_subjects=(
            *(reason.cause.subject for reason in reasons if reason.cause),
            *("load balance across ranks" for reason in reasons if reason.rank is not None),
            *("memory allocation" for _ in allocating),
            *(["input pipeline"] if restarts or is_data else []),
        ),
    )


_KEEP_WORKERS: Final = (
    "Keep the workers between epochs (`DataLoader(persistent_workers=True)`): then no epoch starts "
    "new processes. Or iterate over several epochs in one pass."
)


_DROP_LAST: Final = (
    "Skip the last, smaller batch of each epoch (`DataLoader(drop_last=True)`), or pad it. New "
    "shapes start a search for algorithms (`torch.backends.cudnn.benchmark`) or compile again "
    "(`torch.compile`)."
)
_SEARCHING: Final = ("", SUBJECTS["synchronizing"])
_MAX_SMALLER_RATIO: Final = 0.95
_BATCH_SIZES: Final = ("samples_count", "h2d_bytes")


def _note_on_batches(
    table: Table, slow: npt.NDArray[np.int64], usual: npt.NDArray[Any]
) -> tuple[Note, ...]:
    """Return a note if most slow steps have smaller batches than every usual step.

    The size is the number of samples; if it is unknown, the bytes that are copied to the GPU.
    """
    name = next((n for n in _BATCH_SIZES if n in table and (table[n] > 0).any()), "")
    if not name:
        return ()
    sizes, of_usual = table[name][slow], table[name][usual]
    smaller = sizes[(sizes > 0) & (sizes < _MAX_SMALLER_RATIO * of_usual.min(initial=np.inf))]
    if 2 * len(smaller) <= len(slow) or not np.isfinite(of_usual).all():
        return ()
    unit = "count} samples" if name == "samples_count" else "bytes} for the GPU"
    return (
        Note.of(
            f"{{n:count}} of these steps have {{size:{unit} instead of {{typical:{unit}",
            n=len(smaller),
            size=float(np.median(smaller)),
            typical=float(np.median(of_usual)),
        ),
    )


def _note_on_restarts(context: Context, slow: npt.NDArray[np.int64]) -> tuple[Note, ...]:
    """Return a note if most slow steps wait for the first batch of a pass over a DataLoader.

    The start of the pass and the fetch of its first batch must explain half of their excess.
    """
    spans = launching_spans(context.all_steps.table)
    rows = find_matching_rows(context.steps.table.take(slow), spans, "process", "step")
    found = context.rows(_starts_of_passes)
    place = owner_of(spans.in_order("process", "start_ns"), found["process"], found["start_ns"])
    is_slow = np.isin(place, rows)
    starts = found.take(is_slow)
    excess_ns = context.steps.durations_ns[slow].sum() - len(slow) * context.base.profiled_ns
    whole_ns = float((starts["begin_ns"] + starts["fetch_ns"]).sum())
    few = 2 * len(np.unique(place[is_slow])) < len(slow)
    if few or whole_ns < _MIN_MAIN_RATIO * excess_ns:
        return ()
    return (
        Note.of(
            "{n:count} of these steps begin a pass over the DataLoader: {start:ns} to start it, "
            "{fetch:ns} for its first batch (means)",
            n=len(np.unique(place[is_slow])),
            start=float(starts["begin_ns"].mean()),
            fetch=float(starts["fetch_ns"].mean()),
        ),
    )


def _starts_of_passes(part: Trace) -> Table:
    """Return process, start_ns, begin_ns, and fetch_ns of each start of a DataLoader pass.

    The last two are the time to start the pass and the time to fetch its first batch.
    """
    ranges = part.whole.ranges
    ranges = ranges.take(ranges["domain"] == TRACEPROF_DOMAIN)
    starts, fetches = (ranges.take(ranges["name"] == name) for name in ("data.start", "data"))
    fetch_ns = np.zeros(len(starts), np.int64)
    of_fetches = rows_by_values(fetches["process"], fetches["thread"])
    for lane, rows in rows_by_values(starts["process"], starts["thread"]).items():
        lane_rows = of_fetches.get(lane, rows[:0])
        following = np.searchsorted(fetches["start_ns"][lane_rows], starts["end_ns"][rows])
        lengths = np.append(lengths_of(fetches)[lane_rows], 0)
        fetch_ns[rows] = lengths[following]
    table = starts.select("process", "start_ns")
    return table.assign(begin_ns=lengths_of(starts), fetch_ns=fetch_ns)


def _action(
    context: Context, main: _Reason | None, table: Table, slow: npt.NDArray[np.int64]
) -> str:
    """Return the advice on slow steps: on their main cause, on a busy CPU, or on what grew."""
    if main and main.cause:
        return main.cause.advice(context)
    if cpu_wait_ratio(table, slow, context.kinds == USUAL):
        return ACTION
    return _advice_on_slow(set(table["grown_phase"][slow].tolist()))


def _advice_on_slow(grown: set[str]) -> str:
    """Return the advice on slow steps, by the host phases ``grown`` that take longer in them."""
    see = "Find out what takes longer in these steps (`traceprof explain TRACE slowest`)."
    if grown == {"data"}:
        return f"{see} They wait for data: use more workers, prefetching, or faster storage."
    if grown == {BETWEEN_STEPS}:
        return f"{see} The time is between steps: batch fetching, evaluation, or logging."
    return f"{see} Common causes: logging, garbage collection, slow file I/O, other jobs."


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why one step is slow: a note, its excess, the late rank, and the cause (None: unknown)."""

    note: Note
    excess_ns: float
    rank: int | None
    cause: ExcessCause | None


_GROWN_WORDS: Final = {
    **PHASE_WORDS,
    CPU_WAIT: "wait for a CPU core",
    "eval": "forward without gradients",
}
"""Phases that make a step longer. Within a step, a pass without gradients is not an evaluation."""


def _explain_step(context: Context, row: int) -> _Reason:
    """Return why step ``row`` is slow: the part that grew, the late rank, and its cause."""
    ranks = context.ranks
    step, times = measured_steps(ranks).table.row(row), context.steps.table.row(row)
    text = "step {step}: slower by {excess:ns}"
    values: dict[str, Any] = {"step": int(step["step"]), "excess": float(step["excess_ns"])}
    for name in ("grown_part", "grown_phase"):
        if step[name]:
            text += f", {{{name}}} +{{{name}_ns:ns}}"
            words = _GROWN_WORDS.get(step[name], step[name].replace("_", " "))
            values |= {name: words, f"{name}_ns": step[f"{name}_ns"]}
    late = find_rank_steps(ranks).table.known("rank", "late_ns")
    late = late.take(late["step"] == step["step"]).in_order("-late_ns")
    process, rank = times["process"], None
    window = TimeWindow(times["device_start_ns"], times["device_end_ns"])
    if len(late) and late["late_ns"][0] >= _MIN_LATE_RATIO * step["excess_ns"]:
        text += "; rank {rank} is {late:ns} late at a collective"
        first = late.row(0)
        process, rank = first["process"], int(first["rank"])
        window = TimeWindow(first["start_ns"], first["end_ns"])
        values |= {"rank": rank, "late": float(first["late_ns"])}
    cause = find_cause(context, process, window, values["excess"])
    if cause is not None and cause.names not in ((), (step["grown_phase"],)):
        text += f"{';' if rank is None else ':'} {cause.words}"
        values |= {"cause": ", ".join(cause.names), "cause_ns": cause.ns}
    return _Reason(Note.of(text, **values), values["excess"], rank, cause)


def _main_reason(reasons: Sequence[_Reason], excess_ns: float) -> _Reason | None:
    """Return the first of the ``reasons`` whose cause explains most of ``excess_ns``, if any."""
    for reason in reasons:
        if reason.cause is None:
            continue
        same = [
            other
            for other in reasons
            if other.cause is not None and other.cause.noun == reason.cause.noun
        ]
        if sum(other.excess_ns for other in same) >= _MIN_MAIN_RATIO * excess_ns:
            is_one_rank = len({other.rank for other in same}) == 1
            return reason if is_one_rank else replace(reason, rank=None)
    return None


_MAX_TITLE_NAME: Final = 40
"""Longer names (of kernels) are in the evidence only."""


def _words_on_main(main: _Reason | None) -> tuple[str, dict[str, Any]]:
    """Return the words of a title on the main cause, and their values."""
    if main is None or main.cause is None:
        return "", {}
    names = [name for name in main.cause.names if len(name) <= _MAX_TITLE_NAME]
    values: dict[str, Any] = {"cause": main.cause.noun, "names": ", ".join(names)}
    text = ", mostly due to {cause}" + (" ({names})" if names else "")
    if main.rank is None:
        return text, values
    return f"{text} on rank {{rank}}", values | {"rank": main.rank}


@rule("profiler overhead", "the GPU waits for the profiler", "kernels", "overheads", show="idle")
def profiler_overhead(context: Context) -> Iterator[Finding]:
    """Find time that the profiler takes."""
    claim = context.idle_for("profiler")
    share = context.share(claim)
    if share < _MIN_OVERHEAD_RATIO:
        return
    rows = context.rows(_overheads_by_name)
    times = times_of(summed(rows, rows["ns"], "name"), "ns")
    yield Finding(
        title=Note.of(
            "Profiler overhead leaves the GPU idle for {share:ratio} of step time", share=share
        ),
        claims=(claim,),
        kind=Kind.MEASURED,
        evidence=tuple(
            context.timed(ns, "{name}: ", name=name) for name, ns in largest(times, 2) if ns
        ),
        action="Trace fewer kinds of events or fewer steps. Treat the reported shares with "
        "caution.",
        caveat="Without the profiler, this time is not lost.",
        window=context.longest_gap("profiler"),
    )


def _overheads_by_name(trace: Trace) -> Table:
    """Return the profiler overheads of a trace, summed by name."""
    return summed(trace.overheads, lengths_of(trace.overheads), "name")

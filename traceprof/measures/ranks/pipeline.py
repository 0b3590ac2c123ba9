"""Pipeline parallelism: find the stages of a run and measure the bubble of each stage."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.members import Member, find_members, member_of_rows
from traceprof.measures.collectives.messages import find_messages
from traceprof.measures.collectives.operations import find_collectives
from traceprof.measures.collectives.waits import waiting_in_collectives
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import launches_of
from traceprof.measures.ranks.work_times import work_times
from traceprof.measures.rows import bounds, lengths_of, rows_by, unions_by
from traceprof.measures.steps.find import find_steps, rows_of_steps, steps_of_calls
from traceprof.model.activity import Activity
from traceprof.model.grouping import find_matching_rows, grouped_by, groups_of
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import codes_containing

POINT_TO_POINT: Final = ("send", "recv", "send_recv")
_STAGE: Final = re.compile(r"\b(?:pipeline[ _]?)?stage[ _:#-]*(?P<number>\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: position among ``n_stages`` of its pipeline, its rank, and how it was detected."""

    number: int
    n_stages: int
    member: Member
    detected_by: str
    pipeline: int = 0


@fact
def find_stages(ranks: Ranks) -> tuple[Stage, ...]:
    """Return the stages in order, one pipeline after another; empty if no stages are found.

    Ranges that name one stage in each process ("stage 2") decide first. Otherwise messages between
    ranks decide: of two ranks, the rank that sends first comes first. If the destinations of sends
    are unknown, all processes that send and receive are stages, in the order of their first device
    work. Kernels named SendRecv are not sufficient, because all-to-all uses them as well.
    """
    members = find_members(ranks)
    named = {
        process: number
        for of_part in ranks.each(_named_stages)
        for process, number in of_part.items()
    }
    ordered = sorted((named[m.process], m) for m in members if m.process in named)
    if len({number for number, _ in ordered}) == len(ordered) > 1:
        return _number_stages([member for _, member in ordered], "ranges", 0)
    if links := _first_messages(ranks):
        return tuple(
            stage
            for number, chain in enumerate(find_chains(links))
            for stage in _number_stages([members[place] for place in chain], "messages", number)
        )
    begins = {
        process: ns for of_part in ranks.each(_find_senders) for process, ns in of_part.items()
    }
    stages = [member for member in members if member.process in begins]
    if len(stages) < 2:
        return ()
    stages.sort(key=lambda member: begins[member.process])
    return _number_stages(stages, "sends and receives", 0)


def _find_senders(trace: Trace) -> dict[int, int]:
    """Return the processes that send or receive, and when each first used a device."""
    work, starts = find_collectives(trace), trace.kernels["start_ns"]
    senders = work["process"][work["op"].isin(("send", "recv"))]
    kernels_of = rows_by(trace.kernels, "process")
    return {
        process: int(starts[kernels_of[process][0]])
        for process in {*senders.tolist()} & kernels_of.keys()
    }


def find_chains(links: Mapping[tuple[int, int], int]) -> list[list[int]]:
    """Return the ranks of each pipeline in order.

    ``links`` maps (source, target) to the time in ns when source first sent to target. Ranks that
    pass messages around a ring in one direction only (ring attention) are not a pipeline.
    """
    after: dict[int, list[int]] = {}
    skipped: set[tuple[int, int]] = set()
    for (source, target), first_ns in sorted(links.items(), key=lambda item: (item[1], item[0])):
        back_ns = links.get((target, source))
        if back_ns is not None and (back_ns, target, source) < (first_ns, source, target):
            continue
        if source in _reachable(after, target):
            skipped.add((source, target))  # closes a ring, as interleaved stages do
        else:
            after.setdefault(source, []).append(target)
    chains = []
    for ranks in _components(after):
        is_mutual = any((b, a) in links for a, b in links if a in ranks)
        closes_ring = any(a in ranks for a, _ in skipped)
        if is_mutual or not closes_ring:
            chains.append(_order_stages(ranks, after, links))
    return sorted(chains)


def _reachable(after: Mapping[int, list[int]], start: int) -> set[int]:
    """Return the ranks that messages from ``start`` reach, including ``start``."""
    found, open_ranks = {start}, [start]
    while open_ranks:
        for target in after.get(open_ranks.pop(), ()):
            if target not in found:
                found.add(target)
                open_ranks.append(target)
    return found


def _components(after: Mapping[int, list[int]]) -> list[set[int]]:
    """Return the sets of ranks that are connected by messages in any direction."""
    neighbors: dict[int, list[int]] = {}
    for source, targets in after.items():
        for target in targets:
            neighbors.setdefault(source, []).append(target)
            neighbors.setdefault(target, []).append(source)
    found: list[set[int]] = []
    for rank in sorted(neighbors):
        if not any(rank in ranks for ranks in found):
            found.append(_reachable(neighbors, rank))
    return found


def _order_stages(
    ranks: set[int], after: Mapping[int, list[int]], links: Mapping[tuple[int, int], int]
) -> list[int]:
    """Return the ranks in topological order of their messages; ties by the first message."""
    depth = dict.fromkeys(ranks, 0)
    for _ in ranks:
        for source in ranks:
            for target in after.get(source, ()):
                depth[target] = max(depth[target], depth[source] + 1)
    begins = {rank: min(ns for pair, ns in links.items() if rank in pair) for rank in ranks}
    return sorted(ranks, key=lambda rank: (depth[rank], begins[rank], rank))


def _first_messages(ranks: Ranks) -> dict[tuple[int, int], int]:
    """Return when each member first sent to another: (source, target) to ns."""
    messages = find_messages(ranks)
    source, target = messages["source"], messages["target"]
    known = (source >= 0) & (target >= 0) & (source != target)
    known &= messages["carrier"].isin(POINT_TO_POINT)
    pairs = groups_of(source[known], target[known])
    first_ns = pairs.reduced(np.minimum, messages["start_ns"][known]).tolist()
    return {(pair[0], pair[1]): ns for pair, ns in zip(pairs.keys, first_ns, strict=True)}


def _number_stages(members: list[Member], detected_by: str, pipeline: int) -> tuple[Stage, ...]:
    return tuple(
        Stage(i, len(members), member, detected_by, pipeline) for i, member in enumerate(members)
    )


def _named_stages(trace: Trace) -> dict[int, int]:
    """Return the stage number of each process whose ranges name exactly one stage."""
    names = trace.ranges["name"]
    likely = codes_containing(names.texts, ["stage"])
    matches = zip(likely.tolist(), map(_STAGE.search, names.texts[likely]), strict=True)
    found = {code: match for code, match in matches if match}
    if not found:
        return {}
    rows = np.flatnonzero(np.isin(names.codes, list(found)))
    by_process: dict[int, set[int]] = {}
    for process, code in groups_of(trace.ranges["process"][rows], names[rows]).keys:
        by_process.setdefault(process, set()).add(int(found[code]["number"]))
    return {process: min(stages) for process, stages in by_process.items() if len(stages) == 1}


_MAX_LISTED_STAGES: Final = 16
_WHOLE_WINDOW: Final = -1
_OUTSIDE: Final = -2

SPEC: Final = ResultSpec.of("""
    table stages: one row per stage of each pipeline, over the steps in the window
    key pipeline [number]: number of the pipeline
    key stage: position of the stage in its pipeline
    same rank: rank
    derived bubble_ratio: bubble_ns as a share of span_ns
    same ideal_ratio: unavoidable bubble of p stages and m micro-batches, (p-1)/(m+p-1)
    total bubble_ns: time spent waiting for other stages, in collectives as well; includes sends and
        receives
    total busy_ns: time in compute or in collectives that all ranks have started
    total span_ns: total duration of the steps; each lasts while any stage computes it
    same step_count: number of steps
    same micro_batches [number]: number of tensors that a step sends to a neighboring stage
    same process: process
    scalars:
    total stages_count: number of stages in all pipelines
    total pipelines_count: number of pipelines
    derived bubble_ratio: bubble time of all stages as a share of their span
    same detected_by: how the stages were detected
    """)
_STAGES: Final = SPEC.tables[0]


@dataclass(frozen=True, slots=True, eq=False)
class Bubbles:
    """The bubble of each stage.

    ``rows`` are the rows of the table, in the order of `find_stages`. ``spans`` are the steps of
    the pipeline of each stage, from the first to the last compute of any of its stages; columns
    step, start_ns, end_ns. ``own`` are the steps from the first to the last compute of the stage
    itself.
    """

    rows: tuple[Mapping[str, Any], ...]
    spans: tuple[Table, ...]
    compute_spans: tuple[Table, ...]


@of_window
def find_bubbles(ranks: Ranks) -> Bubbles:
    """Return the bubble of each stage in the window."""
    stages = find_stages(ranks)
    members = tuple(stage.member for stage in stages)
    by_step = any(len(find_steps(part)) for part in ranks)
    numbers = [stage.pipeline for stage in stages]
    stage_spans = Table.stacked(
        ranks.each(_compute_spans, members, np.array(numbers), by_step=by_step)
    )
    pipeline_spans = _span_by_step(stage_spans, "pipeline")
    spans = [
        pipeline_spans.take(pipeline_spans["pipeline"] == number)
        for number in range(max(numbers) + 1)
    ]
    of_stages = [spans[number] for number in numbers]
    compute_spans = [
        stage_spans.take(stage_spans["stage"] == place) for place in range(len(stages))
    ]
    busy_of_parts = ranks.each(_measure_busy, members, of_stages, by_step=by_step)
    busy_ns = {place: ns for of_part in busy_of_parts for place, ns in of_part.items()}
    place_of = {member: place for place, member in enumerate(find_members(ranks))}
    waiting = waiting_in_collectives(ranks.whole)
    sends_per_step = {
        process: n for part in ranks.each(_sends_per_step) for process, n in part.items()
    }
    rows = []
    for place, stage in enumerate(stages):
        time = waiting[place_of[stage.member]]
        waited_ns = int(time.covered_ns(*bounds(of_stages[place])).sum())
        working_ns = max(busy_ns.get(place, 0) - waited_ns, 0)
        rows.append(_bubble_row(stage, working_ns, of_stages[place], sends_per_step))
    return Bubbles(tuple(rows), tuple(of_stages), tuple(compute_spans))


def measure_pipeline(ranks: Ranks) -> Result:
    """Return the bubble of each stage in the window."""
    stages = find_stages(ranks)
    if not stages:
        note = Note("No pipeline stages found: neither ranges nor sends and receives show any.")
        return Result("pipeline", SPEC, {"stages": _STAGES.of_rows()}, notes=(note,))
    if why_not := why_withheld(ranks):
        notes = Note.of("Bubbles are not reported: {why}", why=why_not), _compute_of(ranks, stages)
        return Result("pipeline", SPEC, {"stages": _STAGES.of_rows()}, notes=notes)
    rows = find_bubbles(ranks).rows
    whole = sum(row["span_ns"] for row in rows)
    scalars: dict[str, Any] = {
        "stages_count": len(rows),
        "pipelines_count": max(stage.pipeline for stage in stages) + 1,
        "bubble_ratio": sum(row["bubble_ns"] for row in rows) / whole if whole else 0.0,
        "detected_by": stages[0].detected_by,
    }
    several = " in {pipelines:count} pipelines" if scalars["pipelines_count"] > 1 else ""
    note = Note.of(
        f"{{n:count}} stages{several} (detected from {{detected_by}}): {{bubble:ratio}} bubble",
        n=scalars["stages_count"],
        pipelines=scalars["pipelines_count"],
        detected_by=scalars["detected_by"],
        bubble=scalars["bubble_ratio"],
    )
    return Result("pipeline", SPEC, {"stages": _STAGES.of_rows([*rows])}, scalars, (note,))


def _compute_of(ranks: Ranks, stages: Sequence[Stage]) -> Note:
    """Return a note on the compute time of each stage in its own steps; needs no common clock."""
    times, members = work_times(ranks), find_members(ranks)
    known = dict(zip(times["place"].tolist(), times["compute_ns"].tolist(), strict=True))
    computed = {
        f"stage{i}": known.get(members.index(stage.member))
        for i, stage in enumerate(stages[:_MAX_LISTED_STAGES])
    }
    listed = ", ".join(f"stage {stages[i].number} {{stage{i}:ns}}" for i in range(len(computed)))
    more = " …" if len(stages) > _MAX_LISTED_STAGES else ""
    return Note.of(f"Median compute time per step: {listed}{more}", **computed)


def _stage_work(trace: Trace, members: tuple[Member, ...], *, by_step: bool) -> Table:
    """Return the work that keeps the stages of one trace busy in the window.

    Columns: start_ns, end_ns, computes, stage (position in ``members``), step (step number, or
    `_WHOLE_WINDOW` without steps).
    """
    work, stage = _work(trace), _stage_of_work(trace, members)
    if by_step:
        steps, rows = find_steps(trace.whole).table, rows_of_steps(trace)
        numbers = np.full(len(steps) + 1, _OUTSIDE, np.int64)
        numbers[rows] = steps["step"][rows]
        step = numbers[work["step"]]
    else:
        step = np.where(trace.span.overlaps(*bounds(work)), _WHOLE_WINDOW, _OUTSIDE)
    rows = np.flatnonzero((stage >= 0) & (step != _OUTSIDE))
    work = work.select("start_ns", "end_ns", "computes").take(rows)
    return work.assign(stage=stage[rows], step=step[rows])


@fact
def _work(trace: Trace) -> Table:
    """Return compute kernels and collectives: start_ns, end_ns, process, device, computes, step.

    ``step`` is the row of the calling step among the steps of the whole recording; -1 for none.
    """
    kernels, columns = trace.kernels, ("start_ns", "end_ns", "process", "device")
    rows = np.flatnonzero(kernels["activity"] != Activity.COMMUNICATION.value)
    call_ns = launches_of(trace, "kernels").start_ns[rows]
    computing = kernels.select(*columns).take(rows).assign(call_ns=call_ns, computes=True)
    work = find_collectives(trace)
    is_collective = ~work["op"].isin(POINT_TO_POINT) & (work["device"] != ABSENT)
    collective = work.select(*columns, "call_ns").take(is_collective).assign(computes=False)
    all_work = Table.stacked([computing, collective])
    return all_work.assign(step=steps_of_calls(find_steps(trace), all_work)).without("call_ns")


@fact
def _stage_of_work(trace: Trace, members: tuple[Member, ...]) -> Int64Array:
    """Return the position in ``members`` of each row of `_work`; -1 for none."""
    return member_of_rows(members, _work(trace))


def _compute_spans(
    trace: Trace, members: tuple[Member, ...], pipelines: Int64Array, *, by_step: bool
) -> Table:
    """Return the first start and last end of compute of each stage and step in one trace."""
    work = _stage_work(trace, members, by_step=by_step)
    found = _span_by_step(work.take(work["computes"]), "stage")
    return found.assign(pipeline=pipelines[found["stage"]])


def _span_by_step(work: Table, of: str) -> Table:
    """Return the first start and last end of ``work`` by step and by stage or pipeline."""
    found, groups = grouped_by(work, of, "step")
    starts, ends = bounds(work)
    return found.assign(
        start_ns=groups.reduced(np.minimum, starts), end_ns=groups.reduced(np.maximum, ends)
    )


def _measure_busy(
    trace: Trace, members: tuple[Member, ...], spans: Sequence[Table], *, by_step: bool
) -> dict[int, int]:
    """Return, by stage of one trace, how many ns it is busy within ``spans``."""
    busy_of = unions_by(_stage_work(trace, members, by_step=by_step), "stage")
    return {
        stage: int(busy.covered_ns(*bounds(spans[stage])).sum()) for stage, busy in busy_of.items()
    }


def _bubble_row(
    stage: Stage, busy_ns: int, spans: Table, sends: Mapping[int, tuple[float, int]]
) -> dict[str, Any]:
    """Return the table row of a stage.

    ``spans`` are the steps of its pipeline. ``sends`` maps a process to its sends per step and its
    number of known neighbors.
    """
    span_ns = int(lengths_of(spans).sum())
    micro_batches, others = None, stage.n_stages - 1
    if stage.member.process in sends:
        per_step, known = sends[stage.member.process]
        micro_batches = per_step / (known or (1 if stage.number in (0, others) else 2))
    return {
        "pipeline": stage.pipeline,
        "stage": stage.number,
        "rank": stage.member.known_rank,
        "bubble_ratio": 1 - busy_ns / span_ns if span_ns else 0.0,
        "ideal_ratio": None if micro_batches is None else others / (micro_batches + others),
        "bubble_ns": span_ns - busy_ns,
        "busy_ns": busy_ns,
        "span_ns": span_ns,
        "step_count": len(spans),
        "micro_batches": micro_batches,
        "process": stage.member.process,
    }


def _sends_per_step(trace: Trace) -> dict[int, tuple[float, int]]:
    """Return, by process, the number of sends per step, and the number of known neighbors."""
    steps, sends = find_steps(trace), _sends(trace)
    inside = sends.take(steps_of_calls(steps, sends) >= 0)
    known = inside.take(inside["peer"] >= 0)
    distinct = groups_of(known["process"], known["group"], known["peer"])
    neighbors = Counter(process for process, *_ in distinct.keys)
    n_steps = {process: len(rows) for process, rows in rows_by(steps.table, "process").items()}
    return {
        process: (len(rows) / n_steps[process], neighbors[process])
        for process, rows in rows_by(inside, "process").items()
    }


@fact
def _sends(trace: Trace) -> Table:
    """Return every send, also of sends that share a kernel; without the sends of an all-to-all."""
    calls, work = trace.collectives, find_collectives(trace)
    other = ~work["op"].isin(POINT_TO_POINT) & (work["correlation"] != ABSENT)
    sends = calls.select("process", "correlation", "group", "peer", "start_ns")
    sends = sends.take(calls["op"] == "send")
    sends = sends.take(find_matching_rows(sends, work.take(other), "process", "correlation") < 0)
    return sends.assign(call_ns=sends["start_ns"])


PIPELINE: Final = Analysis(
    "pipeline",
    SPEC,
    needs=("kernels",),
    uses=("collectives", "api_calls", "ranges", "processes"),
    whole=("kernels", "collectives", "ranges"),
    of_steps=True,
    of_ranks=measure_pipeline,
)

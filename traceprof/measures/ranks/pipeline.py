"""Pipeline parallelism: the stages of a run, and the bubble of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.members import Member, find_members, member_of_rows
from traceprof.measures.collectives.messages import find_messages
from traceprof.measures.collectives.operations import find_collectives
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import bounds, rows_by, unions_by
from traceprof.measures.steps.find import find_steps, rows_of_steps, steps_of_calls
from traceprof.model.activity import Activity
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import codes_containing

POINT_TO_POINT: Final = ("send", "recv", "send_recv")
_STAGE: Final = re.compile(r"\b(?:pipeline[ _]?)?stage[ _:#-]*(?P<number>\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: its place among ``n_stages`` of its pipeline, its rank, and how that is known."""

    number: int
    n_stages: int
    member: Member
    known_from: str
    pipeline: int = 0


@fact
def find_stages(ranks: Ranks) -> tuple[Stage, ...]:
    """Return the stages in their order, one pipeline after another; none if they cannot be told.

    Ranges that name one stage in each process ("stage 2") decide, then the messages between
    ranks: of two ranks the one that sends first comes first. Where nobody tells whom a send
    goes to, processes that send and receive are stages, in the order in which they first compute.
    Kernels named SendRecv do not suffice: all-to-all uses them, too.
    """
    members = find_members(ranks)
    named = {
        process: number for own in ranks.each(_named_stages) for process, number in own.items()
    }
    ordered = sorted((named[m.process], m) for m in members if m.process in named)
    if len({number for number, _ in ordered}) == len(ordered) > 1:
        return _numbered([member for _, member in ordered], "ranges", 0)
    links = _first_messages(ranks)
    if links:
        chains = find_chains(links)
        return tuple(
            stage
            for number, chain in enumerate(chains)
            for stage in _numbered([members[place] for place in chain], "messages", number)
        )
    begins = {process: ns for own in ranks.each(_talking) for process, ns in own.items()}
    stages = [member for member in members if member.process in begins]
    if len(stages) < 2:
        return ()
    stages.sort(key=lambda member: begins[member.process])
    return _numbered(stages, "sends and receives", 0)


def _talking(trace: Trace) -> dict[int, int]:
    """Return the processes that send or receive, and when each first used a device."""
    work, kernels = find_collectives(trace), trace.kernels.to_frame()[["process", "start_ns"]]
    talking = work.loc[work["op"].isin(("send", "recv")), "process"].unique()
    begins = kernels.drop_duplicates("process").set_index("process")["start_ns"].to_dict()
    return {process: int(begins[process]) for process in talking.tolist() if process in begins}


def find_chains(links: Mapping[tuple[int, int], int]) -> list[list[int]]:
    """Return the ranks of each pipeline in their order.

    ``links`` holds when each rank first sent to another: (source, target) → ns. Ranks that pass
    messages around a ring in one direction only (ring attention) are no pipeline.
    """
    after: dict[int, list[int]] = {}
    skipped: set[tuple[int, int]] = set()
    for (source, target), first_ns in sorted(links.items(), key=lambda item: (item[1], item[0])):
        back_ns = links.get((target, source))
        if back_ns is not None and (back_ns, target, source) < (first_ns, source, target):
            continue
        if source in _reachable(after, target):
            skipped.add((source, target))  # it closes a ring, as interleaved stages do
        else:
            after.setdefault(source, []).append(target)
    chains = []
    for ranks in _components(after):
        is_mutual = any((b, a) in links for a, b in links if a in ranks)
        closes = any(a in ranks for a, _ in skipped)
        if is_mutual or not closes:
            chains.append(_in_order(ranks, after, links))
    return sorted(chains)


def _reachable(after: Mapping[int, list[int]], start: int) -> set[int]:
    found, open_ranks = {start}, [start]
    while open_ranks:
        for target in after.get(open_ranks.pop(), ()):
            if target not in found:
                found.add(target)
                open_ranks.append(target)
    return found


def _components(after: Mapping[int, list[int]]) -> list[set[int]]:
    both: dict[int, list[int]] = {}
    for source, targets in after.items():
        for target in targets:
            both.setdefault(source, []).append(target)
            both.setdefault(target, []).append(source)
    found: list[set[int]] = []
    for rank in sorted(both):
        if not any(rank in ranks for ranks in found):
            found.append(_reachable(both, rank))
    return found


def _in_order(
    ranks: set[int], after: Mapping[int, list[int]], links: Mapping[tuple[int, int], int]
) -> list[int]:
    """Return the ranks with each behind all that send to it; ties by the first message."""
    depth = dict.fromkeys(ranks, 0)
    for _ in ranks:
        for source in ranks:
            for target in after.get(source, ()):
                depth[target] = max(depth[target], depth[source] + 1)
    begins = {rank: min(ns for pair, ns in links.items() if rank in pair) for rank in ranks}
    return sorted(ranks, key=lambda rank: (depth[rank], begins[rank], rank))


def _first_messages(ranks: Ranks) -> dict[tuple[int, int], int]:
    messages = find_messages(ranks)
    known = (messages["source"] >= 0) & (messages["target"] >= 0)
    known &= messages["carrier"].isin(POINT_TO_POINT)
    messages = messages[known & (messages["source"] != messages["target"])]
    first = messages.groupby(["source", "target"], as_index=False)["start_ns"].min()
    columns = (first[name].tolist() for name in ("source", "target", "start_ns"))
    return {(source, target): ns for source, target, ns in zip(*columns, strict=True)}


def _numbered(members: list[Member], known_from: str, pipeline: int) -> tuple[Stage, ...]:
    return tuple(
        Stage(i, len(members), member, known_from, pipeline) for i, member in enumerate(members)
    )


def _named_stages(trace: Trace) -> dict[int, int]:
    """Return the number of the one stage that the ranges of each process name."""
    ranges = trace.ranges.to_frame()
    names = ranges["name"].cat.categories
    likely = codes_containing(names, ["stage"]).tolist()
    found = {i: match for i in likely if (match := _STAGE.search(str(names[i])))}
    codes = ranges["name"].cat.codes.to_numpy()
    rows = np.flatnonzero(np.isin(codes, list(found)))
    hits = pd.DataFrame({"process": ranges["process"].to_numpy()[rows], "code": codes[rows]})
    by_process: dict[int, set[int]] = {}
    for process, code in hits.drop_duplicates().itertuples(index=False):
        by_process.setdefault(int(process), set()).add(int(found[code]["number"]))
    return {process: min(own) for process, own in by_process.items() if len(own) == 1}


_WHOLE_WINDOW: Final = -1
_OUTSIDE: Final = -2

SPEC: Final = ResultSpec.of("""
    table stages: one row per stage of each pipeline, over the steps of the window
    key pipeline [number]: which of the pipelines
    key stage: its place in the pipeline
    same rank: its rank
    derived bubble_ratio: bubble_ns of span_ns
    same ideal_ratio: what p stages and m micro-batches cannot avoid, (p-1)/(m+p-1)
    total bubble_ns: waiting for others, sends and receives included
    total busy_ns: when it computes or takes part in collectives
    total span_ns: the steps, each while any stage of it computes
    same step_count: over how many steps
    same micro_batches [number]: tensors that a step sends to a neighbour
    same process: its process
    scalars:
    total stages_count: stages of all pipelines
    total pipelines_count: pipelines
    derived bubble_ratio: the bubbles of all stages, of their spans
    same known_from: what tells which ranks are stages
    """)
_STAGES: Final = SPEC.tables[0]


def measure_pipeline(ranks: Ranks) -> Result:
    """Return the bubble of each stage in the window."""
    stages = find_stages(ranks)
    if not stages:
        note = Note("no stages can be told: neither by ranges nor by sends and receives")
        return Result("pipeline", SPEC, {"stages": _STAGES.frame()}, notes=(note,))
    members = tuple(stage.member for stage in stages)
    by_step = any(len(find_steps(part)) for part in ranks)
    numbers = [stage.pipeline for stage in stages]
    every = pd.concat(ranks.each(_spans, members, np.array(numbers), by_step=by_step))
    every = every.groupby(["pipeline", "step"], as_index=False).agg(**_SPAN)
    spans = [every[every["pipeline"] == number] for number in range(max(numbers) + 1)]
    of_stages = [spans[number] for number in numbers]
    told = ranks.each(_busy, members, of_stages, by_step=by_step)
    busy_ns = {place: own for one in told for place, own in one.items()}
    micro = {process: n for own in ranks.each(_sends_per_step) for process, n in own.items()}
    rows = [
        _measure(stage, busy_ns.get(i, 0), spans[stage.pipeline], micro)
        for i, stage in enumerate(stages)
    ]
    whole = sum(row["span_ns"] for row in rows)
    scalars: dict[str, Any] = {
        "stages_count": len(rows),
        "pipelines_count": len(spans),
        "bubble_ratio": sum(row["bubble_ns"] for row in rows) / whole if whole else 0.0,
        "known_from": stages[0].known_from,
    }
    several = " of {pipelines:count} pipelines" if scalars["pipelines_count"] > 1 else ""
    note = Note.of(
        f"{{n:count}} stages{several}, told by {{known_from}}: {{bubble:ratio}} bubble",
        n=scalars["stages_count"],
        pipelines=scalars["pipelines_count"],
        known_from=scalars["known_from"],
        bubble=scalars["bubble_ratio"],
    )
    return Result("pipeline", SPEC, {"stages": _STAGES.frame(rows)}, scalars, (note,))


def _of_stages(trace: Trace, members: tuple[Member, ...], *, by_step: bool) -> pd.DataFrame:
    """Return what keeps the stages of one file busy in the window.

    Columns: start_ns, end_ns, computes, stage (place in ``members``), step (its number; without
    steps the window is one).
    """
    work, stage = _work(trace), _stage_of_work(trace, members)
    if by_step:
        steps, rows = find_steps(trace.whole).table, rows_of_steps(trace)
        numbers = np.full(len(steps) + 1, _OUTSIDE, np.int64)
        numbers[rows] = steps["step"][rows]
        step = numbers[work["step"].to_numpy(np.int64)]
    else:
        overlaps = trace.span.overlaps(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
        step = np.where(overlaps, _WHOLE_WINDOW, _OUTSIDE)
    rows = np.flatnonzero((stage >= 0) & (step != _OUTSIDE))
    kept = work[["start_ns", "end_ns", "computes"]].take(rows)
    return kept.assign(stage=stage[rows], step=step[rows])


@fact
def _work(trace: Trace) -> pd.DataFrame:
    """Return compute kernels and collectives: start_ns, end_ns, process, device, computes, step.

    ``step`` is the row of the steps of the whole recording that it was called in, -1 for none.
    """
    kernels = trace.kernels.to_frame()
    rows = np.flatnonzero(kernels["activity"] != Activity.COMMUNICATION.value)
    columns = ["start_ns", "end_ns", "process", "device"]
    called = launches_of(trace, "kernels").start_ns[rows]
    computing = kernels[columns].take(rows).assign(call_ns=called, computes=True)
    work = find_collectives(trace)
    collective = work[~work["op"].isin(POINT_TO_POINT) & (work["device"] != ABSENT)]
    collective = collective[[*columns, "call_ns"]].assign(computes=False)
    both = pd.concat([computing, collective], ignore_index=True)
    return both.assign(step=steps_of_calls(find_steps(trace), both)).drop(columns="call_ns")


@fact
def _stage_of_work(trace: Trace, members: tuple[Member, ...]) -> Int64Array:
    """Return the place in ``members`` of each row of `_work`, -1 for none."""
    return member_of_rows(members, _work(trace))


def _spans(
    trace: Trace, members: tuple[Member, ...], pipelines: Int64Array, *, by_step: bool
) -> pd.DataFrame:
    """Return, of each pipeline by step, the first start and last end of compute in one file."""
    work = _of_stages(trace, members, by_step=by_step)
    computing = work[work["computes"]]
    placed = computing.assign(pipeline=pipelines[computing["stage"].to_numpy(np.int64)])
    found: pd.DataFrame = placed.groupby(["pipeline", "step"], as_index=False).agg(**_SPAN)
    return found


_SPAN: Final[dict[str, Any]] = {"start_ns": ("start_ns", "min"), "end_ns": ("end_ns", "max")}


def _busy(
    trace: Trace, members: tuple[Member, ...], spans: Sequence[pd.DataFrame], *, by_step: bool
) -> dict[int, int]:
    """Return how long each stage of one file is busy in its ``spans``."""
    work = _of_stages(trace, members, by_step=by_step)
    return {
        stage: int(busy.covered_ns(*bounds(spans[stage])).sum())
        for stage, busy in unions_by(work, "stage").items()
    }


def _measure(
    stage: Stage, busy_ns: int, spans: pd.DataFrame, sends: Mapping[int, tuple[float, int]]
) -> dict[str, Any]:
    span_ns = int((spans["end_ns"] - spans["start_ns"]).sum())
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
    """Return, by process, how many tensors a step sends on, and to how many known neighbours."""
    steps, sends = find_steps(trace), _sends(trace)
    inside = sends[steps_of_calls(steps, sends) >= 0]
    if inside.empty:
        return {}
    known = inside[inside["peer"] >= 0].drop_duplicates(["process", "group", "peer"])
    neighbours = known["process"].value_counts().to_dict()
    n_steps = {process: len(rows) for process, rows in rows_by(steps.table, "process").items()}
    return {
        int(str(process)): (count / n_steps[int(str(process))], neighbours.get(process, 0))
        for process, count in inside["process"].value_counts().items()
    }


@fact
def _sends(trace: Trace) -> pd.DataFrame:
    """Return every send by itself, also those that share a kernel; not those of an all-to-all."""
    calls, work = trace.collectives.to_frame(), find_collectives(trace)
    columns = ["process", "correlation"]
    other = work.loc[~work["op"].isin(POINT_TO_POINT) & (work["correlation"] != ABSENT), columns]
    others = pd.MultiIndex.from_frame(other.astype(np.int64))
    rows = np.flatnonzero(calls["op"] == "send")
    sends = calls[[*columns, "group", "peer", "start_ns"]].take(rows)
    kept = ~pd.MultiIndex.from_frame(sends[columns].astype(np.int64)).isin(others)
    sends = sends[kept].reset_index(drop=True)
    return sends.assign(call_ns=sends["start_ns"], group=sends["group"].astype(object))


PIPELINE: Final = Analysis(
    "pipeline",
    SPEC,
    needs=("kernels",),
    uses=("collectives", "api_calls", "ranges", "processes"),
    whole=("kernels", "collectives", "ranges"),
    of_steps=True,
    of_ranks=measure_pipeline,
)

"""Pipeline parallelism: how much of each step a stage stands still, its bubble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.collectives.members import Member, member_of_rows
from traceprof.facts.collectives.work import find_collectives
from traceprof.facts.ranks.stages import POINT_TO_POINT, Stage, find_stages
from traceprof.measures.analyses import Analysis
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import launches_of
from traceprof.measures.steps.find import find_steps, rows_of_steps
from traceprof.measures.steps.spans import steps_of_calls
from traceprof.model.activity import Activity
from traceprof.model.grouping import rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    same,
    total,
)
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

_WHOLE_WINDOW: Final = -1
_OUTSIDE: Final = -2

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "stages",
            "one row per stage of each pipeline, over the steps of the window",
            (
                key("pipeline", "which of the pipelines", Unit.NUMBER),
                key("stage", "its place in the pipeline", Unit.NUMBER),
                same("rank", Unit.NUMBER, "its rank"),
                derived("bubble_ratio", Unit.RATIO, "bubble_ns of span_ns"),
                same(
                    "ideal_ratio",
                    Unit.RATIO,
                    "what p stages and m micro-batches cannot avoid, (p-1)/(m+p-1)",
                ),
                total("bubble_ns", Unit.NS, "waiting for others, sends and receives included"),
                total("busy_ns", Unit.NS, "when it computes or takes part in collectives"),
                total("span_ns", Unit.NS, "the steps, each while any stage of it computes"),
                same("step_count", Unit.COUNT, "over how many steps"),
                same("micro_batches", Unit.NUMBER, "tensors that a step sends to a neighbour"),
                same("process", Unit.NUMBER, "its process"),
            ),
        ),
    ),
    scalars=(
        total("stages_count", Unit.COUNT, "stages of all pipelines"),
        total("pipelines_count", Unit.COUNT, "pipelines"),
        derived("bubble_ratio", Unit.RATIO, "the bubbles of all stages, of their spans"),
        same("known_from", Unit.TEXT, "what tells which ranks are stages"),
    ),
)


def measure_pipeline(ranks: Ranks) -> Result:
    """Return the bubble of each stage in the window."""
    stages = find_stages(ranks)
    if not stages:
        note = Note("no stages can be told: neither by ranges nor by sends and receives")
        return Result("pipeline", SPEC, {"stages": SPEC.tables[0].frame()}, notes=(note,))
    members = tuple(stage.member for stage in stages)
    by_step = any(len(find_steps(part)) for part in ranks)
    numbers = [stage.pipeline for stage in stages]
    spans = _together(ranks.each(_spans, members, np.array(numbers), by_step=by_step), numbers)
    of_stages = [spans[number] for number in numbers]
    told = ranks.each(_busy, members, of_stages, by_step=by_step)
    busy_ns = {place: own for one in told for place, own in one.items()}
    micro = {process: n for own in ranks.each(_sends_per_step) for process, n in own.items()}
    rows = [
        _measure(stage, busy_ns.get(i, 0), spans[stage.pipeline], micro)
        for i, stage in enumerate(stages)
    ]
    whole = sum(row["span_ns"] for row in rows)
    scalars = {
        "stages_count": len(rows),
        "pipelines_count": stages[-1].pipeline + 1,
        "bubble_ratio": sum(row["bubble_ns"] for row in rows) / whole if whole else 0.0,
        "known_from": stages[0].known_from,
    }
    table = SPEC.tables[0].frame(rows)
    return Result("pipeline", SPEC, {"stages": table}, scalars, (_note(scalars),))


def _note(scalars: Mapping[str, Any]) -> Note:
    several = " of {pipelines:count} pipelines" if scalars["pipelines_count"] > 1 else ""
    return Note.of(
        f"{{n:count}} stages{several}, told by {{known_from}}: {{bubble:ratio}} bubble",
        n=scalars["stages_count"],
        pipelines=scalars["pipelines_count"],
        known_from=scalars["known_from"],
        bubble=scalars["bubble_ratio"],
    )


def _of_stages(trace: Trace, members: tuple[Member, ...], *, by_step: bool) -> pd.DataFrame:
    """Return what keeps the stages of one file busy in the window.

    Columns: start_ns, end_ns, computes, stage (place in ``members``), step (its number; without
    steps the window is one).
    """
    work, stage = _work(trace), _stage_of_work(trace, members)
    if by_step:
        steps, rows = find_steps(trace.whole).table, rows_of_steps(trace)
        numbers = np.full(len(steps) + 1, _OUTSIDE, np.int64)
        numbers[rows] = steps["step"].to_numpy(np.int64)[rows]
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
    kernels = trace.kernels
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
def _stage_of_work(trace: Trace, members: tuple[Member, ...]) -> npt.NDArray[np.int64]:
    """Return the place in ``members`` of each row of `_work`, -1 for none."""
    return member_of_rows(members, _work(trace))


def _spans(
    trace: Trace, members: tuple[Member, ...], pipelines: npt.NDArray[np.int64], *, by_step: bool
) -> pd.DataFrame:
    """Return, of each pipeline by step, the first start and last end of compute in one file."""
    work = _of_stages(trace, members, by_step=by_step)
    computing = work[work["computes"]]
    placed = computing.assign(pipeline=pipelines[computing["stage"].to_numpy(np.int64)])
    found: pd.DataFrame = placed.groupby(["pipeline", "step"], as_index=False).agg(**_SPAN)
    return found


def _together(every: Sequence[pd.DataFrame], pipelines: Sequence[int]) -> list[pd.DataFrame]:
    """Return the same of all files, pipeline by pipeline."""
    spans = pd.concat(every).groupby(["pipeline", "step"], as_index=False).agg(**_SPAN)
    return [spans[spans["pipeline"] == number] for number in range(max(pipelines) + 1)]


_SPAN: Final[dict[str, Any]] = {"start_ns": ("start_ns", "min"), "end_ns": ("end_ns", "max")}


def _busy(
    trace: Trace, members: tuple[Member, ...], spans: Sequence[pd.DataFrame], *, by_step: bool
) -> dict[int, int]:
    """Return how long each stage of one file is busy in its ``spans``."""
    work = _of_stages(trace, members, by_step=by_step)
    starts, ends = work["start_ns"].to_numpy(np.int64), work["end_ns"].to_numpy(np.int64)
    found = {}
    for stage, rows in rows_by_value(work["stage"].to_numpy(np.int64)).items():
        busy = Intervals.union_of(starts[rows], ends[rows])
        own = spans[stage]
        found[stage] = int(busy.covered_ns(own["start_ns"], own["end_ns"]).sum())
    return found


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
        "rank": None if stage.member.rank == ABSENT else stage.member.rank,
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
    n_steps = steps.table["process"].value_counts().to_dict()
    return {
        int(str(process)): (count / n_steps[process], neighbours.get(process, 0))
        for process, count in inside["process"].value_counts().items()
    }


@fact
def _sends(trace: Trace) -> pd.DataFrame:
    """Return every send by itself, also those that share a kernel; not those of an all-to-all."""
    calls, work = trace.collectives, find_collectives(trace)
    columns = ["process", "correlation"]
    other = work.loc[~work["op"].isin(POINT_TO_POINT) & (work["correlation"] != ABSENT), columns]
    others = pd.MultiIndex.from_frame(other.astype(np.int64))
    rows = np.flatnonzero(calls["op"] == "send")
    sends = calls[[*columns, "group", "peer", "start_ns"]].take(rows)
    kept = ~pd.MultiIndex.from_frame(sends[columns].astype(np.int64)).isin(others)
    sends = sends[kept].reset_index(drop=True)
    return sends.assign(call_ns=sends["start_ns"], group=sends["group"].astype(object))


ANALYSIS = Analysis(
    name="pipeline",
    spec=SPEC,
    needs=("kernels",),
    uses=("collectives", "api_calls", "ranges", "processes"),
    whole=("kernels", "collectives", "ranges"),
    of_steps=True,
    of_ranks=measure_pipeline,
)

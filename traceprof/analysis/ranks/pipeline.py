"""Pipeline parallelism: how much of each step a stage stands still, its bubble."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.collectives.callers import steps_of_collectives
from traceprof.facts.collectives.members import member_of_rows
from traceprof.facts.collectives.work import find_collectives
from traceprof.facts.launches import find_launches
from traceprof.facts.ranks.stages import POINT_TO_POINT, Stage, find_stages
from traceprof.facts.steps.find import find_steps
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.steps import Steps
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.units import format_ratio

__all__ = ["ANALYSIS", "Pipeline", "StageTime", "measure_pipeline"]

_WHOLE_WINDOW: Final = -1


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage of a pipeline over the steps of the window.

    ``span_ns`` adds up the steps, each from the first to the last compute kernel of any stage of
    the pipeline;
    ``busy_ns`` what of it the stage computes or takes part in collectives, ``bubble_ns`` the rest:
    waiting for other stages, sends and receives included. ``micro_batches`` is how many tensors a
    step sends on to a neighbour, ``ideal_ratio`` the bubble that p stages and m micro-batches
    cannot avoid without interleaving, (p-1)/(m+p-1); None where the sends were not recorded.
    """

    pipeline: int
    stage: int
    rank: int | None
    bubble_ratio: float
    ideal_ratio: float | None
    bubble_ns: int
    busy_ns: int
    span_ns: int
    step_count: int
    micro_batches: float | None
    process: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages in their order."""

    stages: tuple[StageTime, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per stage."""
        columns = list(StageTime.__dataclass_fields__)
        return pd.DataFrame([asdict(stage) for stage in self.stages], columns=columns)


def measure_pipeline(trace: Trace) -> Pipeline:
    """Return the bubble of each stage in the window."""
    work = find_collectives(trace.whole)
    stages = find_stages(trace, work)
    if not stages:
        return Pipeline((), ("no stages can be told: neither by ranges nor by sends and receives",))
    steps = find_steps(trace)
    sends = _sends(trace, work)
    rows = []
    for _, own in groupby(stages, key=lambda stage: stage.pipeline):
        pipeline = tuple(own)
        busy = _busy(trace, work, pipeline, steps)
        spans = _spans(busy)
        rows += [_measure(stage, busy, spans, sends, steps) for stage in pipeline]
    whole = sum(row.span_ns for row in rows)
    share = sum(row.bubble_ns for row in rows) / whole if whole else 0.0
    n_pipelines = stages[-1].pipeline + 1
    several = f" of {n_pipelines} pipelines" if n_pipelines > 1 else ""
    told_by = stages[0].told_by
    note = f"{len(rows)} stages{several}, told by {told_by}: {format_ratio(share)} bubble"
    return Pipeline(tuple(rows), (note,))


def _sends(trace: Trace, work: pd.DataFrame) -> pd.DataFrame:
    """Return every send by itself, also those that share a kernel; not those of an all-to-all."""
    calls = trace.whole.collectives
    other = work.loc[~work["op"].isin(POINT_TO_POINT), ["process", "correlation"]]
    others = set(other[other["correlation"] != ABSENT].itertuples(index=False, name=None))
    pairs = zip(calls["process"].tolist(), calls["correlation"].tolist(), strict=True)
    kept = np.array([pair not in others for pair in pairs], np.bool_)
    sends = calls[(calls["op"] == "send").to_numpy() & kept].reset_index(drop=True)
    return sends.assign(call_ns=sends["start_ns"])


def _busy(
    trace: Trace, work: pd.DataFrame, stages: tuple[Stage, ...], steps: Steps
) -> pd.DataFrame:
    """Return what keeps stages busy: start_ns, end_ns, member, step (its number), computes."""
    kernels = trace.whole.kernels
    kernels = kernels[kernels["activity"] != Activity.COMMUNICATION.value]
    launches = find_launches(trace, kernels)
    computing = kernels[["start_ns", "end_ns", "process", "device"]].assign(
        call_ns=launches.start_ns, computes=True
    )
    collective = work[~work["op"].isin(POINT_TO_POINT) & (work["device"] != ABSENT)]
    columns = ["start_ns", "end_ns", "process", "device", "call_ns"]
    both = pd.concat([computing, collective[columns].assign(computes=False)], ignore_index=True)
    members = tuple(stage.member for stage in stages)
    both = both.assign(member=member_of_rows(members, both), step=_step_numbers(trace, steps, both))
    return both[(both["member"] >= 0) & (both["step"] != ABSENT - 1)]


def _step_numbers(trace: Trace, steps: Steps, rows: pd.DataFrame) -> np.ndarray:
    """Return the number of the step of each row; without steps the window is one."""
    outside = ABSENT - 1
    if not len(steps):
        inside = trace.span.overlaps(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        return np.where(inside, _WHOLE_WINDOW, outside)
    place = steps_of_collectives(steps, rows)
    numbers = steps.table["step"].to_numpy(np.int64)
    return np.where(place >= 0, numbers[np.maximum(place, 0)], outside)


def _spans(busy: pd.DataFrame) -> pd.DataFrame:
    """Return, by step, the first start and the last end of compute on any stage."""
    computing = busy[busy["computes"]]
    return computing.groupby("step").agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))


def _measure(
    stage: Stage, busy: pd.DataFrame, spans: pd.DataFrame, sends: pd.DataFrame, steps: Steps
) -> StageTime:
    own = busy[busy["member"] == stage.number]
    union = Intervals.union_of(own["start_ns"], own["end_ns"])
    span_ns = int((spans["end_ns"] - spans["start_ns"]).sum())
    busy_ns = int(union.covered_ns(spans["start_ns"], spans["end_ns"]).sum())
    micro_batches = _micro_batches(stage, sends, steps)
    others = stage.n_stages - 1
    ideal = None if micro_batches is None else others / (micro_batches + others)
    return StageTime(
        pipeline=stage.pipeline,
        stage=stage.number,
        rank=None if stage.member.rank == ABSENT else stage.member.rank,
        bubble_ratio=1 - busy_ns / span_ns if span_ns else 0.0,
        ideal_ratio=ideal,
        bubble_ns=span_ns - busy_ns,
        busy_ns=busy_ns,
        span_ns=span_ns,
        step_count=len(spans),
        micro_batches=micro_batches,
        process=stage.member.process,
    )


def _micro_batches(stage: Stage, sends: pd.DataFrame, steps: Steps) -> float | None:
    """Return how many tensors the stage sends on to each neighbour in a step."""
    sends = sends[sends["process"] == stage.member.process]
    table = steps.table[steps.table["process"] == stage.member.process]
    if sends.empty or table.empty:
        return None
    inside = sends[steps_of_collectives(steps, sends) >= 0]
    neighbours = 1 if stage.number in (0, stage.n_stages - 1) else 2
    known = inside.loc[inside["peer"] >= 0, ["group", "peer"]].drop_duplicates()
    neighbours = len(known) or neighbours
    return len(inside) / len(table) / neighbours if len(inside) else None


ANALYSIS = Analysis(
    name="pipeline",
    needs=("kernels",),
    run=measure_pipeline,
)

"""From traces to the rounds of each rank: phases, layers and collectives, without warm-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pandas as pd

from traceprof.analysis import load_analysis
from traceprof.analysis.base import run_analysis
from traceprof.comparison.nodes.rounds import NodeRounds
from traceprof.errors import NotRecordedError
from traceprof.facts.host.phases import find_host_phases
from traceprof.facts.steps.rounds import find_rounds
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.steps import OWN_DOMAIN
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.trace import Trace, make_trace
from traceprof.model.window import TimeWindow
from traceprof.session.run import Run

__all__ = ["rounds_of_run"]

_BATCH: Final = "batch"
_LAYERS: Final = ["layer", "type", "count", "host_ns", "device_ns", "backward_ns"]


def rounds_of_run(run: Run, name: str) -> list[NodeRounds]:
    """Return the rounds of every rank of ``run``, which is called ``name``.

    Raises:
        TraceError: it cannot be read.
    """
    every = run.within("all").of_ranks().whole
    found = [one for part in every for one in _of_part(part, name)]
    n = max([len(found), *(int(size) for size in every.table("processes")["world_size"])])
    waited = _waited(every, found)
    return [
        replace(one, ranks_count=n, waited_ns=waited.get(one.rank) if one.calls_count else None)
        for one in found
    ]


def _of_part(part: Trace, name: str) -> Iterator[NodeRounds]:
    rounds = find_rounds(part)
    processes = part.processes.set_index("process")
    for process, own in rounds.groupby("process"):
        number = int(str(process))
        said = processes.loc[number] if number in processes.index else None
        rank = ABSENT if said is None else int(said["rank"])
        alone = part if rounds["process"].nunique() == 1 else _of_process(part, number)
        yield _measured(
            alone,
            own,
            name,
            None if rank == ABSENT else rank,
            part.info.host if said is None else str(said["host"]) or part.info.host,
        )


def _of_process(trace: Trace, process: int) -> Trace:
    """Return what is of one process in a file of several."""
    tables: dict[str, pd.DataFrame] = {}
    for name in TABLES:
        table = trace.table(name)
        is_own = "process" in table and name != "devices"
        tables[name] = (
            table[table["process"] == process].reset_index(drop=True) if is_own else table
        )
    return make_trace(trace.info, tables, trace.recorded, trace.span)


def _measured(
    trace: Trace, rounds: pd.DataFrame, name: str, rank: int | None, node: str
) -> NodeRounds:
    """Return a rank's rounds from the first that is no warm-up to the last."""
    kept = rounds[~rounds["is_warmup"].astype(bool)]
    if kept.empty:
        return NodeRounds(name, rank, node, 1, 0, len(rounds), 0)
    window = TimeWindow(int(kept["start_ns"].min()), int(kept["end_ns"].max()))
    inside = trace.within(window)
    collectives = _result(inside, "collectives")
    calls = None if collectives is None else collectives.table
    layers = _result(inside, "layers")
    return NodeRounds(
        run=name,
        rank=rank,
        node=node,
        ranks_count=1,
        rounds_count=len(kept),
        warmup_count=len(rounds) - len(kept),
        span=window,
        rounds_ns=int((kept["end_ns"] - kept["start_ns"]).sum()),
        phases=_phases(inside, int(kept["process"].iloc[0])),
        layers=pd.DataFrame() if layers is None else layers.table.filter(_LAYERS),
        samples_count=_samples(inside),
        calls_count=None if collectives is None else int(collectives.scalars.get("count", 0)),
        calls_bytes=None if calls is None else float(calls["size_bytes"].sum(min_count=1)),
        calls_ns=None if calls is None else float(calls["total_ns"].sum(min_count=1)),
    )


def _phases(inside: Trace, process: int) -> dict[str, int]:
    for host in find_host_phases(inside):
        if host.process == process:
            return {name: time.total_ns for name, time in host.times.items() if time.total_ns}
    return {}


def _result(trace: Trace, name: str) -> Result | None:
    """Return the result of an analysis of one rank; None where the trace lacks the data."""
    try:
        return run_analysis(load_analysis(name), Ranks.of(trace))
    except NotRecordedError:
        return None


def _waited(every: Ranks, found: Sequence[NodeRounds]) -> dict[int | None, float]:
    """Return how long each rank waited for others in its rounds, as far as they share them."""
    spans = [one.span for one in found if one.span is not None]
    if len(spans) < 2:
        return {}
    window = TimeWindow(min(s.start_ns for s in spans), max(s.end_ns for s in spans))
    try:
        table = run_analysis(load_analysis("ranks"), every.within(window)).table
    except NotRecordedError:
        return {}
    if "waited_ns" not in table:
        return {}
    pairs = zip(table["rank"].tolist(), table["waited_ns"].tolist(), strict=True)
    return {int(rank): float(ns) for rank, ns in pairs if ns == ns}


def _samples(inside: Trace) -> float | None:
    """Return the samples of the batches in the window; None where one or all are not known."""
    marks = inside.marks
    is_batch = (marks["name"] == _BATCH) & (marks["domain"] == OWN_DOMAIN)
    sizes = marks.loc[is_batch.to_numpy(), "payload"]
    return float(sizes.sum()) if len(sizes) and (sizes > 0).all() else None

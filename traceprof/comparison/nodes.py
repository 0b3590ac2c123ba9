"""Compare the iterations of several runs by node: means without warm-up, per rank.

Independent ranks are also averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import nan
from statistics import fmean
from typing import Any, Final

import numpy as np

from traceprof.comparison import Comparison
from traceprof.comparison.scaling.points import INDEPENDENT, ONE, SYNCHRONIZED, or_nan
from traceprof.comparison.specs_of_many import (
    MEAN,
    NODE_LAYERS,
    NODE_LAYERS_SPEC,
    NODES,
    NODES_SPEC,
)
from traceprof.errors import NotRecordedError, UsageError
from traceprof.measures.rows import mean_of
from traceprof.model.grouping import codes_of, rows_by_first
from traceprof.model.results import Note, Result
from traceprof.model.table import Table
from traceprof.model.timing import TimeWindow
from traceprof.names.ranges import PHASES
from traceprof.session.caveats import caveats_of_run, refused

FORWARD: Final = "forward"
BOTH: Final = "forward+backward"


@dataclass(frozen=True, slots=True, eq=False)
class NodeIterations:
    """The iterations of one rank without warm-up; None means unknown.

    ``iterations_ns`` is the total time of the ``iterations_count`` iterations. ``phases`` is the
    host time by phase within them, in ns. ``are_phases_from_recorder``: the recorder named the
    phases, and no others exist. ``layers`` has a row for each layer: layer, type, count, host_ns;
    host_backward_ns if recorded; device_ns and backward_ns if GPU activity was recorded. All are
    totals over the iterations.

    ``calls_count`` is the number of collectives after the first iteration. They have
    ``calls_bytes`` of input and took ``calls_ns``. The iterations after the first took
    ``calls_iterations_ns``, without the time between them, such as the start of a profiler.
    ``waited_ns`` is the time spent waiting for other ranks in all iterations. ``span`` is the
    window from the first to the last iteration. ``caveats`` are the caveats of the run.
    ``program`` is the script of the run; "" if unknown.
    """

    run: str
    rank: int | None
    node: str
    ranks_count: int
    iterations_count: int
    warmup_count: int
    iterations_ns: int
    phases: Mapping[str, int] = field(default_factory=dict)
    layers: Table = field(default_factory=lambda: Table({}))
    are_phases_from_recorder: bool = True
    caveats: tuple[Note, ...] = ()
    samples_count: float | None = None
    calls_count: int | None = None
    calls_iterations_ns: int = 0
    calls_bytes: float | None = None
    calls_ns: float | None = None
    waited_ns: float | None = None
    span: TimeWindow | None = None
    program: str = ""

    @property
    def mode(self) -> str:
        """Whether the iterations contain a backward pass; "" if unknown.

        If the recorder did not name the phases, a missing phase proves nothing.
        """
        if self.phases.get("backward", 0) or self.phases.get("optimizer", 0):
            return BOTH
        return FORWARD if self.are_phases_from_recorder and self.phases.get("forward", 0) else ""

    @property
    def ranks(self) -> str:
        """Whether the ranks are synchronized; "" if collectives were not recorded."""
        if self.ranks_count == 1:
            return ONE
        if self.calls_count is None:
            return ""
        return SYNCHRONIZED if self.calls_count else INDEPENDENT


_ABOUT: Final = {
    NODES: "rounds by rank: host phases and collectives",
    NODE_LAYERS: "layers by rank",
}


def nodes(of_ranks: Sequence[NodeIterations], *, are_independent: bool = False) -> Comparison:
    """Compare the ranks of several runs; the ranks of each run are in order.

    ``are_independent``: the runs are nodes of one job that do not synchronize, so a row has their
    mean.

    Raises:
        NotRecordedError: no rank has an iteration.
        UsageError: ``are_independent``, and the runs are not alike, or their ranks synchronize.
    """
    known = [rank for rank in of_ranks if rank.iterations_count]
    if are_independent:
        _check_independence(known)
    if not known:
        raise refused(
            NotRecordedError(
                "no rounds found: record with `traceprof record`, which detects steps and forward "
                "passes, or mark steps with traceprof.step()"
            ),
            (note for rank in of_ranks for note in rank.caveats),
        )
    rows = [row for run in _group_by_run(known) for row in _node_rows(run)]
    if are_independent:
        rows = [*(row for row in rows if row["rank"] != MEAN), _mean_of_runs(rows)]
    on_device = _uses_devices(known)
    of_runs = [
        layers for run in _group_by_run(known) if len(layers := _layers_of_run(run, on_device))
    ]
    results = {NODES: Result(NODES, NODES_SPEC, {NODES: NODES_SPEC.table(NODES).of_rows(rows)})}
    if of_runs:
        results[NODE_LAYERS] = _layers(Table.stacked(of_runs), known, on_device)
    left_out = [rank for rank in of_ranks if not rank.iterations_count]
    caveats = {rank.run: rank.caveats for rank in of_ranks}
    return Comparison(
        title=f"rounds by rank: {', '.join(caveats)}",
        results=results,
        verdict=tuple(_verdict(rows)),
        notes=tuple(_notes(known, left_out)),
        warnings=tuple(
            note for name, notes in caveats.items() for note in caveats_of_run(name, notes)
        ),
        missing={} if of_runs else {NODE_LAYERS: "no layer names: record with --layers 2"},
        about=_ABOUT,
    )


def _check_independence(known: Sequence[NodeIterations]) -> None:
    """Check that runs can be averaged as independent nodes.

    Raises:
        UsageError: they cannot; the message gives the reason.
    """
    for what, values in (
        ("programs", {rank.program for rank in known} - {""}),
        ("kinds of rounds", {rank.mode for rank in known} - {""}),
    ):
        if len(values) > 1:
            raise UsageError(
                f"--independent averages runs of one kind, but their {what} differ: "
                f"{', '.join(sorted(values))}"
            )
    synchronized = sorted({rank.run for rank in known if rank.ranks == SYNCHRONIZED})
    if synchronized:
        raise UsageError(f"--independent: the ranks of {', '.join(synchronized)} are synchronized")


def _mean_of_runs(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of the rows of all ranks of all runs."""
    of_ranks = [row for row in rows if row["rank"] != MEAN]
    return {**_mean_row(of_ranks), "run": _ALL_RUNS, "ranks": INDEPENDENT}


_ALL_RUNS: Final = "(all)"


def _group_by_run(known: Sequence[NodeIterations]) -> Iterator[list[NodeIterations]]:
    """Yield the ranks of each run, sorted by rank."""
    for _, ranks in groupby(known, key=lambda rank: rank.run):
        yield sorted(ranks, key=lambda rank: -1 if rank.rank is None else rank.rank)


def _are_independent(run: Sequence[NodeIterations]) -> bool:
    """Return whether ranks exchange no data and do the same kind of work, so a mean describes them.

    An actor that only runs forward passes is unlike its learner.
    """
    has_one_mode = len({rank.mode for rank in run}) == 1
    return len(run) > 1 and has_one_mode and all(rank.ranks == INDEPENDENT for rank in run)


def _node_rows(run: Sequence[NodeIterations]) -> list[dict[str, Any]]:
    """Return a row for each rank, and a row with the mean of independent ranks."""
    rows = [_node_row(rank) for rank in run]
    return [*rows, _mean_row(rows)] if _are_independent(run) else rows


def _mean_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of the rows of independent ranks."""
    first = rows[0]
    numbers = [name for name, value in first.items() if not isinstance(value, str)]
    means = {name: fmean(row[name] for row in rows) for name in numbers}
    return {**first, **means, "rank": MEAN, "node": ""}


def _node_row(rank: NodeIterations) -> dict[str, Any]:
    n, seconds = rank.iterations_count, rank.iterations_ns / 1e9
    calls = rank.calls_count or nan
    each = {f"{phase}_ns": rank.phases.get(phase, nan) / n for phase in PHASES}
    return {
        "run": rank.run,
        "rank": _rank_text(rank),
        "mode": rank.mode,
        "ranks": rank.ranks,
        "round_ns": rank.iterations_ns / n,
        **each,
        "other_ns": (rank.iterations_ns - sum(rank.phases.values())) / n if rank.phases else nan,
        "samples_per_s": or_nan(rank.samples_count) / seconds,
        "syncs_per_s": 1e9 * calls / (rank.calls_iterations_ns or nan),
        "sync_bytes": or_nan(rank.calls_bytes) / calls,
        "sync_ns": or_nan(rank.calls_ns) / calls,
        "sync_bytes_per_s": 1e9 * or_nan(rank.calls_bytes) / (or_nan(rank.calls_ns) or nan),
        "waited_ns": or_nan(rank.waited_ns) / n,
        "rounds_count": float(n),
        "warmup_count": float(rank.warmup_count),
        "node": rank.node,
    }


def _uses_devices(known: Sequence[NodeIterations]) -> bool:
    """Return whether any run has GPU times of layers; then all layers are compared by GPU time."""
    return any(
        "device_ns" in rank.layers and bool((rank.layers["device_ns"] > 0).any()) for rank in known
    )


def _layers_of_run(run: Sequence[NodeIterations], on_device: bool) -> Table:
    """Return the time per iteration of each layer and rank; of independent ranks, the mean."""
    host = "" if on_device else "host_"
    tables = []
    for rank in run:
        layers = rank.layers
        if (name := "device_ns" if on_device else "host_ns") in layers:
            backward_ns = layers.get(f"{host}backward_ns", np.full(len(layers), nan))
            forward, backward = np.array([layers[name], backward_ns], float) / rank.iterations_count
            times = dict(zip(_TIMES, (forward, backward, forward + backward), strict=True))
            about = {
                "run": rank.run,
                "rank": _rank_text(rank),
                "mode": rank.mode,
                "ranks": rank.ranks,
            }
            tables.append(layers.select("layer", "type").assign(**about, **times))
    found = Table.stacked(tables) if tables else Table({})
    if found.empty or not _are_independent(run):
        return found
    rows = rows_by_first(codes_of(found["layer"]), codes_of(found["type"]))
    means = {
        name: np.array([mean_of(found[name][group_rows]) for group_rows in rows]) for name in _TIMES
    }
    return found.take([group_rows[0] for group_rows in rows]).assign(**means, rank=MEAN)


_TIMES: Final = ("forward_ns", "backward_ns", "both_ns")


def _rank_text(rank: NodeIterations) -> str:
    return "" if rank.rank is None else str(rank.rank)


def _layers(table: Table, known: Sequence[NodeIterations], on_device: bool) -> Result:
    """Return the layers in the order of the first run, the rows of each layer together."""
    table = table.take(np.concatenate(rows_by_first(codes_of(table["layer"]))))
    has_backward = any(rank.mode == BOTH for rank in known)
    is_split = not np.isnan(table["backward_ns"]).all()
    return Result(
        NODE_LAYERS,
        NODE_LAYERS_SPEC,
        {"layers": NODE_LAYERS_SPEC.table("layers").of_rows(table)},
        {"clock": "device" if on_device else "host"},
        (_BACKWARD_NOT_SPLIT,) if has_backward and not is_split else (),
    )


_BACKWARD_NOT_SPLIT: Final = Note(
    "The trace does not split the backward pass by layer. Record with --layers 2 or with "
    "emit_nvtx. The phases above include the whole backward pass."
)


def _verdict(rows: Sequence[dict[str, Any]]) -> Iterator[Note]:
    """Yield the differences between kinds of iterations, or else the iteration time of each run."""
    differences = list(_differences(rows))
    yield from differences
    if differences:
        return
    of_runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["rank"] != MEAN:
            of_runs.setdefault(row["run"], []).append(row)
    for name, run_rows in list(of_runs.items())[:_MAX_RUNS]:
        slowest = max(run_rows, key=lambda row: row["round_ns"])
        of_ranks = "" if len(run_rows) == 1 else " on the slowest of {n:count} ranks (rank {rank})"
        text = "{name}: a round takes {round:ns}" + of_ranks
        yield Note.of(
            text, name=name, round=slowest["round_ns"], rank=slowest["rank"], n=len(run_rows)
        )


_MAX_RUNS: Final = 4


def _differences(rows: Sequence[dict[str, Any]]) -> Iterator[Note]:
    """Yield the cost of synchronization in each mode, and the cost of the backward pass."""
    iterations = _iterations_by_kind(rows)
    for mode in (FORWARD, BOTH):
        independent = iterations.get((mode, INDEPENDENT)) or iterations.get((mode, ONE))
        synchronized = iterations.get((mode, SYNCHRONIZED))
        if independent and synchronized:
            yield Note.of(
                "{mode}: a round takes {together:ns} if the ranks are synchronized and {alone:ns} "
                "if not ({more:ratio} more).",
                mode=mode,
                together=synchronized,
                alone=independent,
                more=synchronized / independent - 1,
            )
    for kind in (ONE, INDEPENDENT, SYNCHRONIZED):
        forward, both = iterations.get((FORWARD, kind)), iterations.get((BOTH, kind))
        if forward and both:
            yield Note.of(
                "{kind} nodes: a forward round takes {forward:ns}. A round with the backward pass "
                "takes {both:ns} ({factor:factor} as long).",
                kind=kind,
                forward=forward,
                both=both,
                factor=both / forward,
            )


def _iterations_by_kind(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Return the iteration time by mode and kind of ranks, averaged over runs.

    Independent ranks of a run are averaged. Of synchronized ranks, the slowest one counts. Ranks of
    one run with different modes have roles, such as a trainer and a rollout, and are left out.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    modes: dict[str, set[str]] = {}
    for row in rows:
        modes.setdefault(row["run"], set()).add(row["mode"])
    for row in rows:
        if row["rank"] != MEAN and len(modes[row["run"]]) == 1:
            of_runs = found.setdefault((row["mode"], row["ranks"]), {})
            of_runs.setdefault(row["run"], []).append(row["round_ns"])
    return {
        kind: fmean(
            (max if kind[1] == SYNCHRONIZED else fmean)(round_ns) for round_ns in of_runs.values()
        )
        for kind, of_runs in found.items()
    }


def _notes(known: Sequence[NodeIterations], left_out: Sequence[NodeIterations]) -> Iterator[Note]:
    if left_out:
        names = (
            rank.run if rank.rank is None else f"{rank.run} rank {rank.rank}" for rank in left_out
        )
        yield Note.of("Ranks without rounds are excluded: {names}.", names=", ".join(names))
    dropped = sum(rank.warmup_count for rank in known)
    yield Note.of(
        "Warm-up is excluded: {dropped:count} of {n:count} rounds.",
        dropped=dropped,
        n=dropped + sum(rank.iterations_count for rank in known),
    )
    if any(map(_are_independent, _group_by_run(known))):
        yield Note("Independent ranks exchange no data. traceprof averages them (row mean).")
    if any(rank.ranks == SYNCHRONIZED for rank in known):
        yield Note("Synchronized ranks wait for each other. traceprof lists each rank.")

"""Rounds of several runs by node: means without warm-up, independent ranks averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import nan
from statistics import fmean
from typing import Any, Final

import pandas as pd

from traceprof.comparison.base import Comparison
from traceprof.comparison.nodes.rounds import (
    BOTH,
    FORWARD,
    INDEPENDENT,
    ONE,
    SYNCHRONISED,
    NodeRounds,
)
from traceprof.comparison.nodes.spec import LAYERS, LAYERS_SPEC, MEAN, NAME, SPEC
from traceprof.errors import UsageError
from traceprof.model.results import Note, Result
from traceprof.names.ranges import PHASES

__all__ = ["nodes"]

_ABOUT: Final = {
    NAME: "rounds of the nodes: phases of the host, collectives",
    LAYERS: "layers of the nodes",
}


def nodes(of_ranks: Sequence[NodeRounds]) -> Comparison:
    """Return the ranks of several runs beside one another, each run's in their order.

    Raises:
        UsageError: no rank has any round.
    """
    known = [one for one in of_ranks if one.rounds_count]
    if not known:
        raise UsageError(
            "no rounds are known: they are the steps and forward passes that `traceprof record` "
            "sees, or steps that the program names (traceprof.step())"
        )
    rows = [row for run in _runs(known) for row in _node_rows(run)]
    layers = [row for run in _runs(known) for row in _layer_rows(run, _uses_devices(known))]
    results = {NAME: Result(NAME, SPEC, {NAME: SPEC.table(NAME).frame(rows)})}
    if layers:
        results[LAYERS] = _layers(layers, known)
    runs = list(dict.fromkeys(one.run for one in of_ranks))
    left_out = [one for one in of_ranks if not one.rounds_count]
    return Comparison(
        title=f"rounds of the ranks of {', '.join(runs)}",
        results=results,
        verdict=tuple(_verdict(rows)),
        notes=tuple(_notes(known, left_out)),
        missing={} if layers else {LAYERS: "no layers are named: record with --layers"},
        about=_ABOUT,
    )


def _runs(known: Sequence[NodeRounds]) -> Iterator[list[NodeRounds]]:
    for _, own in groupby(known, key=lambda one: one.run):
        yield sorted(own, key=lambda one: -1 if one.rank is None else one.rank)


def _are_independent(run: Sequence[NodeRounds]) -> bool:
    return len(run) > 1 and all(one.ranks == INDEPENDENT for one in run)


def _node_rows(run: Sequence[NodeRounds]) -> list[dict[str, Any]]:
    """Return a row for each rank, and of independent ones their mean."""
    rows = [_node_row(one) for one in run]
    if not _are_independent(run):
        return rows
    first = rows[0]
    numbers = [name for name, value in first.items() if not isinstance(value, str)]
    means = {name: fmean(row[name] for row in rows) for name in numbers}
    return [*rows, {**first, **means, "rank": MEAN, "node": ""}]


def _node_row(one: NodeRounds) -> dict[str, Any]:
    n, seconds = one.rounds_count, one.rounds_ns / 1e9
    calls = one.calls_count or nan
    each = {f"{phase}_ns": one.phases.get(phase, nan) / n for phase in PHASES}
    return {
        "run": one.run,
        "rank": "" if one.rank is None else str(one.rank),
        "mode": one.mode,
        "ranks": one.ranks,
        "round_ns": one.rounds_ns / n,
        **each,
        "other_ns": (one.rounds_ns - sum(one.phases.values())) / n if one.phases else nan,
        "samples_per_s": _number(one.samples_count) / seconds,
        "syncs_per_s": 1e9 * calls / (one.calls_rounds_ns or nan),
        "sync_bytes": _number(one.calls_bytes) / calls,
        "sync_ns": _number(one.calls_ns) / calls,
        "sync_bytes_per_s": 1e9 * _number(one.calls_bytes) / (_number(one.calls_ns) or nan),
        "waited_ns": _number(one.waited_ns) / n,
        "rounds_count": float(n),
        "warmup_count": float(one.warmup_count),
        "node": one.node,
    }


def _number(value: float | None) -> float:
    return nan if value is None else float(value)


def _uses_devices(known: Sequence[NodeRounds]) -> bool:
    """Return whether devices tell the layers of any run: all are then told by devices."""
    return any(
        "device_ns" in one.layers and bool((one.layers["device_ns"] > 0).any()) for one in known
    )


def _layer_rows(run: Sequence[NodeRounds], on_device: bool) -> list[dict[str, Any]]:
    rows = [row for one in run for row in _layers_of_rank(one, on_device)]
    if not _are_independent(run) or not rows:
        return rows
    frame = pd.DataFrame(rows)
    times = ["forward_ns", "backward_ns", "both_ns"]
    means = frame.groupby(["layer", "type"], sort=False)[times].mean().reset_index()
    first = rows[0]
    shared = {name: first[name] for name in ("run", "mode", "ranks")}
    found = means.to_dict("records")
    return [{**{str(k): v for k, v in row.items()}, **shared, "rank": MEAN} for row in found]


def _layers_of_rank(one: NodeRounds, on_device: bool) -> Iterator[dict[str, Any]]:
    """Yield the layers of a rank, the time of a round each."""
    name = "device_ns" if on_device else "host_ns"
    if name not in one.layers:
        return
    for row in one.layers.to_dict("records"):
        forward = float(row[name])
        backward = float(row.get("backward_ns" if on_device else "host_backward_ns", nan))
        yield {
            "layer": row["layer"],
            "type": row["type"],
            "run": one.run,
            "rank": "" if one.rank is None else str(one.rank),
            "mode": one.mode,
            "ranks": one.ranks,
            "forward_ns": forward / one.rounds_count,
            "backward_ns": backward / one.rounds_count,
            "both_ns": (forward + backward) / one.rounds_count,
        }


def _layers(rows: list[dict[str, Any]], known: Sequence[NodeRounds]) -> Result:
    """Return the layers in the order in which the first run has them, each with all its runs."""
    order = {str(row["layer"]): i for i, row in reversed(list(enumerate(rows)))}
    frame = pd.DataFrame(rows)
    frame = frame.iloc[frame["layer"].map(order).argsort(kind="stable")]
    on_device = _uses_devices(known)
    notes = []
    if any(one.mode == BOTH for one in known) and not frame["backward_ns"].notna().any():
        notes.append(
            Note(
                "backward passes are not told apart by layer: record with --layers, or with "
                "emit_nvtx; the phases above hold the whole backward pass"
            )
        )
    table = LAYERS_SPEC.table("layers").frame(frame)
    scalars = {"clock": "device" if on_device else "host"}
    return Result(LAYERS, LAYERS_SPEC, {"layers": table}, scalars, tuple(notes))


def _verdict(rows: Sequence[dict[str, Any]]) -> Iterator[Note]:
    """Yield what synchronising costs a round of each mode, and what the backward pass adds."""
    rounds = _rounds_by_kind(rows)
    for mode in (FORWARD, BOTH):
        alone = rounds.get((mode, INDEPENDENT)) or rounds.get((mode, ONE))
        together = rounds.get((mode, SYNCHRONISED))
        if alone and together:
            yield Note.of(
                "{mode}: a round takes {together:ns} where nodes are synchronised and {alone:ns} "
                "where they are not: {more:ratio} more",
                mode=mode,
                together=together,
                alone=alone,
                more=together / alone - 1,
            )
    for kind in (ONE, INDEPENDENT, SYNCHRONISED):
        forward, both = rounds.get((FORWARD, kind)), rounds.get((BOTH, kind))
        if forward and both:
            yield Note.of(
                "{kind} nodes: a round takes {forward:ns} forward, {both:ns} with the backward "
                "pass: {factor:factor}",
                kind=kind,
                forward=forward,
                both=both,
                factor=both / forward,
            )


def _rounds_by_kind(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Return the time of a round by mode and kind: of independent ranks the mean over all.

    Synchronised ranks are not averaged: that of the slowest counts, for each of several runs.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if row["rank"] != MEAN:
            of_runs = found.setdefault((row["mode"], row["ranks"]), {})
            of_runs.setdefault(row["run"], []).append(row["round_ns"])
    return {
        kind: fmean((max if kind[1] == SYNCHRONISED else fmean)(own) for own in of_runs.values())
        for kind, of_runs in found.items()
    }


def _notes(known: Sequence[NodeRounds], left_out: Sequence[NodeRounds]) -> Iterator[Note]:
    if left_out:
        yield Note.of(
            "ranks without rounds are left out: {names}",
            names=", ".join(
                one.run if one.rank is None else f"{one.run} rank {one.rank}" for one in left_out
            ),
        )
    dropped = sum(one.warmup_count for one in known)
    yield Note.of(
        "warm-up is left out: {dropped:count} of {n:count} rounds",
        dropped=dropped,
        n=dropped + sum(one.rounds_count for one in known),
    )
    if any(one.ranks == INDEPENDENT for one in known):
        yield Note("independent ranks exchange nothing: they are averaged (mean)")
    if any(one.ranks == SYNCHRONISED for one in known):
        yield Note("synchronised ranks wait for one another: they are not averaged")

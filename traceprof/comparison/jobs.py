"""One job: its epochs, each held against a typical one, and its restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.model.summary import SUMMARY, Summary

PARTS: Final = (
    *("redone", "noticing", "down", "rendezvous", "failed", "initialisation", "loading", "setup"),
)
"""Of what the time that is lost at a restart can be made, in the order in which it passes."""

_TOTALS: Final = ("total_ns", "train_ns", "time_to_train_ns")
_TELLING: Final = 0.01


@dataclass(frozen=True, slots=True)
class Lost:
    """The time that one restart or re-scaling cost, in ns; ``parts`` explain some of it.

    ``inside_ns`` of it is in the length of ``epoch``, the one at which training went on.
    """

    number: int
    life: float
    epoch: float
    at_ns: float
    lost_ns: float
    parts: Mapping[str, float]
    redone_count: float
    why: str
    ranks_before: float
    ranks_after: float
    inside_ns: float

    @property
    def explained_ns(self) -> float:
        """How much of it the parts are."""
        return min(self.lost_ns, sum(self.parts.values()))

    @property
    def unexplained_ns(self) -> float:
        """How much of it nothing explains."""
        return self.lost_ns - self.explained_ns


@dataclass(frozen=True, slots=True, eq=False)
class ElasticJob:
    """A job; lengths in ns, NaN where they are not known.

    ``epochs`` are those whose work was kept, one row for each number: epoch, life, at_ns,
    duration_ns, lost_ns (inside it), typical_ns (the median of the undisturbed ones beside it),
    typical_of (which these are), beyond_ns (the rest), steps_count, ranks_count, is_first and
    is_restart.
    """

    name: str
    total_ns: float
    setup_ns: float
    initialisation_ns: float
    epochs: pd.DataFrame
    lost: Sequence[Lost]
    cut_count: int = 0
    restarts_count: int = 0
    accuracy: Mapping[float, float] = field(default_factory=dict)
    accuracy_name: str = ""

    @property
    def lost_ns(self) -> float:
        """The time lost at all restarts."""
        return float(sum(one.lost_ns for one in self.lost))

    def beyond_ns(self, epoch: float) -> float:
        """Return how much of an epoch is neither typical nor the lost time that is told."""
        rows = self.epochs[self.epochs["epoch"] == epoch]
        return nan if rows.empty else float(rows["beyond_ns"].iloc[0])

    def accuracy_after(self, epoch: float) -> float:
        """Return the accuracy after an epoch; metrics may count how many epochs there were."""
        counts = bool(self.accuracy) and max(self.accuracy) > max(self.epochs["epoch"], default=0)
        return self.accuracy.get(epoch + 1 if counts else epoch, nan)


def table_of(run: Summary, name: str) -> pd.DataFrame:
    """Return a table of a run with all columns that it may have."""
    columns = [column.name for column in SUMMARY.table(name)]
    return run.table(name).reindex(columns=columns)


def elastic_job(run: Summary) -> ElasticJob:
    """Return the course of a job, from what is kept of it."""
    every = table_of(run, "epochs")
    events = table_of(run, "events").sort_values("event", kind="stable")
    is_recorded = len(table_of(run, "lives")) > 0
    lost = _lost(events, every, is_recorded=is_recorded)
    kept = every.sort_values("life", kind="stable").drop_duplicates("epoch", keep="last")
    epochs = _judged(kept.sort_values("epoch", ignore_index=True), lost)
    first = _first_events(events)
    name, accuracy = _accuracy(table_of(run, "metrics"))
    return ElasticJob(
        name=run.name,
        total_ns=_total_ns(run),
        setup_ns=first.get("setup", nan),
        initialisation_ns=first.get("initialisation", nan),
        epochs=epochs,
        lost=lost,
        cut_count=len(every) - len(kept),
        restarts_count=int((events["kind"] == "restart").sum()),
        accuracy=accuracy,
        accuracy_name=name,
    )


def _total_ns(run: Summary) -> float:
    """Return how long the job took: from its first process to the last, else what it printed."""
    lives = table_of(run, "lives")
    if len(lives) and lives["end_ns"].notna().all():
        return float(lives["end_ns"].max() - lives["at_ns"].min())
    found = (run.measure(name) for name in _TOTALS)
    return next((value for value in found if value is not None), nan)


def _first_events(events: pd.DataFrame) -> dict[str, float]:
    """Return set-up and initialisation before anything was trained."""
    found: dict[str, float] = {}
    for row in events.to_dict("records"):
        kind = str(row["kind"])
        if kind == "time_lost":
            break
        is_start = pd.isna(row["epoch"]) or (row["epoch"] == 0 and kind not in found)
        is_first = pd.isna(row["life"]) or row["life"] == 0
        if kind in ("setup", "initialisation") and is_start and is_first:
            found.setdefault(kind, float(row["duration_ns"]))
    return found


def _lost(events: pd.DataFrame, epochs: pd.DataFrame, *, is_recorded: bool) -> list[Lost]:
    """Return the restarts, each with what explains it.

    That is what happened to the whole job in its life and epoch; in a log which tells neither, what
    was printed before it since the one before.
    """
    is_named = events["node"].notna() & (events["node"].astype(str) != "")
    of_job = events[events["rank"].isna() & ~is_named]
    rows = [{str(name): value for name, value in row.items()} for row in of_job.to_dict("records")]
    found: list[Lost] = []
    for place, row in enumerate(rows):
        if row["kind"] != "time_lost" or pd.isna(row["duration_ns"]):
            continue
        parts: dict[str, float] = {}
        for other in rows:
            kind = str(other["kind"])
            is_same = _same(other["life"], row["life"]) and _same(other["epoch"], row["epoch"])
            if kind in PARTS and is_same and pd.notna(other["duration_ns"]):
                parts[kind] = parts.get(kind, 0.0) + float(other["duration_ns"])
        before, after = _sizes(rows, place) if is_recorded else (nan, nan)
        life, epoch, at_ns = (_number(row[name]) for name in ("life", "epoch", "at_ns"))
        lost_ns, redone = float(row["duration_ns"]), _number(row["value"])
        why = str(row["text"]) if is_recorded and pd.notna(row["text"]) else ""
        about = (life, epoch, at_ns, lost_ns, parts, redone, why, before, after)
        found.append(Lost(len(found) + 1, *about, _inside_ns(row, epochs)))
    return found


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (pd.isna(one) and pd.isna(other)))


def _number(value: Any) -> float:
    return nan if value is None or pd.isna(value) else float(value)


def _sizes(rows: Sequence[Mapping[str, Any]], place: int) -> tuple[float, float]:
    """Return how many ranks there were before and after a restart, where it is told."""
    life = rows[place]["life"]
    told = [row for row in rows if row["kind"] in ("start", "restart") and pd.notna(row["value"])]
    before = [float(row["value"]) for row in told if row["life"] < life]
    after = [float(row["value"]) for row in told if row["life"] == life]
    return (before or [nan])[-1], (after or [nan])[-1]


def _inside_ns(row: Mapping[str, Any], epochs: pd.DataFrame) -> float:
    """Return how much of the lost time the length of its epoch holds: as far as times overlap.

    Where no times are told a program that prints the lost time before its epoch means all of it.
    """
    own = epochs[(epochs["epoch"] == row["epoch"]).to_numpy()]
    own = own[own["life"].isin([row["life"]]).to_numpy()] if pd.notna(row["life"]) else own
    if own.empty:
        return 0.0
    start, lost = own["at_ns"].iloc[-1], float(row["duration_ns"])
    if pd.isna(start) or pd.isna(row["at_ns"]):
        return lost if own["duration_ns"].iloc[-1] >= lost else 0.0
    return min(lost, max(0.0, float(row["at_ns"] + lost - start)))


def _judged(epochs: pd.DataFrame, lost: Sequence[Lost]) -> pd.DataFrame:
    """Return the epochs with what is typical beside each, and what of each is not."""
    numbers = epochs["epoch"].to_numpy(np.float64)
    durations = epochs["duration_ns"].to_numpy(np.float64)
    restarts = {one.epoch for one in lost}
    inside = np.zeros(len(epochs))
    for one in lost:
        inside[numbers == one.epoch] += one.inside_ns
    own = durations - inside
    is_first = np.arange(len(epochs)) == 0
    is_restart = np.isin(numbers, list(restarts))
    segment = np.cumsum(is_restart)
    # A first epoch warms up, and one that holds lost time may hold more of it than is told.
    disturbed = is_first | (inside > _TELLING * durations) | np.isnan(own)
    typical, names = _typical(numbers, own, segment, disturbed)
    return epochs.assign(
        lost_ns=inside,
        typical_ns=typical,
        typical_of=names,
        beyond_ns=own - typical,
        is_first=is_first,
        is_restart=is_restart,
    )


def _typical(
    numbers: np.ndarray, own: np.ndarray, segment: np.ndarray, disturbed: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Return the median undisturbed epoch beside each epoch: after it until the next restart.

    Where none follows it is those before it, since the restart before.
    """
    typical, names = np.full(len(own), nan), [""] * len(own)
    known = sorted(set(segment[~disturbed].tolist()))
    for place, of in enumerate(segment.tolist()):
        if not known:
            break
        earlier = [one for one in known if one <= of]
        nearest = of if of in known else (earlier[-1] if earlier else known[0])
        rows = np.flatnonzero((segment == nearest) & ~disturbed)
        typical[place] = float(np.median(own[rows]))
        first, last = numbers[rows[0]], numbers[rows[-1]]
        names[place] = f"{first:g}" if first == last else f"{first:g}–{last:g}"
    return typical, names


def _accuracy(metrics: pd.DataFrame) -> tuple[str, dict[float, float]]:
    """Return the accuracy after each epoch, and what it is called; nothing where none is told."""
    names = [str(name) for name in metrics["metric"].unique() if "train" not in name.lower()]
    ranked = [name for wanted in ("top1", "acc") for name in names if wanted in name.lower()]
    if not ranked:
        return "", {}
    rows = metrics[(metrics["metric"] == ranked[0]) & metrics["epoch"].notna()]
    return ranked[0], dict(
        zip(rows["epoch"].astype(float), rows["value"].astype(float), strict=True)
    )

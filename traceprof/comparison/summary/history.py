"""What happened while a run went on, as the program itself told: metrics, epochs, events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.measures.steps.between import CHECKPOINT, EVALUATION, between_steps
from traceprof.measures.steps.costs import one_off_costs
from traceprof.measures.steps.epochs import epochs_of_loaders
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace

_Float64Array = npt.NDArray[np.float64]
_METRIC: Final = "metric:"
_UPDATE: Final = "optimizer"
_EPOCH: Final = re.compile(r"epoch(?:[\s_#:=.-]*(?P<number>\d+))?", re.IGNORECASE)
_MOST_VALUES: Final = 2_000
_MOST_EVENTS: Final = 500


def history_of_run(ranks: Ranks) -> Mapping[str, pd.DataFrame]:
    """Return the tables metrics, epochs, events and lives of `SUMMARY`, those that are known.

    Times are ns after the start of the recording.
    """
    whole = ranks.whole
    epochs = _epochs(whole)
    tables = {
        "epochs": epochs.drop(columns="processes") if len(epochs) else epochs,
        "metrics": _metrics(whole, epochs),
        "events": _events(whole),
        "lives": _lives(whole),
    }
    return {name: table for name, table in tables.items() if len(table)}


def _ranks_of(ranks: Ranks) -> dict[int, float]:
    """Return the rank of each process that has one."""
    return {
        int(process): float(rank)
        for part in ranks
        for process, rank in zip(part.processes["process"], part.processes["rank"], strict=True)
        if rank != ABSENT
    }


def _epochs(ranks: Ranks) -> pd.DataFrame:
    """Return the epochs, each from where its first rank begins to where its last one ends."""
    zero = ranks.span.start_ns
    rows: list[dict[str, Any]] = [
        {
            "process": process,
            "epoch": epoch,
            "start": start_ns - zero,
            "end": end_ns - zero,
        }
        for own in ranks.each(_named_epochs)
        for process, epoch, start_ns, end_ns in own
    ]
    if not rows:
        rows = [
            {
                "process": row["process"],
                "epoch": np.nan,
                "start": row["start_ns"] - zero,
                "end": row["end_ns"] - zero,
            }
            for part in ranks
            for row in epochs_of_loaders(part).to_dict("records")
        ]
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows).sort_values(["process", "start"], kind="stable")
    counted = table.groupby("process").cumcount().astype(float)
    table["epoch"] = table["epoch"].fillna(counted)
    groups = table.groupby("epoch")
    first, last = groups["start"].min(), groups["end"].max()
    found = pd.DataFrame({"at_ns": first, "duration_ns": last - first}).reset_index()
    found = found.assign(life=0, ranks_count=groups["process"].nunique().to_numpy())
    return _with_steps(ranks, found).assign(processes=groups["process"].agg(list).to_numpy())


def _named_epochs(trace: Trace) -> list[tuple[int, float, int, int]]:
    """Return process, number (NaN: not said), start and end of the ranges that are named so."""
    names = trace.ranges["name"].cat
    matches = [_EPOCH.fullmatch(str(name).strip()) for name in names.categories]
    kept = np.flatnonzero(np.array([m is not None for m in matches], bool)[names.codes])
    found = []
    for row in trace.ranges.iloc[kept].to_dict("records"):
        match = _EPOCH.fullmatch(str(row["name"]).strip())
        number = match["number"] if match else None
        payload = float(row["payload"]) if row["domain"] == OWN_DOMAIN else np.nan
        epoch = float(number) if number else payload
        found.append((row["process"], epoch, row["start_ns"], row["end_ns"]))
    return found


def _with_steps(ranks: Ranks, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the epochs with how many steps and samples began in each."""
    if not len(steps_of_ranks(ranks)):
        return epochs
    steps = measured_steps(ranks).table
    starts = steps["host_at_ns"].to_numpy(np.int64)
    counts, samples = [], []
    for row in epochs.to_dict("records"):
        begin = int(row["at_ns"])
        inside = (starts >= begin) & (starts < begin + int(row["duration_ns"]))
        own = steps[inside]
        counts.append(int(own["step"].nunique()))
        samples.append(own["samples_count"].sum(min_count=1) if "samples_count" in own else np.nan)
    return epochs.assign(steps_count=counts, samples_count=samples)


def _metrics(ranks: Ranks, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return what the program noted by `traceprof.metric`; of long runs every so many values."""
    zero, numbers = ranks.span.start_ns, _ranks_of(ranks)
    found = [
        pd.DataFrame(
            {
                "metric": [str(name).removeprefix(_METRIC) for name in rows["name"]],
                "life": 0,
                "process": rows["process"].to_numpy(),
                "rank": [numbers.get(int(p), np.nan) for p in rows["process"]],
                "at_ns": rows["start_ns"].to_numpy(np.int64) - zero,
                "value": rows["payload"].to_numpy(),
            }
        )
        for rows in ranks.each(_noted_metrics)
    ]
    table = pd.concat(found, ignore_index=True)
    if table.empty:
        return table
    table = _thinned(table)
    at = table["at_ns"].to_numpy(np.int64)
    table["step"] = _steps_before(ranks, table["process"].to_numpy(np.int64), at)
    table["epoch"] = _epochs_before(epochs, at)
    table["scope"] = np.where(table["rank"].isna(), "run", "rank")
    return table.drop(columns="process")


def _noted_metrics(trace: Trace) -> pd.DataFrame:
    marks = trace.marks
    named = [str(name) for name in marks["name"].cat.categories]
    is_metric = np.array([name.startswith(_METRIC) for name in named] + [False], bool)
    return marks[is_metric[marks["name"].cat.codes.to_numpy()] & (marks["domain"] == OWN_DOMAIN)]


def _thinned(table: pd.DataFrame) -> pd.DataFrame:
    """Return at most about `_MOST_VALUES` values of each metric and rank, the last among them."""
    groups = table.groupby(["metric", "process"])
    place, size = groups.cumcount(), groups["value"].transform("size")
    every = np.maximum(1, -(-size // _MOST_VALUES))
    return table[((size - 1 - place) % every == 0)].reset_index(drop=True)


def _steps_before(ranks: Ranks, processes: npt.NDArray[np.int64], at: Any) -> _Float64Array:
    """Return after how many steps of its process each instant is; NaN where no steps are known."""
    found = np.full(len(at), np.nan)
    steps, zero = steps_of_ranks(ranks).table, ranks.span.start_ns
    updates = _updates(ranks)
    for process, own in steps.groupby("process"):
        rows = processes == process
        taken = np.sort(_taken_ns(own, updates.get(int(str(process))))) - zero
        found[rows] = np.searchsorted(taken, at[rows], side="right")
    return found


def _updates(ranks: Ranks) -> dict[int, npt.NDArray[np.int64]]:
    """Return when each process had updated its parameters, where our recorder saw it."""
    return {process: ends for own in ranks.each(_updates_of) for process, ends in own.items()}


def _updates_of(trace: Trace) -> dict[int, npt.NDArray[np.int64]]:
    ranges = trace.ranges
    kept = ranges[(ranges["name"] == _UPDATE) & (ranges["domain"] == OWN_DOMAIN)]
    return {
        int(str(process)): np.sort(own["end_ns"].to_numpy(np.int64))
        for process, own in kept.groupby("process")
    }


def _taken_ns(steps: pd.DataFrame, updates: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """Return from when on each step counts as taken: its last update, where one is known.

    The next step begins where one ends: what is noted behind the last step of an epoch lies in the
    first one of the next. Without updates a step counts from its start, for what it notes of
    itself it notes before it ends.
    """
    starts = steps["start_ns"].to_numpy(np.int64)
    if updates is None:
        return np.asarray(starts, np.int64)
    place = np.searchsorted(updates, steps["end_ns"].to_numpy(np.int64), side="right") - 1
    last = updates[np.maximum(place, 0)]
    is_own = (place >= 0) & (last >= starts)
    return np.where(is_own, last, starts)


def _epochs_before(epochs: pd.DataFrame, at: npt.NDArray[np.int64]) -> _Float64Array:
    """Return after how many epochs each instant is, with the part of one that is under way."""
    if epochs.empty:
        return np.full(len(at), np.nan)
    order = epochs.sort_values("at_ns")
    starts = order["at_ns"].to_numpy(np.int64)
    lengths = np.maximum(1, order["duration_ns"].to_numpy(np.int64))
    place = np.searchsorted(starts, at, side="right") - 1
    known = np.maximum(place, 0)
    part = np.clip((at - starts[known]) / lengths[known], 0, 1)
    return np.asarray(np.where(place < 0, 0.0, known + part), np.float64)


def _events(ranks: Ranks) -> pd.DataFrame:
    """Return start and end of the recording, evaluations, checkpoints, and what is paid once."""
    numbers = _ranks_of(ranks)
    rows = [
        {"kind": "start", "at_ns": 0, "duration_ns": 0},
        *_between(ranks, numbers),
        *_paid_once(ranks, numbers),
        {"kind": "end", "at_ns": ranks.span.duration_ns, "duration_ns": 0},
    ]
    table = pd.DataFrame(rows).sort_values("at_ns", kind="stable", ignore_index=True)
    if len(table) > _MOST_EVENTS:
        longest = table["duration_ns"].fillna(0).rank(method="first", ascending=False)
        is_edge = table["kind"].isin(["start", "end"])
        table = table[is_edge | (longest <= _MOST_EVENTS)].reset_index(drop=True)
    return table.assign(life=0, event=np.arange(len(table)))


def _between(ranks: Ranks, numbers: Mapping[int, float]) -> Iterator[dict[str, Any]]:
    zero = ranks.span.start_ns
    for part in ranks:
        table = between_steps(part)
        for row in table[table["cause"].isin([EVALUATION, CHECKPOINT])].to_dict("records"):
            yield {
                "kind": str(row["cause"]),
                "at_ns": int(row["start_ns"]) - zero,
                "duration_ns": int(row["end_ns"]) - int(row["start_ns"]),
                "rank": numbers.get(int(row["process"]), np.nan),
            }


def _paid_once(ranks: Ranks, numbers: Mapping[int, float]) -> Iterator[dict[str, Any]]:
    zero = ranks.span.start_ns
    for row in one_off_costs(ranks).to_dict("records"):
        if row["kind"] not in (EVALUATION, CHECKPOINT):
            yield {
                "kind": str(row["kind"]),
                "at_ns": int(row["start_ns"]) - zero,
                "duration_ns": int(row["total_ns"]),
                "rank": numbers.get(int(row["process"]), np.nan),
            }


def _lives(ranks: Ranks) -> pd.DataFrame:
    """Return when each rank was recorded: within its own recording, which is all that is known."""
    zero = ranks.span.start_ns
    rows = []
    for part in ranks:
        for process in part.processes.to_dict("records"):
            window = part.recordings.get(int(process["process"]), part.span)
            if process["rank"] == ABSENT:
                continue
            rows.append(
                {
                    "life": 0,
                    "rank": int(process["rank"]),
                    "node": str(process["host"]) or part.info.host,
                    "at_ns": window.start_ns - zero,
                    "end_ns": window.end_ns - zero,
                    "source": part.info.path,
                }
            )
    return pd.DataFrame(rows)

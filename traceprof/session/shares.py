"""The shares of a verdict: parts of GPU time, causes of idle time, and kernel classes.

Shares do not contain profiler overhead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from traceprof.measures.steps.base import WINDOW
from traceprof.model.activity import PARTS, Activity, Part
from traceprof.model.grouping import groups_of
from traceprof.model.results import Note, Result
from traceprof.model.table import Names, Table
from traceprof.names.kernels import MATRIX_WORK, precision_of

COMMUNICATION: Final = "exposed_communication"
CONSIDERABLE: Final = 0.05
LEAST_SHARE: Final = 0.01
"""The minimum share of time that is listed."""
MIN_REST_RATIO: Final = 0.0005
"""The minimum share of a rest that is listed: smaller shares would be printed as 0.0%."""
BY_HOST: Final = "communication"
"""The cause of idle time that is communication by the host."""


def parts_of(results: Mapping[str, Result]) -> dict[str, float]:
    """Return the share of each known part of the five from `breakdown`; {} without it."""
    total = table_of(results, "breakdown", "total")
    if total.empty or not total["duration_ns"][0]:
        return {}
    row = total.row(0)
    ratios = {part: float(row[f"{part}_ratio"]) for part in PARTS}
    return {part: ratio for part, ratio in ratios.items() if not np.isnan(ratio)}


def shares_of_causes(results: Mapping[str, Result]) -> dict[str, float]:
    """Return the share of each cause of idle time from `idle`, the largest first."""
    total = table_of(results, "idle", "total")
    if total.empty:
        return {}
    shares = np.nan_to_num(np.asarray(total["share_ratio"], np.float64)).tolist()
    found = dict(zip(map(str, total["cause"]), shares, strict=True))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


class WaitsOfRoles(NamedTuple):
    """Waits of ranks for ranks with another role: in words, and as a share of step time."""

    text: str
    ratio: float


def waits_of_roles(results: Mapping[str, Result]) -> WaitsOfRoles | None:
    """Return how long roles wait for each other, by the finding on it; None without one."""
    for row in table_of(results, "findings").rows():
        if row["rule"] == "role_waits" and isinstance(row["title"], Note):
            values = row["title"].values
            text = f"the {values['who']} waits for the {values['whom']}"
            return WaitsOfRoles(text, values["mean"])
    return None


def notes_on_missing_work(results: Mapping[str, Result]) -> tuple[Note, ...]:
    """Return notes on missing GPU activity: what is missing, why, and what to do."""
    findings = results.get("findings")
    if findings is None or "lost" not in findings.tables or findings.tables["lost"].empty:
        return ()
    return tuple(findings.tables["lost"]["message"].tolist())


def table_of(results: Mapping[str, Result], name: str, table: str | None = None) -> Table:
    """Return a table of an analysis; without such a result, an empty table without columns."""
    if name not in results:
        return Table({})
    return results[name].table if table is None else results[name].tables[table]


_CAUSES: Final = {
    BY_HOST: "communication by the host",
    "profiler": "the profiler",
    "data": "data",
    "synchronizing": "synchronization",
    "launch": "kernel launches",
    "host": "CPU work between launches",
    "queued": "queued work",
    "peer": "waiting for other GPUs",
    "role": "waiting for another role",
    "edge": "start and end",
    "unknown": "not recorded",
}
"""The labels of the causes of idle time in a bar."""
_MIN_LISTED_RATIO: Final = 0.01
_MAX_CLASSES: Final = 5


def idle_by_cause(results: Mapping[str, Result]) -> dict[str, float]:
    """Return the share of each cause of idle time by label, the largest first.

    Causes below 1% are combined into one entry at the end.
    """
    shares = shares_of_causes(results)
    found = {
        _CAUSES[cause]: share
        for cause, share in shares.items()
        if share >= _MIN_LISTED_RATIO and cause in _CAUSES
    }
    rest = sum(shares.values()) - sum(found.values())
    return {**found, "other causes": rest} if found and rest >= MIN_REST_RATIO else found


def on_idle(idle: Mapping[str, float], base: str) -> tuple[Note, ...]:
    """Return the note on the causes of idle time, as shares of ``base``, if idle time is large."""
    if sum(idle.values()) < CONSIDERABLE:
        return ()
    return (_listed(f"Idle time by cause, as a share of {base} time: ", idle),)


_MAX_SUBJECTS: Final = 8
"""Number of subjects that the page lists for one reason why they were not checked."""


def some_of(subjects: Sequence[str]) -> str:
    """Return the subjects in one text; the table `checked` lists those that it leaves out."""
    n_left_out = len(subjects) - _MAX_SUBJECTS
    if n_left_out <= 1:
        return ", ".join(subjects)
    return f"{', '.join(subjects[:_MAX_SUBJECTS])}, and {n_left_out} more"


def on_waiting(checked: Table) -> tuple[Note, ...]:
    """Return the note on the waiting of ranks in the table ``checked``, if there is one."""
    lacks = checked["lacks"].tolist() if len(checked) else []
    return tuple(note for note in lacks if note and "waited" in note.values)


def on_compute(results: Mapping[str, Result], parts: Mapping[str, float]) -> tuple[Note, ...]:
    """Return the note on kernel classes as shares of compute, matrix work by precision."""
    table = table_of(results, "kernels")
    if not parts or table.empty:
        return ()
    table = table.take(
        np.array([Activity(activity).part is Part.COMPUTE for activity in table["activity"]])
    )
    whole_ns = float(table["total_ns"].sum())
    if not whole_ns or parts["compute"] < CONSIDERABLE:
        return ()
    names = Names.of(
        [_class_of(*row) for row in zip(table["activity"], table["name"], strict=True)]
    )
    groups = groups_of(names)
    sums = groups.reduced(np.add, table["total_ns"]) / whole_ns
    labels = [names.texts[key[0]] for key in groups.keys]
    ranked = sorted(zip(sums.tolist(), labels, strict=True), key=lambda item: (-item[0], item[1]))
    shown = {name: share for share, name in ranked[:_MAX_CLASSES] if share >= _MIN_LISTED_RATIO}
    if [*shown] == [Activity.OTHER.label]:
        return ()
    if (rest := 1 - sum(shown.values())) >= MIN_REST_RATIO:
        shown["others"] = rest
    return (_listed("Compute by kernel class: ", shown),)


_MAX_UNKNOWN_RATIO: Final = 0.1
LEAST_MFU: Final = 0.001
"""A smaller MFU is printed as 0.0% and says nothing about the use of the GPU."""


def on_peak(results: Mapping[str, Result], base: str) -> tuple[Note, ...]:
    """Return the note on MFU if most FLOPs of a step (of the window without steps) are known."""
    table = table_of(results, "mfu")
    if table.empty:
        return ()
    row = table.row(0)
    unknown = np.nan_to_num(row["unknown_ratio"])
    if not row["mfu_ratio"] >= LEAST_MFU or unknown > _MAX_UNKNOWN_RATIO:
        return ()
    text = (
        "MFU: {more}{share:ratio} of the dense {precision} peak ({flop:flop} "
        + ("in a window of" if base == WINDOW else f"per {base} of")
        + " {step:ns}, {rate:flop/s} per GPU; FLOPs from {source})"
    )
    prefix = "at least " if unknown > _MIN_UNKNOWN_RATIO else ""
    values = {"flop": row["model_flop"], "step": row["step_ns"], "source": row["source"]}
    values |= {"precision": row["precision"].upper(), "rate": row["achieved_flop_per_s"]}
    return (Note.of(text, more=prefix, share=row["mfu_ratio"], **values),)


_MIN_UNKNOWN_RATIO: Final = 0.02


def _class_of(activity: str, name: str) -> str:
    """Return the label of a kernel class, with the precision of matrix work."""
    kind = Activity(activity)
    precision = precision_of(name).upper() if kind in MATRIX_WORK else ""
    return f"{precision} {kind.label}" if precision else kind.label


def with_shares(
    start: str, shares: Mapping[str, float], values: Mapping[str, Any]
) -> Iterator[Note]:
    """Yield a sentence with the shares of at least 1%, the largest first."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    shown = [(name, share) for name, share in ranked if share >= LEAST_SHARE]
    rest = sum(share for name, share in ranked if share < LEAST_SHARE)
    if shown and rest >= MIN_REST_RATIO:
        shown.append(("other", rest))
    if shown:
        words = ", ".join(f"{{part{i}}} {{share{i}:ratio}}" for i in range(len(shown)))
        numbered: dict[str, Any] = {}
        for i, (name, share) in enumerate(shown):
            numbered |= {f"share{i}": float(share), f"part{i}": name}
        yield Note.of(f"{start}: {words}.", **values, **numbered)


def _listed(start: str, shares: Mapping[str, float]) -> Note:
    """Return a note that lists ``shares`` after ``start``."""
    words = ", ".join(f"{{name{i}}} {{share{i}:ratio}}" for i in range(len(shares)))
    values: dict[str, Any] = {}
    for i, (name, share) in enumerate(shares.items()):
        values |= {f"name{i}": name, f"share{i}": float(share)}
    return Note.of(start + words, **values)

"""Why a step took longer than the typical one, or a window than another: a sum that is exact.

The five parts of the devices, the mean over them, and what each is made of. Means are floors of
the cumulated share, so that whatever adds up over all devices adds up in the mean, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.comparison.specs import EXPLAIN, EXPLAIN_SPEC
from traceprof.errors import NotRecordedError, UsageError
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.composition import (
    DeviceSpans,
    HostSpans,
    composition_of_devices,
    composition_of_hosts,
)
from traceprof.measures.device.times import devices_of_processes, used_devices
from traceprof.measures.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.model.activity import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result
from traceprof.model.timing import Steps, TimeWindow
from traceprof.session.answer import Document, document_about
from traceprof.session.run import Run
from traceprof.session.selection import Selection, select

SLOWEST: Final = "slowest"
_REPEATED: Final = "several steps have the number {step}: the first one is meant"
_ONE: Final = re.compile(r"(?P<what>step|pattern):\s*(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class WindowSide:
    """One of the two: what it is called, the window that holds it, and whose time is when.

    ``of_devices`` and ``of_hosts`` are the spans of each, ``step`` its number (None: it is a
    window, the same for all) and ``notes`` what must be known of it.
    """

    name: str
    selection: Selection
    of_devices: DeviceSpans
    of_hosts: HostSpans
    step: int | None = None
    notes: tuple[Note, ...] = ()


def side_of(ranks: Ranks, text: str) -> WindowSide:
    """Return what ``text`` means: a step, a turn of the pattern, the slowest step, or a window.

    Raises:
        UsageError: it is none, or not of this run.
    """
    text = text.strip()
    if text == SLOWEST:
        text = _slowest(ranks)
    match = _ONE.fullmatch(text)
    selection = select(ranks, text)
    if match is None:
        return _of_window(ranks, selection)
    steps = pattern_of_ranks(ranks) if match["what"] == "pattern" else steps_of_ranks(ranks)
    return _of_step(ranks, steps, int(match["number"]), selection)


def typical_side(ranks: Ranks, side: WindowSide) -> WindowSide:
    """Return the steady step whose length is the median, without the one that is explained.

    Of an even number of steps the shorter one of the middle. It is a real step: one can look at it.

    Raises:
        UsageError: a window has no typical one, or there is no other step.
    """
    if side.step is None:
        raise UsageError(
            f"{side.name} is no single step: say what to hold it against, "
            "as in --against step:12 or --against 1s..2s"
        )
    is_pattern = side.selection.label.startswith("pattern")
    steps = pattern_of_ranks(ranks) if is_pattern else steps_of_ranks(ranks)
    lengths, kind = _candidates(steps, side)
    if lengths.empty:
        raise UsageError(
            f"{side.name} has no other to be held against: choose a window, as in --against 1s..2s"
        )
    order = lengths.sort_values(kind="stable")
    number = int(order.index[(len(order) - 1) // 2])
    what = "pattern" if is_pattern else "step"
    chosen = _of_step(ranks, steps, number, select(ranks, f"{what}:{number}"))
    text = f"{{name}} is the one of median length among {{n:count}} {kind}"
    note = Note.of(text, name=chosen.name, n=len(lengths))
    return replace(chosen, notes=(*chosen.notes, note))


def _candidates(steps: Steps, side: WindowSide) -> tuple[pd.Series, str]:
    """Return the lengths of the steps that may be typical, by number, and what they are called."""
    table = steps.table.assign(length=steps.durations_ns, is_steady=~steps.warmup())
    own = table[table["step"] == side.step]
    table = table[(table["step"] != side.step) & table["process"].isin(own["process"])]
    table = table[table["on_device"] == bool(own["on_device"].iloc[0])]
    steady = table[table["is_steady"]]
    kind = "other turns of the pattern" if steps.is_pattern else "other steady steps"
    if steady.empty:
        steady, kind = table, "other steps, all of them warm-up"
    once = steady.drop_duplicates(["process", "step"])
    by_step = once.groupby("step")["length"]
    complete = by_step.size() == own["process"].nunique()
    lengths = by_step.mean()
    return (lengths[complete] if complete.any() else lengths), kind


def _slowest(ranks: Ranks) -> str:
    """Return the steady step that takes the longest, of turns of a pattern where there are none."""
    steps = steps_of_ranks(ranks)
    steps = steps if len(steps) else pattern_of_ranks(ranks)
    if not len(steps):
        raise UsageError("no steps are known in this trace: say which window, as in 1s..2s")
    kept = ~steps.warmup() if not steps.warmup().all() else np.ones(len(steps), np.bool_)
    table = steps.table.assign(length=steps.durations_ns)[kept]
    lengths = table.groupby("step")["length"].mean()
    number = int(lengths.index.to_numpy(np.int64)[lengths.argmax()])
    return f"{'pattern' if steps.is_pattern else 'step'}:{number}"


def _of_step(ranks: Ranks, steps: Steps, number: int, selection: Selection) -> WindowSide:
    rows = steps.table[steps.table["step"] == number]
    notes: tuple[Note, ...] = ()
    if rows["process"].duplicated().any():
        notes = (
            Note.of("several steps have the number {step}: the first one is meant", step=number),
        )
    rows = rows.drop_duplicates("process").set_index("process")
    windows = {
        int(str(process)): TimeWindow(int(row["device_start_ns"]), int(row["device_end_ns"]))
        for process, row in rows.iterrows()
    }
    if notes:
        starts, ends = zip(*((w.start_ns, w.end_ns) for w in windows.values()), strict=True)
        hull = TimeWindow(min(starts), max(ends))
        selection = Selection(hull, selection.label)
    spans: dict[tuple[int, int], TimeWindow] = {}
    for place, trace in enumerate(ranks.whole.parts):
        for process, devices in devices_of_processes(trace).items():
            for device in devices if process in windows else ():
                spans.setdefault((place, device), windows[process])
    name = f"turn {number} of the pattern" if steps.is_pattern else f"step {number}"
    hosts = {} if steps.is_inferred or steps.is_pattern else _hosts_of(rows)
    return WindowSide(name, selection, spans, hosts, number, notes)


def _hosts_of(rows: pd.DataFrame) -> HostSpans:
    return {
        int(str(process)): (
            TimeWindow(int(row["start_ns"]), int(row["end_ns"])),
            max(0, int(row["next_ns"] - row["end_ns"])),
        )
        for process, row in rows.iterrows()
    }


def _of_window(ranks: Ranks, selection: Selection) -> WindowSide:
    window = selection.window
    spans = {
        (place, device): window
        for place, trace in enumerate(ranks.whole.parts)
        for device in used_devices(trace)
    }
    processes = {
        int(process)
        for trace in ranks.whole
        for process in trace.ranges["process"].unique().tolist()
    }
    hosts = dict.fromkeys(processes, (window, 0))
    return WindowSide(selection.label, selection, spans, hosts)


_Int64Array = npt.NDArray[np.int64]
_KEYS: Final = ["part", "kind", "name"]


def explain(run: Run, text: str, against: str | None = None) -> Document:
    """Return what makes the window ``text`` longer than ``against``, or than the typical step.

    Raises:
        UsageError: a window is none of this run, or there is nothing to hold it against.
        NotRecordedError: no device was recorded in both, or neither devices nor phases.
    """
    ranks = run.within("all").of_ranks().whole
    own, result = explain_ranks(ranks, text, against)
    return document_about(ranks, own.selection, {EXPLAIN: result})


def explain_ranks(ranks: Ranks, text: str, against: str | None = None) -> tuple[WindowSide, Result]:
    """Return what ``text`` means in the ranks of a run, and what explains it."""
    ranks = ranks.whole
    own = side_of(ranks, text)
    other = typical_side(ranks, own) if against is None else side_of(ranks, against)
    own, other = _of_both(own, other)
    if not any(map(used_devices, ranks.parts)):
        return own, _of_hosts(ranks, own, other)
    if not own.of_devices:
        raise NotRecordedError(f"no device worked in both {own.name} and {other.name}")
    return own, _result(ranks, own, other)


def _of_both(own: WindowSide, other: WindowSide) -> tuple[WindowSide, WindowSide]:
    """Return the two with the devices and the processes that both have."""
    devices = [one for one in own.of_devices if one in other.of_devices]
    hosts = [one for one in own.of_hosts if one in other.of_hosts]
    first, second = (
        replace(
            side,
            of_devices={one: side.of_devices[one] for one in devices},
            of_hosts={one: side.of_hosts[one] for one in hosts},
        )
        for side in (own, other)
    )
    return first, second


def _result(ranks: Ranks, own: WindowSide, other: WindowSide) -> Result:
    why_not = find_blame(ranks).why_not
    causes = _causes(ranks, own.of_devices, other.of_devices, knows_waits=not why_not)
    measures = ["difference_ns", "own_ns", "against_ns"]
    parts = causes.groupby("part")[measures].sum().reindex(list(PARTS), fill_value=0)
    parts = parts.rename_axis("part").reset_index()
    length = {name: int(parts[name].sum()) for name in measures}
    parts["share_ratio"] = parts["difference_ns"] / (length["difference_ns"] or np.nan)
    tables = {
        "causes": causes,
        "parts": parts,
        "phases": _phases(ranks, own.of_hosts, other.of_hosts),
    }
    return Result(
        EXPLAIN,
        EXPLAIN_SPEC,
        {name: EXPLAIN_SPEC.table(name).frame(table) for name, table in tables.items()},
        {
            "own": own.name,
            "against": other.name,
            "own_ns": length["own_ns"],
            "against_ns": length["against_ns"],
            "difference_ns": length["difference_ns"],
            "devices_count": len(own.of_devices),
        },
        notes=(*_unlike(own, other), *other.notes, *own.notes, *_no_waits(why_not)),
    )


def _of_hosts(ranks: Ranks, own: WindowSide, other: WindowSide) -> Result:
    """Return what the hosts were in, where no device worked anywhere."""
    phases = _phases(ranks, own.of_hosts, other.of_hosts)
    if phases.empty:
        ranks.require("kernels", "copies")
        raise NotRecordedError("no device worked, and no ranges name the phases of a step")
    length = {name: int(phases[name].sum()) for name in ("own_ns", "against_ns", "difference_ns")}
    tables = {
        "causes": EXPLAIN_SPEC.table("causes").frame(),
        "parts": EXPLAIN_SPEC.table("parts").frame(),
    }
    return Result(
        EXPLAIN,
        EXPLAIN_SPEC,
        {**tables, "phases": EXPLAIN_SPEC.table("phases").frame(phases)},
        {"own": own.name, "against": other.name, **length, "devices_count": 0},
        notes=(*_unlike(own, other), *other.notes, *own.notes, Note(_NO_DEVICE)),
    )


_NO_DEVICE: Final = "no work of devices was recorded: these are the phases of the host"


def _causes(
    ranks: Ranks, own: DeviceSpans, other: DeviceSpans, *, knows_waits: bool
) -> pd.DataFrame:
    made, usual = (
        composition_of_devices(ranks, spans, knows_waits=knows_waits) for spans in (own, other)
    )
    both = (
        _together(made)
        .add_suffix("_own")
        .join(_together(usual).add_suffix("_against"), how="outer")
    )
    both = both.reset_index()
    both = both.fillna({f"{name}_{side}": 0 for name in ("ns", "count") for side in _SIDES})
    both = both[(both["ns_own"] != 0) | (both["ns_against"] != 0)]
    totals = {side: both[f"ns_{side}"].to_numpy(np.int64) for side in _SIDES}
    counts = {side: both[f"count_{side}"].to_numpy(np.int64) for side in _SIDES}
    gap = totals["own"] - totals["against"]
    more = _of_number(totals, counts)
    order = np.lexsort((-totals["own"], -np.abs(gap)))
    n = len(own)
    found: dict[str, Any] = {name: both[name].to_numpy()[order] for name in _KEYS}
    for side in _SIDES:
        found[f"{side}_ns"] = _means(totals[side][order], n)
        found[f"{side}_count"] = counts[side][order]
        found[f"{side}_bytes"] = both[f"n_bytes_{side}"].to_numpy(np.float64)[order]
    found["difference_ns"] = found["own_ns"] - found["against_ns"]
    if n > 1:
        found["device"] = _mostly_on(made, usual, gap[order], pd.DataFrame(found)[_KEYS])
    is_counted = (counts["own"] + counts["against"] > 0)[order]
    shared = np.rint(more[order] / n)
    found["more_ns"] = np.where(is_counted, shared, np.nan)
    found["longer_ns"] = np.where(is_counted, found["difference_ns"] - shared, np.nan)
    return pd.DataFrame(found)


def _together(made: pd.DataFrame) -> pd.DataFrame:
    """Return what all devices did, by what it was."""
    groups = made.groupby(_KEYS)
    # Sizes of which none is known add up to one that is not known.
    sizes = groups["n_bytes"].sum(min_count=1)
    return groups[["ns", "count"]].sum().assign(n_bytes=sizes)


def _mostly_on(
    own: pd.DataFrame, other: pd.DataFrame, gap: _Int64Array, rows: pd.DataFrame
) -> npt.NDArray[np.float64]:
    """Return the device that has more than half of the difference of each row; NaN: none has."""
    both = pd.concat([own, other.assign(ns=-other["ns"])])
    each = both.groupby([*_KEYS, "device"], as_index=False)["ns"].sum()
    each = each.merge(rows.assign(gap=gap, row=np.arange(len(rows))), on=_KEYS)
    most = each[each["ns"] * np.sign(each["gap"]) * 2 > each["gap"].abs()]
    most = most.assign(size=most["ns"].abs()).sort_values("size", ascending=False, kind="stable")
    found = np.full(len(rows), np.nan)
    first = most.drop_duplicates("row")
    found[first["row"].to_numpy(np.int64)] = first["device"].to_numpy(np.float64)
    return found


_SIDES: Final = ("own", "against")


def _of_number(totals: dict[str, _Int64Array], counts: dict[str, _Int64Array]) -> npt.NDArray[Any]:
    """Return what of each difference there is because there are more of them, or fewer.

    At the mean length of those in the other window; where there are none, of one's own.
    """
    usual = totals["against"] / np.maximum(counts["against"], 1)
    own = totals["own"] / np.maximum(counts["own"], 1)
    each = np.where(counts["against"] > 0, usual, own)
    return np.asarray((counts["own"] - counts["against"]) * each)


def _means(totals: _Int64Array, n: int) -> _Int64Array:
    """Return the ``n``-th part of each, by floor of the cumulated share: they add up as all do."""
    reached = np.append(0, np.cumsum(totals)) // n
    return np.asarray(np.diff(reached), np.int64)


def _phases(ranks: Ranks, own: HostSpans, other: HostSpans) -> pd.DataFrame:
    made, usual = (
        composition_of_hosts(ranks, spans).set_index("phase")["ns"] for spans in (own, other)
    )
    names = [*made.index, *(name for name in usual.index if name not in made.index)]
    totals = [side.reindex(names, fill_value=0).to_numpy(np.int64) for side in (made, usual)]
    order = np.lexsort((-totals[0], -np.abs(totals[0] - totals[1])))
    means = [_means(values[order], max(1, len(own))) for values in totals]
    return pd.DataFrame(
        {
            "phase": np.array(names, object)[order],
            "difference_ns": means[0] - means[1],
            "own_ns": means[0],
            "against_ns": means[1],
        }
    )


def _unlike(own: WindowSide, other: WindowSide) -> list[Note]:
    if (own.step is None) == (other.step is None):
        return []
    return [Note("a step is held against a window: their lengths differ whatever the step does")]


def _no_waits(why_not: str) -> list[Note]:
    return [Note.of("whom ranks wait for is not told: {why}", why=why_not)] if why_not else []

"""What a page says of steps: how long they are, of how many kinds, how steady, how many a second.

Shares of a step add up over steps, so that they are of the mean one. Where that is no step that
there is (a few slow ones, steps of two kinds) it is said what the sentence is about: a step without
the slow ones, or the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from traceprof.measures.steps.steadiness import (
    FEWEST_FOR_PERCENTILES,
    are_long,
    is_mean_told,
    turn_of,
    typical_length,
)
from traceprof.model.grouping import rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note, Result
from traceprof.model.table import Bools, Table, is_known
from traceprof.session.shares import (
    CONSIDERABLE,
    UNDISTURBED,
    are_typical,
    is_undisturbed,
    on_recording,
)

STEADY: Final = 0.1
"""What steps may spread by, of their median, to be called so."""
_FILLED: Final = 0.95
_MOSTLY: Final = 0.5
_ALIKE: Final = 0.0005
_VISIBLE: Final = 0.005
_MEDIAN: Final = " (median)"


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """What shares are of: in ``words`` with their ``values``.

    ``rows`` are the steps whose parts they are; None: those of the window.
    """

    words: str
    values: Mapping[str, Any]
    rows: Bools | None = None

    @property
    def name(self) -> str:
        """What it is called within a sentence, without how long it is."""
        words = self.words.partition(" of {")[0].partition(",")[0].partition(" without")[0]
        return f"{words[:1].lower()}{words[1:]}"


def base_of(
    steps: Result | None, window_ns: int, left_out: Iterable[str], *, has_lost: bool
) -> Base:
    """Return what the shares are of: of a step where the window is made of them, else of it.

    ``left_out`` are the kinds of what is done now and then; ``has_lost``: some steps lack work.
    """
    if steps is None or steps.table.empty:
        return Base("The window", {})
    kinds = " and ".join(sorted(left_out))
    without = " without {left_out}" if kinds else ""
    values: dict[str, Any] = {"left_out": kinds} if kinds else {}
    scalars, table = steps.scalars, steps.table
    rows = are_typical(table) if kinds or has_lost else None
    if is_undisturbed(steps):
        return Base(
            f"A step of {{step:ns}}{without}", {"step": scalars[UNDISTURBED], **values}, rows
        )
    steady, least = table.take(~table["is_warmup"]), _FILLED if scalars["is_pattern"] else _MOSTLY
    if "median_ns" not in scalars or not fill(steady, window_ns, least):
        return Base(f"The window{without}", values, rows)
    if scalars["is_pattern"]:
        is_mean = is_mean_told(table["duration_ns"].astype(np.float64))
        words = (
            f"{'The mean' if is_mean else 'An'} iteration of the repeating pattern, {{step:ns}},"
        )
        step = scalars["mean_ns" if is_mean else "median_ns"]
        return Base(words + without, {"step": step, **values}, rows)
    kind = "step" if scalars["confidence_ratio"] == 1 else "step (inferred)"
    has_slow = bool((are_typical(table) & (table["excess_ns"] > 0)).any())
    usual = are_typical(table) & ~(table["excess_ns"] > 0)
    lengths = table["duration_ns"][usual].astype(np.float64)
    every = table["duration_ns"][are_typical(table)].astype(np.float64)
    # A few very long ones would hide in a mean what the others are like.
    has_tail = has_slow and is_mean_told(every)
    rows = usual if has_tail or not fill(steady, window_ns) else rows
    if not has_tail and (has_slow or is_mean_told(lengths)):
        is_told = has_slow or _kinds(steps) is not None
        values |= {"step": float(every.mean()), "median": float(np.median(every))}
        median = "" if is_told else " (median {median:ns})"
        return Base(f"The mean {kind} of {{step:ns}}{median}{without}", values, rows)
    step_ns = values["step"] = typical_length(lengths)
    if has_tail:
        return Base(f"A typical {kind} of {{step:ns}}{without}", values, rows)
    apart_ns = abs(1e9 / scalars.get("steps_per_s", np.nan) - step_ns)
    is_apart = apart_ns > _VISIBLE * step_ns and len(lengths) > 1
    median = _MEDIAN if is_apart and not kinds else ""
    return Base(f"A {kind} of {{step:ns}}{median}{without}", values, rows)


def fill(steps: Table, window_ns: int, least: float = _FILLED) -> bool:
    """Return whether ``steps``, of all ranks together, fill the window, or ``least`` of it."""
    starts = steps["at_ns"]
    covered = Intervals.union_of(starts, starts + steps["duration_ns"])
    return bool(covered.total_ns) and covered.total_ns >= least * window_ns


def on_pace(
    results: Mapping[str, Result], left_out: Iterable[str], window_ns: int, base: Base
) -> Iterable[Note]:
    """Yield of how many kinds the steps are, how steady, and how many there are a second.

    That is of the mean step, as is said where ``base`` is another. Iterations of a pattern that
    takes less than half of the window are not its pace.
    """
    steps = results.get("steps")
    if steps is None or steps.scalars.get("steady_count", 0) < 2:
        return
    if steps.scalars["is_pattern"] and not fill(steps.table, window_ns, _MOSTLY):
        return
    if is_undisturbed(steps):
        yield _on_undisturbed(steps, results)
        return
    yield from _on_kinds(steps)
    scalars, table = steps.scalars, steps.table.take(are_typical(steps.table))
    processes, n_steps = len(np.unique(table["process"])), len(np.unique(table["step"]))
    what = "iteration" if scalars["is_pattern"] else "step"
    on = " on {processes:count} ranks" if processes > 1 else ""
    word = "steady" if scalars["spread_ratio"] < STEADY else "uneven"
    number = f"One {what}{on}" if n_steps == 1 else f"{{n:count}} {what}s{on}, {word}"
    is_few = n_steps < FEWEST_FOR_PERCENTILES
    low, high = ("min", "max") if is_few else ("p10", "p90")
    text = f"{number}: {'' if is_few else '80 % of them take '}{{{low}:ns}}"
    if scalars[f"{high}_ns"] - scalars[f"{low}_ns"] >= _ALIKE * scalars[f"{high}_ns"]:
        text += f" to {{{high}:ns}}"  # else both would be printed alike
    each_s = scalars.get("steps_per_s") if not scalars["is_pattern"] else None
    rates = ["{steps_rate:count} steps/s"] if each_s else []
    rate = scalars.get("mean_samples_per_s")
    rates += ["{rate:count} samples/s"] if rate else []
    kinds = " and ".join(sorted(left_out))
    told = " on average" if _MEDIAN in base.words or "A typical" in base.words else ""
    told += _not_counted(table, each_s) if each_s else ""
    told = ", {left_out} included" if kinds else told
    text += f"; {', '.join(rates)}{told}" if rates else ""
    slow = table["excess_ns"] > 0
    slow_ratio = 0.0
    if slow.any():
        whole_ns = float(table["duration_ns"].sum())
        slow_ratio = float(table["excess_ns"][slow].sum()) / whole_ns if whole_ns else 0.0
        text += "; {slow:count} of them slow"
        text += ", by {slow_ratio:ratio} of the time" if slow_ratio > CONSIDERABLE else ""
    yield Note.of(
        f"{text}.",
        n=n_steps,
        processes=processes,
        **{end: scalars[f"{end}_ns"] for end in ("min", "max", "p10", "p90")},
        slow=len(np.unique(table["step"][slow])),
        slow_ratio=slow_ratio,
        steps_rate=each_s,
        rate=rate,
        left_out=kinds,
    )


def _not_counted(table: Table, each_s: float) -> str:
    """Return which step of ``table`` a rate leaves out, in words; "" where it leaves out none.

    The first, of which it is not certain when devices began with it, or the last: it has no next.
    """
    lengths = table["duration_ns"].astype(np.float64)
    rows = rows_by_value(table["process"]).values()
    for name, place in (("first", 0), ("last", -1)):
        kept = np.delete(lengths, [own[place] for own in rows if len(own) > 1])
        if len(kept) < len(lengths) and np.isclose(kept.mean() * each_s, 1e9, rtol=1e-6):
            is_all = np.isclose(lengths.mean() * each_s, 1e9, rtol=1e-6)
            return "" if is_all else f", the {name} step not counted"
    return ""


def _on_kinds(steps: Result) -> Iterable[Note]:
    """Yield that steps are of two kinds, where they are, and what the longer ones do more."""
    if (found := _kinds(steps)) is None:
        return
    first, is_long = found
    lengths = first["duration_ns"].astype(np.float64)
    what = "iteration" if steps.scalars["is_pattern"] else "step"
    every = turn_of(is_long)
    values: dict[str, Any] = {
        "long": float(np.median(lengths[is_long])),
        "short": float(np.median(lengths[~is_long])),
        "n_long": int(is_long.sum()),
        "n_short": int((~is_long).sum()),
        "every": every,
    }
    if every == 1:
        text = f"{what.capitalize()}s are of two kinds: {{n_long:count}} of {{long:ns}}, "
        text += "{n_short:count} of {short:ns} (medians)"
    else:
        which = f"Every other {what}" if every == 2 else f"One {what} of every {{every:count}}"
        text = f"{which} takes {{long:ns}}, the others {{short:ns}} (medians)"
    grown = {
        name: float(np.median(first[name][is_long]) - np.median(first[name][~is_long]))
        for name in first
        if name in _GROWS and is_known(first[name]).all()
    }
    part = max(grown, key=lambda name: grown[name], default="")
    if part and grown[part] > (values["long"] - values["short"]) / 2:
        text += ": {more:ns} more {part}"
        values |= {"more": grown[part], "part": _GROWS[part]}
    yield Note.of(f"{text}.", **values)


def _kinds(steps: Result) -> tuple[Table, Bools] | None:
    """Return the typical steps of the first process, and which are of the longer of two kinds."""
    table = steps.table.take(are_typical(steps.table))
    first = table.take(table["process"] == table["process"][:1])
    is_long = are_long(first["duration_ns"].astype(np.float64)) if len(first) else None
    return None if is_long is None else (first, is_long)


_GROWS: Final = {
    "compute_ns": "compute",
    "exposed_communication_ns": "exposed communication",
    "exposed_transfer_ns": "exposed transfers",
    "device_memory_ns": "copies inside the device",
    "idle_ns": "idle time",
}


def _on_undisturbed(steps: Result, results: Mapping[str, Result]) -> Note:
    more, values = on_recording(steps, results)
    scalars = steps.scalars
    is_many = scalars["undisturbed_count"] >= FEWEST_FOR_PERCENTILES
    ends = ("p10", "p90") if is_many else ("min", "max")
    values |= {
        name: scalars[f"undisturbed_{end}_ns"] for name, end in zip(("a", "b"), ends, strict=True)
    }
    values["n"] = scalars["undisturbed_count"]
    share = "80 % of " if is_many else ""
    text = f"Without the profiler {share}{{n:count}} steps take {{a:ns}} to {{b:ns}}"
    rate = steps.scalars.get("undisturbed_samples_per_s")
    values |= {"rate": rate, "steps_rate": 1e9 / scalars[UNDISTURBED]}
    text += ": {steps_rate:count} steps/s"
    text += "" if rate is None else ", {rate:count} samples/s"
    return Note.of(f"{text}{more}.", **values)

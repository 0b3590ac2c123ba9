"""What must hold of every trace, in whatever window it is seen: each yields what does not."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pandas as pd

from tests.truth.door_asking import Asker
from tests.truth.door_exhibits import same_column
from tests.truth.door_figures import FINDERS, TIME, is_usual, kind_of
from tests.truth.door_reading import Reading, Shown, figures_in
from traceprof.errors import TraceprofError
from traceprof.model.activity import PARTS
from traceprof.model.results import Result, Unit

__all__ = ["INVARIANTS"]

MAY_BE_NEGATIVE: Final = frozenset(
    {
        *("difference_ns", "lag_ns", "excess_ns", "grown_part_ns", "grown_phase_ns", "trend_ns"),
        *("offset_ns", "late_ns", "median_late_ns"),
    }
)
"""Differences, and what is late by them: less than 0 has a meaning."""
ASKED: Final = ("breakdown", "steps", "idle", "phases", "step_phases", "findings")
SHOWN: Final = ("breakdown", "steps", "idle", "kernels", "path", "ranks", "copies")
"""Tables that have to be the same with `-w steady` where that is the default."""
NO_DIFFERENCE: Final = "no difference shown"
NEVER_SEEN: Final = re.compile(r"change of 0\.0 ?% would")
WINDOW_KINDS: Final = ("traceprof.window", "traceprof.cycle")
"""Ranges of the embedded recorder in which it saw devices."""
BETWEEN: Final = "between_ns"
"""What of a period is in no phase since it lies between two steps, where steps name it."""
COVERED: Final = ("covered_ns", "device_ns")
"""The column of steps that their five parts add up to: the first that there is."""
_NS: Final = 0.5
"""Means over devices are no whole numbers; but they are right to the nanosecond."""


def windows(asker: Asker) -> Iterator[str | None]:
    """Yield the forms of windows that a trace is seen through."""
    yield None
    yield "all"
    yield "0%..50%"
    yield "50%..100%"
    yield "active"
    if asker.window.startswith("steady"):
        yield "steady"
    if (step := asker.chosen_step) is not None:
        yield f"step:{step - 1}..{step}"


def results(asker: Asker) -> Iterator[tuple[str, str, Result]]:
    """Yield what is asked of each window, with what that is called."""
    for window in windows(asker):
        for name in ASKED:
            with suppress(TraceprofError):
                yield f"-w {window}", name, getattr(asker.run.within(window), name)()


def no_negative_duration(asker: Asker) -> Iterator[str]:
    """No time is less than 0: in no table of any window, nor in the report or the timeline."""
    for window, name, result in results(asker):
        for table in result.spec.tables:
            frame = result.to_frame(table.name)
            columns = {own.name for own in table if own.unit is Unit.NS} - MAY_BE_NEGATIVE
            for column in sorted(columns & {*frame}):
                values = pd.to_numeric(frame[column], errors="coerce")
                if (values < 0).any():
                    yield f"{window}: {name}.{table.name}.{column} is {values.min():g} ns"
    yield from _negative_in_report(asker)
    steps = asker.timeline.steps if asker.timeline else {}
    yield from (f"timeline: step {n} takes {ns:g} ns" for n, ns in steps.items() if ns < 0)


def _negative_in_report(asker: Asker) -> Iterator[str]:
    allowed = {*map(same_column, MAY_BE_NEGATIVE)}
    for section, shown in asker.sections("report", "T").items():
        rows = (row for name, own in shown.tables.items() if name != "charts" for row in own)
        for heading, text in (cell for row in rows for cell in row.items()):
            if same_column(heading) not in allowed and re.fullmatch(rf"[-−]{TIME}", text):
                yield f"report: {section}: {heading} is {text}"


def parts_add_up(asker: Asker) -> Iterator[str]:
    """The five parts are the covered time, of devices and of steps; halves are the whole."""
    totals: dict[str, pd.Series] = {}
    for window, name, result in results(asker):
        if name == "breakdown" and len(devices := result.to_frame("devices")):
            parts = devices[[f"{part}_ns" for part in PARTS]].sum(axis=1)
            if not (parts == devices["duration_ns"]).all():
                whole = devices["duration_ns"].tolist()
                yield f"{window}: parts of the devices are {parts.tolist()} of {whole} ns"
            totals[window] = devices[[*(f"{part}_ns" for part in PARTS), "duration_ns"]].sum()
        if name == "steps" and "compute_ns" in (steps := result.to_frame()):
            yield from _parts_of_steps(window, steps)
    if {"-w 0%..50%", "-w 50%..100%", "-w all"} <= {*totals}:
        both = totals["-w 0%..50%"] + totals["-w 50%..100%"]
        for column, ns in totals["-w all"].items():
            if both[column] != ns:
                yield f"{column} of both halves is {both[column]} of {ns} ns"


def _parts_of_steps(window: str, steps: pd.DataFrame) -> Iterator[str]:
    whole = steps[next(column for column in COVERED if column in steps)]
    parts = steps[[f"{part}_ns" for part in PARTS]].sum(axis=1, skipna=False)
    wrong = parts.notna() & ~((parts - whole).abs() < _NS)
    for place in np.flatnonzero(wrong)[:1]:
        yield (
            f"{window}: parts of step {steps['step'].iloc[place]} are {parts.iloc[place]:.0f} of "
            f"{whole.iloc[place]:.0f} ns ({wrong.sum()} of {len(steps)} steps)"
        )


def phases_add_up(asker: Asker) -> Iterator[str]:
    """Phases of the host, and the time between steps, are the period; both tables have the same."""
    seen: dict[str, dict[str, Result]] = {}
    for window, name, result in results(asker):
        seen.setdefault(window, {})[name] = result
    for window, found in seen.items():
        if "steps" not in found or "step_phases" not in found:
            continue
        steps = found["steps"].to_frame().set_index(["process", "step"])
        phases = found["step_phases"].to_frame()
        if phases.empty or not steps.index.is_unique:
            continue
        each = phases.groupby(["process", "step", "phase"], observed=True)["host_ns"].max()
        sums = each.groupby(["process", "step"]).sum()
        both = steps.join(sums.rename("phases_ns"), how="inner")
        if BETWEEN in both:
            both["phases_ns"] += both[BETWEEN].fillna(0)
        wrong = both[(both["phases_ns"] - both["period_ns"]).abs() >= _NS]
        for (_, step), row in wrong.head(1).iterrows():
            yield (
                f"{window}: phases of step {step} are {row['phases_ns']:.0f} of "
                f"{row['period_ns']:.0f} ns ({len(wrong)} of {len(both)} steps)"
            )
        yield from _same_phases(window, steps, each)


def _same_phases(window: str, steps: pd.DataFrame, each: pd.Series) -> Iterator[str]:
    for phase, own in each.groupby("phase", observed=True):
        column = f"{phase}_ns"
        if column in steps:
            there = own.droplevel("phase").reindex(steps.index)
            # What the profiler took between two steps is in the table of steps alone.
            differ = there - steps[column]
            wrong = (differ if phase == "profiler" else differ.abs()) >= _NS
            for (_, step), value in steps[column][wrong].head(1).items():
                yield (
                    f"{window}: {phase} of step {step} is {value:.0f} ns in steps and "
                    f"{there[wrong].iloc[0]:.0f} ns in steps by phase ({wrong.sum()} steps)"
                )


def steady_is_the_default(asker: Asker) -> Iterator[str]:
    """What `-w steady` shows is what the default shows, where that is the steady steps."""
    if not asker.window.startswith("steady"):
        return
    for words in (("T",), ("findings", "T"), *(("show", noun, "T") for noun in SHOWN)):
        first, second = (asker.command(*words, *more, "--json") for more in ((), ("-w", "steady")))
        if (first.code, second.code) != (0, 0):
            if first.code != second.code:
                yield f"{' '.join(words)} ends with {first.code}, with -w steady {second.code}"
            continue
        one, other = (json.loads(said.text)["results"] for said in (first, second))
        unlike = [name for name in one if one[name] != other.get(name)]
        if unlike:
            yield f"{' '.join(words)} -w steady has other {', '.join(unlike)}"


def _figure(asker: Asker, figure: str) -> Shown | None:
    found: Mapping[str, list[Reading]] = figures_in(asker.text("T"), FINDERS["page"], kind_of)
    return found[figure][0][0] if figure in found else None


def the_mean_lies_between(asker: Asker) -> Iterator[str]:
    """A mean step is neither longer than the longest nor shorter than the shortest in it."""
    for window, name, result in results(asker):
        scalars = result.scalars
        if name == "steps" and "mean_ns" in scalars:
            low, mean, high = (float(scalars[f"{one}_ns"]) for one in ("min", "mean", "max"))
            if not low - _NS <= mean <= high + _NS:
                yield f"{window}: mean of {mean:g} ns, steps from {low:g} to {high:g} ns"
    low_, step, high_ = (_figure(asker, name) for name in _RANGE)
    is_cut = "80%" in asker.text("T").text  # the mean may lie outside
    if step is None or low_ is None or high_ is None or is_cut:
        return
    if not low_.value - low_.digit <= step.value <= high_.value + high_.digit:
        yield f"the page has a step of {step.text}, and steps of {low_.text} to {high_.text}"


_RANGE: Final = ("shortest step", "step time", "longest step")
_OF_A_STEP: Final = re.compile(
    r"^.*\b(?:An?|The mean|A typical|The) (?:step|iteration|window)\b.*? is (\d[\d.]* ?% .*)$", re.M
)
_LISTED: Final = re.compile(r"^\s*(?:compute, of the time|Compute by|Compute  ).*$", re.M)
_RESTS: Final = re.compile(r"\b(?:others?|rest|remaining)\b")


def shares_add_up(asker: Asker) -> Iterator[str]:
    """Shares of a step on one line add up to 100%, or the line names the rest."""
    text = asker.text("T").text
    sentences = [found[1].partition(". ")[0] for found in _OF_A_STEP.finditer(text)]
    for line in (*sentences, *(found[0].strip() for found in _LISTED.finditer(text))):
        shares = [float(share) for share in re.findall(r"(\d[\d.]*) ?%", line)]
        if not _RESTS.search(line) and abs(sum(shares) - 100) > 0.05 * len(shares) + 1e-6:
            yield f"{sum(shares):.1f} % in: {line}"
    shown = figures_in(asker.text("T"), FINDERS["page"], kind_of)
    causes = [own[0][0].value for name, own in shown.items() if name.startswith("idle: ")]
    idle = shown["share: idle"][0][0] if "share: idle" in shown else None
    allowed = 0.0005 * (len(causes) + 1) + 1e-9
    if causes and idle is not None and abs(sum(causes) - idle.value) > allowed:
        yield f"causes of idle time are {sum(causes):.1%} of {idle.text}, and no rest is named"


def rates_fit(asker: Asker) -> Iterator[str]:
    """A batch is samples/s by steps/s, and steps/s are one by the step time, as printed."""
    step, steps, samples = (_figure(asker, name) for name in ("step time", "steps/s", "samples/s"))
    if step is not None and steps is not None:
        product = steps.value * step.value / 1e9
        allowed = steps.digit / steps.value / 2 + step.digit / step.value / 2
        if abs(product - 1) > allowed * 1.01:
            yield f"{steps.text} steps/s of {step.text} each fill {100 * product:.2f} % of the time"
    batch = _batch(asker)
    if steps is not None and samples is not None and batch:
        ratio = samples.value / steps.value
        allowed = ratio * (samples.digit / samples.value + steps.digit / steps.value) / 2
        if abs(ratio - batch) > allowed * 1.01 + 1e-9:
            yield f"{samples.text} samples/s and {steps.text} steps/s, but {batch:g} samples a step"


def _batch(asker: Asker) -> float:
    """Return how many samples all processes together have in a usual step; 0: not known."""
    rows = asker.json("show", "steps", "T").tables.get("steps.steps", ())
    batches: dict[int, float] = {}
    for row in rows:
        if is_usual(row) and row.get("samples_count"):
            batches[row["step"]] = batches.get(row["step"], 0.0) + row["samples_count"]
    return float(np.mean(list(batches.values()))) if batches else 0.0


def next_leads_somewhere(asker: Asker) -> Iterator[str]:
    """The command after "next:" shows something."""
    for command in re.findall(r"^(?:next:|Next) +(traceprof .*)$", asker.text("T").text, re.M):
        words = ["T" if word == str(asker.trace) else word for word in shlex.split(command)[1:]]
        said = asker.command(*words, "--json")
        if said.code:
            yield f"{command} ends with {said.code}: {said.error.strip()}"
            continue
        document: dict[str, Any] = json.loads(said.text)
        results_of = document.get("results")
        tables = [t for own in (results_of or {}).values() for t in own["tables"].values()]
        if results_of is not None and not any(table["rows"] for table in tables):
            yield f"{command} shows an empty table"


def a_run_is_itself(asker: Asker) -> Iterator[str]:
    """`compare T T` is no difference, and the interval no wider than the steps of the base."""
    said, as_json = asker.command("compare", "T", "T"), asker.command("compare", "T", "T", "--json")
    if said.code or as_json.code:
        yield f"compare T T ends with {said.code}: {said.error.strip()}"
        return
    if NEVER_SEEN.search(said.text):
        yield f"compare T T says: {NEVER_SEEN.findall(said.text)[0]} have been seen"
    spread = _spread(asker)
    judged = json.loads(as_json.text)["results"].get("judged", {}).get("tables", {})
    for row in judged.get("judged", {}).get("rows", ()):
        if row["verdict"] != NO_DIFFERENCE:
            yield f"compare T T: {row['measure']} is {row['verdict']!r}, not {NO_DIFFERENCE!r}"
        if row["change_ratio"] != 0:
            yield f"compare T T: {row['measure']} changes by {row['change_ratio']:+.1%}"
        low, high = row["low_ratio"], row["high_ratio"]
        ends = "" if low is None or high is None else f"{low:+.1%} to {high:+.1%}"
        if ends and not low <= 1e-9 <= high + 2e-9:
            yield f"compare T T: interval of {row['measure']} is {ends}"
        if ends and spread is not None and max(-low, high) > spread + 0.001:
            yield f"compare T T: {row['measure']} {ends}, while steps differ by {spread:.1%}"


def _spread(asker: Asker) -> float | None:
    """Return by how much of the step time the steps of the page differ."""
    low, step, high = (_figure(asker, name) for name in _RANGE)
    if low is None or step is None or high is None:
        return None
    return (high.value - low.value) / step.value


def nothing_unrecorded_is_idle(asker: Asker) -> Iterator[str]:
    """The timeline draws what the recorder did not see as not recorded."""
    if asker.timeline is None:
        return
    run = asker.run.within("all")
    with suppress(TraceprofError):
        ranges = run.query("SELECT start_ns, end_ns, name FROM ranges WHERE domain = 'traceprof'")
        recorded = ranges[ranges["name"].isin(WINDOW_KINDS)][["start_ns", "end_ns"]]
        if recorded.empty or len(run.query("SELECT DISTINCT device FROM kernels")) != 1:
            return
        sql = "SELECT start_ns, end_ns FROM {}"
        work = [run.query(sql.format(table)) for table in ("kernels", "copies")]
        known = _union(pd.concat([recorded, *work]))
        unknown = _complement(known, asker.timeline.head["duration_ns"])
        for (device, state), (starts, ends) in asker.timeline.states.items():
            drawn = np.stack((starts, ends), axis=1)
            if state == "not_recorded":
                left = _outside(unknown, drawn)
                if left > _NS:
                    yield f"timeline: {device} is drawn as recorded {left / 1e6:.3f} ms too long"
            elif state == "idle" and (over := _overlap(unknown, drawn)) > _NS:
                yield f"timeline: {device} is idle for {over / 1e6:.3f} ms that nobody recorded"


def no_command_crashes(asker: Asker) -> Iterator[str]:
    """Whatever was asked so far ends with an answer, or an error of ours."""
    yield from asker.crashes


def _union(spans: pd.DataFrame) -> np.ndarray:
    ordered = spans.astype(np.int64).sort_values("start_ns").to_numpy()
    ends = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate(([True], ordered[1:, 0] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((ordered[first, 0], ends[last]), axis=1)


def _complement(spans: np.ndarray, end_ns: int) -> np.ndarray:
    edges = np.concatenate(([0], spans.ravel(), [end_ns])).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def _overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Return for how long both are, of spans that do not overlap among themselves."""
    ends = np.cumsum(np.concatenate(([0], second[:, 1] - second[:, 0])))

    def covered(instants: np.ndarray) -> np.ndarray:
        place = np.searchsorted(second[:, 0], instants, "right")
        last = second[np.maximum(place - 1, 0)]
        within = np.clip(instants, last[:, 0], last[:, 1]) - last[:, 0]
        return np.where(place > 0, ends[np.maximum(place - 1, 0)] + within, 0)

    return float((covered(first[:, 1]) - covered(first[:, 0])).sum()) if len(second) else 0.0


def _outside(first: np.ndarray, second: np.ndarray) -> float:
    return float((first[:, 1] - first[:, 0]).sum()) - _overlap(first, second)


INVARIANTS: Final[Mapping[str, Callable[[Asker], Iterator[str]]]] = {
    "negative": no_negative_duration,
    "parts": parts_add_up,
    "phases": phases_add_up,
    "steady": steady_is_the_default,
    "mean": the_mean_lies_between,
    "shares": shares_add_up,
    "rates": rates_fit,
    "next": next_leads_somewhere,
    "itself": a_run_is_itself,
    "timeline": nothing_unrecorded_is_idle,
    "crash": no_command_crashes,
}
"""All of them, by a word."""

"""Steps from what the host annotated: ranges that are steps, or phases that make up steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.names.ranges import codes_containing
from traceprof.model.steps import STEP_COLUMNS, empty_steps

__all__ = ["steps_between_ends", "steps_of_phases", "steps_of_ranges"]

_PHASES: Final = ("data", "forward", "eval", "backward", "optimizer")
_DATA, _FORWARD, _EVAL, _BACKWARD, _OPTIMIZER = range(len(_PHASES))
_NONE: Final = int(np.iinfo(np.int64).min)
_WARMUP: Final = re.compile(r"warm[\s_-]?up", re.IGNORECASE)


def steps_of_ranges(
    ranges: pd.DataFrame, pattern: re.Pattern[str], words: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the outermost ranges whose whole name matches ``pattern`` as steps.

    ``words`` are such that a name must contain one of them to match.

    A step's number is what a group of the pattern captures, else the payload of its range, else
    its place; numbers that occur twice in a process (they restart every epoch) are places, too.
    """
    names = ranges["name"].cat.categories
    likely = codes_containing(names, words) if words else range(len(names))
    matches = {
        int(code): match for code in likely if (match := pattern.fullmatch(str(names[code])))
    }
    codes = ranges["name"].cat.codes
    found = ranges[codes.isin(list(matches)) & (ranges["end_ns"] > ranges["start_ns"])]
    if found.empty:
        return empty_steps()
    found = _outermost(_of_one_thread(found))
    codes = found["name"].cat.codes
    captured = {code: _number_in(match) for code, match in matches.items()}
    given = pd.to_numeric(codes.map(captured), errors="coerce").astype("float64")
    warmup = {code: _WARMUP.search(match.string) is not None for code, match in matches.items()}
    return found.assign(
        step=_numbered(given.fillna(found["payload"]), found["process"]),
        declared_warmup=codes.map(warmup).to_numpy(bool),
    )[list(STEP_COLUMNS)]


def steps_between_ends(
    ranges: pd.DataFrame, pattern: re.Pattern[str], words: Sequence[str]
) -> pd.DataFrame:
    """Return the steps from one end of a range whose name matches ``pattern`` to the next.

    Of several names (a program with two optimizers) the most common one counts. ``words`` are such
    that a name must contain one of them to match.
    """
    categories = ranges["name"].cat.categories
    likely = codes_containing(categories, words)
    codes = [i for i in likely if pattern.fullmatch(str(categories[i]))]
    found = ranges[ranges["name"].cat.codes.isin(codes)]
    if found.empty:
        return empty_steps()
    found = _of_one_thread(found[found["name"] == found["name"].value_counts().index[0]])
    start = found.groupby("process")["end_ns"].shift()
    whole = found.assign(start_ns=start)[start.notna()]
    return whole.assign(
        start_ns=whole["start_ns"].astype("int64"),
        step=whole.groupby("process").cumcount() + 1,
        declared_warmup=False,
    )[list(STEP_COLUMNS)]


def _of_one_thread(found: pd.DataFrame) -> pd.DataFrame:
    """Return the ranges of the thread that names the most steps of each process."""
    per_thread = found.groupby(["process", "thread"])["start_ns"].transform("size")
    chosen = found.assign(size=per_thread).sort_values(["size", "thread"], ascending=[False, True])
    speaker = chosen.drop_duplicates("process").set_index("process")["thread"]
    return found[found["thread"] == found["process"].map(speaker)]


def _outermost(found: pd.DataFrame) -> pd.DataFrame:
    reach = found.groupby("process")["end_ns"].cummax()
    before = reach.groupby(found["process"]).shift(fill_value=np.iinfo(np.int64).min)
    return found[found["start_ns"] >= before]


def _number_in(match: re.Match[str]) -> int | None:
    given = [text for text in match.groups() if text is not None and text.isdigit()]
    return int(given[0]) if given else None


def _numbered(given: pd.Series, process: pd.Series) -> npt.NDArray[np.int64]:
    """Return the given numbers of each process, or the places where they are not all distinct."""
    places = given.groupby(process).cumcount()
    per_process = given.groupby(process)
    usable = per_process.transform(lambda own: own.notna().all() and own.is_unique).astype(bool)
    return np.asarray(given.where(usable, places), np.int64)


def steps_of_phases(own: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that the phases recorded by traceprof make up."""
    names = own["name"].cat
    if own.empty:
        return empty_steps()
    places = np.append(pd.Index(_PHASES, dtype=object).get_indexer(names.categories), -1)
    phase = places[names.codes.to_numpy()]
    phases = own.assign(phase=phase)[phase >= 0]
    columns = [phases[name].to_numpy(np.int64) for name in ("phase", "start_ns", "end_ns")]
    rows = [
        (int(str(process)), number, start, end, False)
        for process, events in phases.groupby("process").indices.items()
        for number, (start, end) in enumerate(
            _steps_in(zip(*(column[events].tolist() for column in columns), strict=True))
        )
    ]
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS)) if rows else empty_steps()


@dataclass(slots=True)
class _Open:
    """The step that is being put together: where its parts stood."""

    start: int = _NONE
    optimizer_end: int = _NONE
    has_batch: bool = False
    has_backward: bool = False

    def is_ended_by(self, phase: int, start: int) -> bool:
        """Return whether a phase that starts at ``start`` belongs to another step."""
        if self.optimizer_end == _NONE or phase == _OPTIMIZER:
            return False
        if phase in (_DATA, _EVAL):
            return True
        # Lightning runs forward and backward inside the optimizer's step.
        return start >= self.optimizer_end and not self.has_batch

    def add(self, phase: int, start: int, end: int) -> None:
        """Let a phase belong to the step."""
        if self.start == _NONE:
            self.start = start
        if phase == _OPTIMIZER:
            self.optimizer_end = max(end, self.optimizer_end)
        elif phase == _BACKWARD:
            self.has_backward = True
        elif phase == _DATA:
            self.has_batch = True


def _steps_in(events: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each step in (place in `_PHASES`, start, end) sorted by start.

    A step begins at the first ``data`` (or forward or backward, without a loader) and ends where,
    after an optimizer step, the next data, the next forward or an evaluation begins, at the
    latest with the optimizer itself. What was fetched for evaluation belongs to no step.
    """
    # One phase after the other: where a step begins depends on where the one before ended.
    step = _Open()
    for phase, start, end in events:
        if step.is_ended_by(phase, start):
            # With a loader, the time up to the next batch is the step's; else it ends here.
            if step.has_backward:
                yield step.start, start if phase == _DATA else step.optimizer_end
            step = _Open()
        if phase != _EVAL:
            step.add(phase, start, end)
        elif not step.has_backward:
            step = _Open()
    if step.has_backward and step.optimizer_end != _NONE:
        yield step.start, step.optimizer_end

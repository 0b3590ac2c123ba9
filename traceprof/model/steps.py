"""Training steps: where they begin and end, read from what the host annotated.

A step is one optimizer step. Three sources are tried, the most reliable first: the raw ranges
that `traceprof record` injects, PyTorch's ``ProfilerStep#N``, and ranges that people call
"step 3" or "iteration". Nothing is guessed: a trace without any of them has no steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.trace import Trace

__all__ = ["OWN_DOMAIN", "Steps", "count_warmup", "find_steps"]

OWN_DOMAIN: Final = "traceprof"
"""The NVTX domain of the ranges that `traceprof record` injects."""

_PROFILER_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_NAMED_STEP: Final = re.compile(
    r"(?:train(?:ing)?[\s_:-]*)?(?:step|iteration|iter)(?:[\s_#:=.-]*(\d+))?", re.IGNORECASE
)
_EXPLICIT: Final = "user_step"
_PHASES: Final = ("data", "forward", "eval", "backward", "optimizer")
_COLUMNS: Final = ("process", "step", "start_ns", "end_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a trace.

    ``table`` has the columns process, step (its number), start_ns, end_ns, sorted by process and
    start; ``source`` says what they were read from ("" where there are none).
    """

    table: pd.DataFrame
    source: str

    def __len__(self) -> int:
        return len(self.table)

    @property
    def durations_ns(self) -> npt.NDArray[np.int64]:
        """The length of each step on the host."""
        return (self.table["end_ns"] - self.table["start_ns"]).to_numpy()


def find_steps(trace: Trace) -> Steps:
    """Return the steps of every process, from the most reliable source that the trace has."""
    ranges = trace.ranges
    own = ranges[ranges["domain"] == OWN_DOMAIN]
    for source, found in (
        ("traceprof.step()", _from_pattern(own, re.compile(_EXPLICIT))),
        ("recorded phases", _from_phases(own)),
        ("ProfilerStep", _from_pattern(ranges, _PROFILER_STEP)),
        ("ranges named step", _from_pattern(ranges[ranges["domain"] != OWN_DOMAIN], _NAMED_STEP)),
    ):
        if len(found):
            return Steps(found.sort_values(["process", "start_ns"], ignore_index=True), source)
    return Steps(pd.DataFrame({name: np.empty(0, np.int64) for name in _COLUMNS}), "")


def count_warmup(durations_ns: npt.NDArray[np.int64]) -> int:
    """Return how many leading steps are warm-up.

    A leading step is warm-up while it lies outside median ± 3 · 1.4826 · MAD of the steps after
    it (1.4826 · MAD estimates the standard deviation; a step within 5 % of the median never
    counts as outside). At least half of the steps are kept, and at least three.
    """
    n_dropped = 0
    durations = durations_ns.astype(np.float64)
    while len(durations) - n_dropped > max(3, len(durations) / 2):
        rest = durations[n_dropped + 1 :]
        median = float(np.median(rest))
        spread = 3 * 1.4826 * float(np.median(np.abs(rest - median)))
        if abs(durations[n_dropped] - median) <= max(spread, 0.05 * median):
            break
        n_dropped += 1
    return n_dropped


def _from_pattern(ranges: pd.DataFrame, pattern: re.Pattern[str]) -> pd.DataFrame:
    """Return the ranges whose whole name matches, numbered by it or else in their order."""
    names = ranges["name"].cat
    numbers = {
        code: match.group(1) if match.groups() else None
        for code, name in enumerate(names.categories)
        if (match := pattern.fullmatch(str(name)))
    }
    found = ranges[names.codes.isin(list(numbers))]
    found = found[found["end_ns"] > found["start_ns"]]
    if found.empty:
        return pd.DataFrame(columns=list(_COLUMNS))
    # One thread speaks for a process: the one that names the most steps.
    per_thread = found.groupby(["process", "thread"])["start_ns"].transform("size")
    chosen = found.assign(size=per_thread).sort_values(["size", "thread"], ascending=[False, True])
    speaker = chosen.drop_duplicates("process").set_index("process")["thread"]
    found = found[found["thread"] == found["process"].map(speaker)]
    order = found.groupby("process").cumcount()
    given = found["name"].cat.codes.map(numbers)
    numbered = pd.to_numeric(given, errors="coerce").fillna(order).astype("int64")
    return found.assign(step=numbered)[list(_COLUMNS)]


def _from_phases(own: pd.DataFrame) -> pd.DataFrame:
    phases = own[own["name"].isin(_PHASES)]
    rows = [
        (int(str(process)), number, start, end)
        for process, events in phases.groupby("process")
        for number, (start, end) in enumerate(
            _steps_of(
                zip(
                    events["name"].astype(str),
                    events["start_ns"].tolist(),
                    events["end_ns"].tolist(),
                    strict=True,
                )
            )
        )
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


@dataclass(slots=True)
class _Open:
    """The step that is being put together: where its parts stood."""

    start: int | None = None
    backward: bool = False
    optimizer_end: int | None = None
    has_batch: bool = False

    @property
    def is_whole(self) -> bool:
        return self.start is not None and self.backward and self.optimizer_end is not None


def _steps_of(events: Iterable[tuple[str, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each step in (phase, start, end) events sorted by start.

    A step begins at the first ``data`` (or forward or backward, without a loader) and ends where,
    after an optimizer step, the next data, the next forward or an evaluation begins, at the
    latest with the optimizer itself. What was fetched for evaluation belongs to no step.
    """
    step = _Open()
    for phase, start, end in events:
        if step.optimizer_end is not None and _begins_another(phase, step, start):
            # With a loader, the time up to the next batch is the step's; else it ends here.
            if step.is_whole:
                yield (step.start or 0), start if phase == "data" else step.optimizer_end
            step = _Open()
        if phase == "eval":
            step = step if step.backward else _Open()
            continue
        step.start = start if step.start is None else step.start
        step.has_batch |= phase == "data"
        step.backward |= phase == "backward"
        if phase == "optimizer":
            step.optimizer_end = max(end, step.optimizer_end or 0)
    if step.is_whole:
        yield (step.start or 0), (step.optimizer_end or 0)


def _begins_another(phase: str, step: _Open, start: int) -> bool:
    if phase in ("data", "eval"):
        return True
    # Lightning runs forward and backward inside the optimizer's step.
    after = step.optimizer_end is not None and start >= step.optimizer_end
    return phase in ("forward", "backward") and after and not step.has_batch

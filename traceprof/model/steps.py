"""Training steps: where they begin and end.

A step is one optimizer step. The sources are tried from the most to the least reliable: what
the user or `traceprof record` marked, PyTorch's ``ProfilerStep#N``, ranges that people call
"step 3" or "iteration", the ends of PyTorch's ``Optimizer.step#…``, the bursts of the optimizer's
kernels, and, with nothing else, the period of the kernel sequence. The last two are inferred, and
say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.errors import UsageError
from traceprof.model.remembered import remembered
from traceprof.model.step_kernels import find_optimizer_steps, find_periodic_steps
from traceprof.model.step_ranges import (
    OWN_DOMAIN,
    steps_between_ends,
    steps_of_phases,
    steps_of_ranges,
)
from traceprof.model.tables import TABLES, make_table
from traceprof.model.trace import Trace
from traceprof.model.warmup import count_warmup

__all__ = ["OWN_DOMAIN", "Steps", "count_warmup", "find_steps", "mark_steps"]

_CHOSEN: Final = "chosen_step"
_EXPLICIT: Final = re.compile("user_step")
_PROFILER_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(?P<number>\d+)")
_OPTIMIZER_STEP: Final = re.compile(r"Optimizer\.step#.*")
_NAMED_STEP: Final = re.compile(
    r"(?:train(?:ing)?[\s_:-]*)?(?:step|iteration|iter)(?:[\s_#:=.-]*(?P<number>\d+))?"
    r"|(?!.*(?:optim|sched|valid|eval|test|predict))"
    r"[a-z][\w\s:/,.#-]*?(?:step|iteration|iter|batch)[\s_#:=.-]*(?P<other_number>\d+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a trace.

    ``table`` has one row per process and step, sorted by process and start: process, step (its
    number), start_ns, end_ns, declared_warmup (whether its name says so), is_warmup (as found in,
    or said of, the whole trace). ``source`` says what they were read from ("" where there are
    none); ``confidence_ratio`` is 1 unless they were
    inferred, then the share of the kernel sequence that repeats.
    """

    table: pd.DataFrame
    source: str
    confidence_ratio: float = 1.0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_inferred(self) -> bool:
        """Whether nobody named the steps: they were seen in the sequence of kernels."""
        return self.confidence_ratio < 1

    @property
    def durations_ns(self) -> npt.NDArray[np.int64]:
        """The length of each step on the host."""
        return (self.table["end_ns"] - self.table["start_ns"]).to_numpy()

    def warmup(self) -> npt.NDArray[np.bool_]:
        """Return which rows are warm-up: the same number of leading steps in every process."""
        return self.table["is_warmup"].to_numpy(bool)


@remembered
def find_steps(trace: Trace) -> Steps:
    """Return the steps of every process, from the most reliable source that the trace has.

    Of a trace that was cut, the steps that lie wholly inside the window.
    """
    steps = _find(trace.whole)
    warmup = _warmup_of(steps.table, trace.whole.warmup_steps)
    steps = replace(steps, table=steps.table.assign(is_warmup=warmup))
    if trace.uncut is None:
        return steps
    table = steps.table
    inside = (table["start_ns"] >= trace.span.start_ns) & (table["end_ns"] <= trace.span.end_ns)
    return replace(steps, table=table[inside].reset_index(drop=True))


def _warmup_of(table: pd.DataFrame, n_given: int | None) -> npt.NDArray[np.bool_]:
    """Return which steps are warm-up; what the user said wins over durations and names."""
    order = table.groupby("process").cumcount().to_numpy()
    if n_given is not None:
        return np.asarray(order < n_given)
    most = 0
    for _, rows in table.groupby("process"):
        declared = rows["declared_warmup"].to_numpy(bool)
        found = count_warmup((rows["end_ns"] - rows["start_ns"]).to_numpy())
        most = max(most, found, 0 if declared.all() else int(declared.sum()))
    return np.asarray(order < most)


def mark_steps(trace: Trace, pattern: str) -> Trace:
    """Return the trace with the ranges whose whole name matches ``pattern`` taken as its steps.

    A group in the pattern captures the number of the step.

    Raises:
        UsageError: the pattern is not a regular expression, or no range matches it.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"step pattern {pattern!r} is not a regular expression: {error}"
        ) from error
    found = steps_of_ranges(trace.ranges, compiled)
    if found.empty:
        raise UsageError(f"no range matches the step pattern {pattern!r}")
    marked = pd.DataFrame(
        {
            "start_ns": found["start_ns"],
            "end_ns": found["end_ns"],
            "process": found["process"],
            "thread": -1,
            "domain": OWN_DOMAIN,
            "category": -1,
            "name": _CHOSEN,
            "depth": 0,
            "payload": found["step"].astype(float),
            "kind": "start_end",
        }
    )
    return replace(trace, ranges=_with_rows(trace.ranges, marked))


def _with_rows(ranges: pd.DataFrame, more: pd.DataFrame) -> pd.DataFrame:
    columns = {
        name: np.concatenate([ranges[name].to_numpy(), more[name].to_numpy()])
        for name in TABLES["ranges"].columns
    }
    return make_table("ranges", columns)


def _find(trace: Trace) -> Steps:
    ranges = trace.ranges
    own = ranges[ranges["domain"] == OWN_DOMAIN]
    foreign = ranges[ranges["domain"] != OWN_DOMAIN]
    annotated: tuple[tuple[str, Callable[[], pd.DataFrame]], ...] = (
        ("ranges chosen as steps", lambda: steps_of_ranges(own, re.compile(_CHOSEN))),
        ("traceprof.step()", lambda: steps_of_ranges(own, _EXPLICIT)),
        ("recorded phases", lambda: steps_of_phases(own)),
        ("ProfilerStep", lambda: steps_of_ranges(ranges, _PROFILER_STEP)),
        ("ranges named step", lambda: steps_of_ranges(foreign, _NAMED_STEP)),
        ("ends of Optimizer.step", lambda: steps_between_ends(foreign, _OPTIMIZER_STEP)),
    )
    for source, find in annotated:
        found = find()
        if len(found):
            return Steps(found.sort_values(["process", "start_ns"], ignore_index=True), source)
    return _infer(trace)


def _infer(trace: Trace) -> Steps:
    found = find_optimizer_steps(trace)
    source = "inferred from the optimizer's kernels"
    if not len(found.table):
        found = find_periodic_steps(trace)
        source = "inferred from the period of the kernel sequence"
    return Steps(found.table, source if len(found.table) else "", found.confidence_ratio)

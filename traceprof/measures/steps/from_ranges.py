"""Steps from ranges that are steps, by what they are called; how others would get known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from traceprof.model.ranks import Ranks
from traceprof.model.timing import OWN_DOMAIN, STEP_COLUMNS, empty_steps
from traceprof.model.trace import Trace
from traceprof.names.ranges import codes_containing

_ASKED_FOR: Final = re.compile(r"step:.+")
_LEFT: Final = "step.left"
"""Bears the number of a step that was begun, and the program ended."""
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
    found = _of_one_thread(found)
    reach = found.groupby("process")["end_ns"].cummax()
    before = reach.groupby(found["process"]).shift(fill_value=np.iinfo(np.int64).min)
    found = found[found["start_ns"] >= before]  # the outermost
    codes = found["name"].cat.codes
    captured = {
        code: next((int(text) for text in match.groups("") if text.isdigit()), None)
        for code, match in matches.items()
    }
    given = pd.to_numeric(codes.map(captured), errors="coerce").astype("float64")
    numbers = given.fillna(found["payload"]).groupby(found["process"])
    # Numbers of a process that are not all distinct are no numbers of steps: places are.
    usable = numbers.transform(lambda own: own.notna().all() and own.is_unique).astype(bool)
    step = given.fillna(found["payload"]).where(usable, numbers.cumcount().astype(np.float64))
    warmup = {code: _WARMUP.search(match.string) is not None for code, match in matches.items()}
    declared = codes.map(warmup).to_numpy(bool)
    return found.assign(step=step.astype(np.int64), declared_warmup=declared)[list(STEP_COLUMNS)]


def steps_asked_for(own: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the steps of ``traceprof record --step-from``, and from what they are.

    ``own`` are the ranges of traceprof.
    """
    table = steps_of_ranges(own, _ASKED_FOR, ["step:"])
    if table.empty:
        return table, ""
    names = own["name"].astype(str)
    left = own.loc[names == _LEFT, ["process", "payload"]].set_axis(["process", "step"], axis=1)
    is_left = pd.MultiIndex.from_frame(table[["process", "step"]]).isin(
        list(map(tuple, left.values))
    )
    asked = names[names.str.startswith("step:")].iloc[0].removeprefix("step:")
    return table[~is_left].reset_index(drop=True), asked


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


_RECORD: Final = "record with `traceprof record`, or call traceprof.step()"
_SAY: Final = (
    "call traceprof.step() in the program, or say what a step is "
    "(`traceprof record --step-from loader`, every-forward or range:NAME)"
)


def how_steps_get_known(ranks: Ranks) -> str:
    """Return what to do where no steps are known; `traceprof record` is not advised again."""
    return _SAY if any(ranks.whole.each(_is_own)) else _RECORD


def _is_own(trace: Trace) -> bool:
    return trace.is_by_traceprof or OWN_DOMAIN in set(
        trace.ranges.to_frame()["domain"].cat.categories
    )

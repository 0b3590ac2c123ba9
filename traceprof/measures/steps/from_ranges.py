"""Builds steps from ranges whose names mark steps, and recommends how to record steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from traceprof.measures.rows import bounds, busiest_lanes, rows_by
from traceprof.model.grouping import rows_by_values
from traceprof.model.ranks import Ranks
from traceprof.model.table import Names, Table
from traceprof.model.timing import STEP_COLUMNS, TRACEPROF_DOMAIN, empty_steps, steps_between
from traceprof.model.trace import RecordedBy, Trace
from traceprof.names.ranges import codes_containing
from traceprof.names.user_patterns import UserPattern

_MAX_DIGITS: Final = 18
"""A number with more digits is no step number."""
_REQUESTED: Final = re.compile(r"step:.+")
_UNFINISHED: Final = "step.left"
"""Name of the range with the number of a step that began before the program ended."""
_WARMUP: Final = re.compile(r"warm[\s_-]?up", re.IGNORECASE)
NAMED_STEP: Final = re.compile(
    r"(?:train(?:ing)?[\s_:-]*)?(?:step|iteration|iter)(?:[\s_#:=.-]*(?P<number>\d+))?"
    r"|(?!.*(?:optim|sched|valid|eval|test|predict))(?:\[[a-z]\w*\]\s*)?"
    r"[a-z_][\w\s:/,.#-]*?(?:step|iteration|iter|batch)[\s_#:=.-]*(?P<other_number>\d+)",
    re.IGNORECASE,
)
STEP_WORDS: Final = ("step", "iter", "batch")

_ENGINE_STEP: Final = re.compile(
    r"execute_(?:\d+_)?context_\d+\([^()]*(?:\([^()]*\)[^()]*)*\)_generation_\d+\(.*\)"
    r"|step\[[A-Z][A-Z_]* [^\]]*\]"
)
"""Step ranges of inference servers: vLLM and SGLang."""
_VLLM_BATCH: Final = re.compile(
    r"execute_(?:(?P<tokens>\d{1,12})_)?context_(?P<prompts>\d{1,9})\((?P<prompt_tokens>\d{0,12})"
    r"[^()]{0,400}\)_generation_(?P<running>\d{1,9})\((?P<new_tokens>\d{0,12})"
)
_SGLANG_BATCH: Final = re.compile(
    r"step\[[A-Z_]{1,40} bs=(?P<sequences>\d{1,9})(?: toks=(?P<tokens>\d{1,12}))?"
)


def batch_of_engine(name: str) -> tuple[int, int]:
    """Return the numbers of tokens and sequences in the name of a step of an inference server.

    Tokens are those of prompts and one for each running sequence; (0, 0) for other names.
    """
    if found := _VLLM_BATCH.match(name):
        old_tokens = int(found["prompt_tokens"] or 0) + int(found["new_tokens"] or 0)
        return int(found["tokens"] or old_tokens), int(found["prompts"]) + int(found["running"])
    if found := _SGLANG_BATCH.match(name):
        sequences = int(found["sequences"])
        return int(found["tokens"] or sequences), sequences
    return 0, 0


def steps_of_ranges(
    ranges: Table, pattern: re.Pattern[str] | UserPattern, words: Sequence[str] = ()
) -> Table:
    """Return the outermost ranges whose whole name matches ``pattern`` as steps.

    A matching name must contain one of ``words``, if any are given.

    The step number is the number captured by a group of the pattern, else the payload of the range,
    else its index. If a number occurs twice in a process (because numbers restart every epoch),
    indices are used.
    """
    texts = ranges["name"].texts
    likely = codes_containing(texts, words) if words else np.arange(len(texts))
    # A number that is neither captured nor in the payload is unknown (NaN).
    is_step, captured = np.zeros(len(texts), np.bool_), np.full(len(texts), np.nan)
    declared = is_step.copy()
    likely_texts = texts[likely].tolist()
    for code, text, groups in zip(
        likely, likely_texts, _groups(pattern, likely_texts), strict=True
    ):
        if groups is not None:
            numbers = (group for group in groups if group.isdecimal() and len(group) <= _MAX_DIGITS)
            captured[code] = float(next(numbers, "nan"))
            is_step[code], declared[code] = True, _WARMUP.search(text) is not None
    lasts = ranges["end_ns"] > ranges["start_ns"]
    found = _ranges_of_busiest_thread(ranges.take(ranges["name"].by_text(is_step) & lasts))
    starts, ends = bounds(found)
    is_outermost = np.ones(len(found), np.bool_)
    for rows in rows_by(found, "process").values():
        is_outermost[rows[1:]] = starts[rows[1:]] >= np.maximum.accumulate(ends[rows])[:-1]
    found = found.take(is_outermost)
    given = found["name"].by_text(captured)
    step = np.where(np.isnan(given), found["payload"], given)
    for rows in rows_by(found, "process").values():
        # Numbers that are not distinct within a process are no step numbers, so use indices.
        if np.isnan(step[rows]).any() or len({*step[rows].tolist()}) < len(rows):
            step[rows] = np.arange(len(rows))
    known = {"step": step.astype(np.int64), "declared_warmup": found["name"].by_text(declared)}
    return found.assign(**known).select(*STEP_COLUMNS)


def _groups(
    pattern: re.Pattern[str] | UserPattern, texts: Sequence[str]
) -> Iterator[tuple[str, ...] | None]:
    """Yield the captured groups of each text that matches completely, None for other texts."""
    if isinstance(pattern, UserPattern):
        for captured in pattern.matched(texts, whole=True):
            if captured is None:
                yield None
            else:
                yield tuple(captured[name] for name in pattern.groups)
    else:
        for match in map(pattern.fullmatch, texts):
            yield None if match is None else match.groups("")


STEPS_OF_ENGINES: Final = partial(
    steps_of_ranges, pattern=_ENGINE_STEP, words=("_generation_", "step[")
)
"""Returns the steps of inference servers, as their engines name them."""


def steps_of_step_from(ranges: Table) -> tuple[Table, str]:
    """Return the steps of ``traceprof record --step-from``, and the value of this option.

    ``ranges`` are the ranges of traceprof.
    """
    table = steps_of_ranges(ranges, _REQUESTED, ["step:"])
    if table.empty:
        return table, ""
    names: Names = ranges["name"]
    unfinished = ranges.take(names == _UNFINISHED)
    unfinished_steps = set(
        zip(unfinished["process"].tolist(), unfinished["payload"].tolist(), strict=True)
    )
    steps = zip(table["process"].tolist(), table["step"].tolist(), strict=True)
    is_requested = names.by_text([text.startswith("step:") for text in names.texts])
    requested = names[int(is_requested.argmax())].removeprefix("step:")
    return table.take([step not in unfinished_steps for step in steps]), requested


def steps_between_ends(ranges: Table, pattern: re.Pattern[str], words: Sequence[str]) -> Table:
    """Return the steps between the ends of ranges whose name matches ``pattern``.

    If several names match (a program with two optimizers), the most frequent name is used. A
    matching name must contain one of ``words``.
    """
    texts = ranges["name"].texts
    matching = [i for i in codes_containing(texts, words) if pattern.fullmatch(texts[i])]
    counts = ranges.take(ranges["name"].isin(texts[matching]))["name"].counts()
    if not counts:
        return empty_steps()
    usual = max(counts, key=lambda name: counts[name])
    found = _ranges_of_busiest_thread(ranges.take(ranges["name"] == usual))
    return Table.stacked(
        [
            steps_between(process, int(found["thread"][rows[0]]), found["end_ns"][rows])
            for process, rows in rows_by(found, "process").items()
        ]
    )


def _ranges_of_busiest_thread(found: Table) -> Table:
    """Return, of each process, the ranges of the thread with the most step ranges."""
    lanes = rows_by_values(found["process"], found["thread"])
    rows = [lanes[lane] for lane in busiest_lanes(lanes).values()]
    return found.take(np.sort(np.concatenate(rows))) if rows else found


def how_to_record_steps(ranks: Ranks) -> str:
    """Return how to record steps with the recorder of ``ranks``."""
    is_by_traceprof = any(ranks.whole.each(_is_by_traceprof))
    return (RecordedBy.OWN if is_by_traceprof else ranks.info.recorded_by).how_to("steps")


def _is_by_traceprof(trace: Trace) -> bool:
    return trace.is_by_traceprof or TRACEPROF_DOMAIN in set(trace.ranges["domain"].texts)

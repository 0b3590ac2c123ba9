"""The figures that all doors must agree on, and where each door shows them: data, to be adapted.

A finder is a pattern on a text (`Prose`) or a column of a table (`Rows`). A figure that a door
does not show has no finder there. Where a text or a column gets another name, this is the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.truth.door_exhibits import Row, cell, is_known
from tests.truth.door_reading import Prose, Rows

__all__ = [
    "FINDERS",
    "PARTS",
    "SIGNATURES",
    "WITHIN",
    "kind_of",
    "named",
]

Finders = Sequence[Prose | Rows]

NUMBER: Final = r"(?:\d{1,3}(?:[ ,]\d{3})+(?:\.\d+)?(?!\d)|\d+(?:\.\d+)?)"
TIME: Final = rf"-?{NUMBER} (?:ns|µs|ms|s|min|h)\b"
SHARE: Final = rf"{NUMBER} ?%"
PART: Final = (
    r"(?P<part>(?i:compute|exposed communication|exposed transfers?|copies inside the device|"
    r"device memory|idle))\b"
)
STEP: Final = (
    r"\b(?:[Aa]n?|[Tt]he mean|[Aa] typical) (?:step|iteration)"
    r"(?: \(inferred\)| of the (?:repeating )?pattern)?(?: of|,)"
)

_TIME_PER: Final = r"\b[GC]PU time per (?:inferred )?(?:step|iteration) of"

KINDS: Final[Mapping[str, str]] = {
    r"step time|shortest|longest|length|baseline|.*warm-up time|.*saving$": "ns",
    r"share|idle:|.*(share|saving share)$": "ratio",
    r"(steps|samples)/s": "rate",
    r"steps used|steps of all ranks|slow steps|warm-up steps": "count",
    r"(all |slow )?step numbers|slowest step": "text",
}
"""How numbers of the figures are printed: a pattern of their names, a kind of `FORMATTERS`."""

ALIASES: Final[Mapping[str, str]] = {
    "exposed transfers": "exposed transfer",
    "exposed_transfer": "exposed transfer",
    "exposed_communication": "exposed communication",
    "device_memory": "device memory",
    "copies inside the device": "device memory",
    "synchronization": "synchronizing",
    "synchronizing": "synchronizing",
    "launches": "launch",
    "kernel launches": "launch",
    "host code": "host",
    "CPU work between launches": "host",
    "queued work": "queued",
    "other devices": "peer",
    "waiting for other GPUs": "peer",
    "start and end": "edge",
    "not recorded": "unknown",
    "gaps between queued kernels": "queued",
    "CPU-bound: kernel launches": "launch",
    "CPU-bound: input pipeline": "data",
    "communication by the CPU": "communication",
    "waiting for another GPU": "peer",
    "idle before the first and after the last kernel": "edge",
    "idle, cause not recorded": "unknown",
    "profiler overhead": "profiler",
    "host synchronization": "synchronizing",
    "CPU-bound: framework overhead": "host",
}
"""What parts and causes are called at one door, and here."""

WITHIN: Final[Mapping[str, tuple[str, str]]] = {
    "baseline": ("shortest listed step", "longest listed step"),
}
"""Figures that are no sum or mean but one step of the base: where they have to lie."""

SIGNATURES: Final[Mapping[str, Sequence[str]]] = {
    "idle.names": ("cause", "operator", "total"),
    "idle.causes": ("device", "cause", "total", "share"),
    "idle.devices": ("device", "recorded", "idle"),
    "breakdown.devices": ("device", "duration", "compute", "exposed communication", "utilization"),
    "breakdown.total": ("duration", "compute", "exposed communication", "utilization"),
    "steps.steps": ("step", "duration", "period", "host at"),
    "path.path": ("step", "duration", "bound by"),
    "ranks.ranks": ("device", "step", "compute", "exposed communication", "collectives"),
    "mfu.mfu": ("step", "model flop"),
    "ideal.ideal": ("part", "step", "until", "share"),
    "findings.findings": ("title", "claimed", "saving"),
    "findings.losses": ("loss", "total", "share"),
    "judged.judged": ("measure", "base", "new", "verdict"),
    "difference.parts": ("part", "base", "new", "difference"),
    "runs": ("name", "steps", "added"),
}
"""Printed tables have no names: these are the columns by which they are known, without units."""


def kind_of(figure: str) -> str:
    """Return the kind of a figure, which says how its numbers are printed."""
    return next((kind for pattern, kind in KINDS.items() if re.match(pattern, figure)), "text")


def named(figure: str) -> str:
    """Return the figure by the name that all doors share."""
    start, colon, end = figure.partition(": ")
    return f"{start}{colon}{ALIASES.get(end.lower(), end.lower())}" if colon else figure


def is_usual(row: Row) -> bool:
    """Return whether a row of steps is of the kind that a step time is about."""
    is_slow = is_known(excess := cell(row, "excess_ns")) and excess not in (0, "0 ns")
    kind = cell(row, "kind")
    return not (cell(row, "is_warmup") or is_slow) and kind in (None, "usual")


def _is_slow(row: Row) -> bool:
    if is_known(kind := cell(row, "kind")):
        return bool(kind == "slow")
    excess = cell(row, "excess_ns")
    return is_known(excess) and excess > 0 and cell(row, "excess_cause") in (None, "")


def _is(column: str, *values: Any) -> Any:
    return lambda row: str(cell(row, column)).replace(" ", "_") in values


def _is_of_a_step(row: Row) -> bool:
    return str(cell(row, "base")) in ("a step", "an iteration")


# What a page says, in whatever form: the terminal, Markdown, a report, Python, assistants.
_BASE: Final[Finders] = (
    Prose("step time", rf"{STEP} (?P<v>{TIME})"),
    Prose("step time", rf"{_TIME_PER} (?P<v>{TIME})"),
    Prose("step time", rf"^(?:Step time|Iteration(?: time)?) +(?P<v>{TIME})"),
    Prose("steps/s", rf"(?P<v>{NUMBER}) steps/s"),
    Prose("samples/s", rf"(?P<v>{NUMBER}) samples/s"),
)
_SLOW_STEP: Final = r"(?:^\s*(?:Evidence +)?|; |\| )step (?P<v>\d+): slower by"
_COUNTS: Final[Finders] = (
    Prose(
        "steps used",
        rf"(?<!of )(?<!first )\b(?P<v>{NUMBER}) (?:step|iteration)s?(?:,|: )",
    ),
    Prose("steps of all ranks", rf"\b(?P<v>{NUMBER}) (?:step|iteration)s? on \d+ ranks(?:,|: )"),
    Prose("steps used", r"\bOne (?:step|iteration)(?P<v>x)?: ", missing="1"),
    Prose("steps used", rf"Without the profiler (?:80% of )?(?P<v>{NUMBER}) steps take"),
    Prose("steps used", rf"Analyzed: (?P<v>{NUMBER}) steps"),
    Prose("shortest step", rf"(?:take|steady:|uneven:|: \d+ steps) (?P<v>{TIME}) to {TIME}"),
    Prose("longest step", rf"(?:take|steady:|uneven:|: \d+ steps) {TIME} to (?P<v>{TIME})"),
    Prose("slow steps", rf"; (?P<v>{NUMBER}) of them slow"),
    Prose("slow steps", rf"(?P<v>{NUMBER}) slow steps? of"),
    Prose("slow steps", r"\bone slow step(?P<v>x)? of", missing="1"),
    Prose("slow step numbers", _SLOW_STEP, take="list"),
    Prose("slowest step", _SLOW_STEP, take="first"),
)
_AS_WARMUP: Final = "(?:is|are) excluded as warm-up"
_WARMUP: Final[Finders] = (
    Prose("warm-up steps", rf"The first (?:(?P<v>\d+) )?steps? \({TIME}\) {_AS_WARMUP}", "", "1"),
    Prose("warm-up time", rf"The first (?:\d+ )?steps? \((?P<v>{TIME})\) {_AS_WARMUP}"),
    # Without what else was paid once in these steps, which stands beside it.
    Prose("rest of the warm-up time", rf"\bwarm-up (?P<v>{TIME})"),
)
_SHARES: Final[Finders] = (
    Prose(
        "share: {part}",
        rf"{PART} (?P<v>{SHARE})",
        within=rf"^.*(?:{_TIME_PER}|\bGPU time in the window)[^:]*: .*$",
    ),
    Prose("share: {part}", rf"[█▓▒▪░] {PART} (?P<v>{SHARE})", within=r"^\s*█ .*%.*$"),
    Prose("share: {part}", rf"^{PART} (?P<v>{SHARE})$"),
    Prose(
        "idle: {cause}",
        rf"(?:: |, )(?P<cause>[A-Za-z][A-Za-z ]*) (?P<v>{SHARE})",
        within=r"^\s*Idle time\s+by cause, as a share of [^:]+: .*$",
    ),
)
_SAVES: Final = r"^(?P<n>\d+)\. [^\n]*?(?:\n\s+)?[Ss]aves +(?:up to |about )?"
_FINDINGS: Final[Finders] = (
    Prose(
        "finding {n}: share",
        rf"^(?P<n>\d+)\. [^\n]*?(?P<v>{SHARE}) of (?:step|iteration|the analyzed) time",
    ),
    Prose(
        "finding {n}: saving",
        rf"{_SAVES}(?P<v>{TIME})",
    ),
    Prose(
        "finding {n}: saving share",
        rf"{_SAVES}{TIME} of [^(\n]*\((?P<v>{SHARE})",
    ),
)
PAGE: Final[Finders] = (*_BASE, *_COUNTS, *_WARMUP, *_SHARES, *_FINDINGS)

FIVE: Final = ("compute", "exposed_communication", "exposed_transfer", "device_memory", "idle")
PARTS: Final = tuple(part.replace("_", " ") for part in FIVE)

_FINDING_ROWS: Final[Finders] = tuple(
    Rows(
        f"finding {{n}}: {what}",
        "findings.findings",
        column,
        where=lambda row: not cell(row, "is_minor"),
        # Of what costs time once the title has the share of all steps.
        unless="one_time_ns" if what == "share" else "",
    )
    for what, column in (
        ("share", "claimed_ratio"),
        ("saving", "saving_ns"),
        ("saving share", "saving_ratio"),
    )
)
_STEP_ROWS: Final[Finders] = (
    Rows("step numbers", "steps.steps", "step", take="list"),
    Rows("slow steps", "steps.steps", "step", take="distinct", where=_is_slow),
    Rows("slow step numbers", "steps.steps", "step", "excess_ns", "largest", _is_slow),
)
_STEP_SCALARS: Final[Finders] = (
    Rows("steps/s", "steps.scalars", "steps_per_s"),
    Rows("samples/s", "steps.scalars", "samples_per_s"),
    Rows("step time", "steps.scalars", "step_ns"),
)
_BREAKDOWN_TOTAL: Final[Finders] = tuple(
    Rows(f"share: {part}", "breakdown.total", f"{part}_ratio") for part in FIVE
)
_BREAKDOWN_DEVICES: Final[Finders] = tuple(
    Rows(f"share: {part}", "breakdown.devices", f"{part}_ratio", "device", "of one")
    for part in FIVE
)
_CAUSES: Final = (
    *("queued", "launch", "data", "synchronizing", "host", "peer", "edge", "unknown", "profiler"),
)
_IDLE_CAUSES: Final[Finders] = (
    *(
        Rows(f"idle: {cause}", "idle.total", "share_ratio", where=_is("cause", cause))
        for cause in _CAUSES
    ),
    Rows("share: idle", "idle.devices", "share_ratio", "device", "of one"),
)
_IDLE_OF_ONE: Final[Finders] = tuple(
    Rows(f"idle: {one}", "idle.causes", "share_ratio", "device", "of one", _is("cause", one), True)
    for one in _CAUSES
)
_LATER: Final[Finders] = (
    Rows("step time", "base", "step_ns"),
    Rows("steps used", "base", "steps"),
)
"""What every result is to carry in JSON: its base."""

_COMMUNICATION: Final = (
    "exposed communication at peak link bandwidth",
    "exposed communication below peak link bandwidth",
    "exposed communication",
    "waiting for other ranks",
)
_MOVED: Final = ("exposed transfers", "copies inside the device")


def _kind_of(row: Row) -> str:
    """Return which of the five parts a part of the waterfall is in."""
    part = str(row["part"])
    if part in _COMMUNICATION or part in _MOVED:
        return "exposed communication" if part in _COMMUNICATION else "moved"
    return "idle" if part in ALIASES else "compute"


IDEAL: Final[Finders] = (
    Prose("step time", rf"Measured (?:step|iteration): (?P<v>{TIME})"),
    Prose("step time", rf"From ideal to measured time: (?:step|iteration), (?P<v>{TIME})"),
    Prose("steps used", rf"Measured [^(]*\(mean of (?P<v>{NUMBER}) (?:step|iteration)s?, "),
    Rows(
        "share: exposed transfer",
        "ideal.ideal",
        "share_ratio",
        where=_is("part", "exposed_transfers"),
    ),
    Rows(
        "share: device memory",
        "ideal.ideal",
        "share_ratio",
        where=_is("part", "copies_inside_the_device"),
    ),
    Rows("idle: {part}", "ideal.ideal", "share_ratio", where=lambda row: _kind_of(row) == "idle"),
    *(
        Rows(
            f"share: {kind}",
            "ideal.ideal",
            "share_ratio",
            take="sum",
            where=lambda row, kind=kind: _kind_of(row) == kind,
        )
        for kind in ("compute", "exposed communication", "idle")
    ),
)
_COMPARE: Final[Finders] = (
    Prose("step time", rf"^A step takes (?P<v>{TIME}), compared with"),
    Prose("step time", rf"^A step takes {TIME}, compared with (?P<v>{TIME}) in the base"),
    Prose("step time", rf"^total +(?P<v>{TIME}) "),
    Prose("steps used", rf"(?:means|medians) of (?P<v>{NUMBER}) and {NUMBER} (?:step|iteration)"),
    Prose("steps used", rf"(?:means|medians) of {NUMBER} and (?P<v>{NUMBER}) (?:step|iteration)"),
    Prose("steps used", rf": window [^\n]*, (?P<v>{NUMBER}) (?:step|iteration)s?$"),
    *(
        Rows(figure, "judged.judged", side, where=_is("measure", *measures))
        for side in ("base", "new")
        for figure, measures in (
            ("step time", ("step_period", "step_period_ns")),
            ("samples/s", ("samples", "samples_per_s")),
        )
    ),
)
_COMPARE_PARTS: Final[Finders] = (
    Rows("step time", "difference.parts", "base_ns", take="sum"),
    *(
        Rows(
            f"share: {part}",
            "difference.parts",
            "base_ns",
            "base_ns",
            "share",
            _is("part", part),
            True,
        )
        for part in FIVE
    ),
)
_LOSSES: Final[Finders] = (
    Rows(
        "idle: {loss}",
        "findings.losses",
        "share_ratio",
        where=lambda row: cell(row, "loss").replace(" ", "_") not in FIVE,
    ),
    *(
        Rows(f"share: {part}", "findings.losses", "share_ratio", where=_is("loss", part))
        for part in FIVE
    ),
    Rows("share: compute", "findings.scalars", "compute_ratio"),
)
"""What is lost by cause, as findings have it: they claim from this."""
_ON_TABLES: Final[Finders] = (
    *(*_BREAKDOWN_TOTAL, *_BREAKDOWN_DEVICES, *_IDLE_CAUSES, *_FINDING_ROWS),
    *_LOSSES[:-1],
)
"""Tables below the answer: a page in Markdown or HTML has all."""
FIGURES_OF_PYTHON: Final[Finders] = (
    Rows("samples/s", "figures", "samples_per_s"),
    Rows("steps/s", "figures", "steps_per_s"),
    Rows("step time", "figures", "step_period_ns"),
    Rows("step time", "figures", "step_device_ns"),
    *(Rows(f"share: {part}", "figures", f"{part}_ratio") for part in FIVE),
)
_STEADY: Final = r"usual (?:step|iteration)s?(?: of \d+ ranks)?:"
_STEPS_TEXT: Final[Finders] = (
    Prose("step time", rf"{_STEADY} median (?P<w>{TIME}), mean (?P<v>{TIME})"),
    Prose("steps used", rf"(?P<v>{NUMBER}) usual (?:step|iteration)s?:"),
    Prose("steps of all ranks", rf"(?P<v>{NUMBER}) usual (?:step|iteration)s? of \d+ ranks:"),
    Prose("samples/s", rf"Throughput: (?P<v>{NUMBER}) samples/s"),
    Prose("shortest step", rf"mean {TIME}, (?:p10|min) (?P<v>{TIME}), (?:p90|max) {TIME}"),
    Prose("longest step", rf"mean {TIME}, (?:p10|min) {TIME}, (?:p90|max) (?P<v>{TIME})"),
)
_BREAKDOWN_TEXT: Final = (
    Prose("share: {part}", rf"^\s*[█▓▒▪░] {PART} +{TIME} +(?P<v>{SHARE})$", take="mean"),
)

FINDERS: Final[Mapping[str, Finders]] = {
    "page": PAGE,
    "page with tables": (*_BASE, *_COUNTS, *_WARMUP, *_SHARES, *_ON_TABLES, *_STEPS_TEXT),
    "page as JSON": (
        *(finder for finder in PAGE if finder not in _FINDINGS),
        *(Rows(f"share: {part}", "parts", part) for part in FIVE),
        *(*_FINDING_ROWS, *_STEP_ROWS[1:], *_LATER, *_LOSSES, *_BREAKDOWN_TOTAL, *_IDLE_CAUSES),
        Rows("warm-up steps", "one_off", "count", take="maximum", where=_is("kind", "warm-up")),
        Rows(
            "rest of the warm-up time",
            "one_off",
            "total_ns",
            take="maximum",
            where=_is("kind", "warm-up"),
        ),
        Rows("step time", "findings.scalars", "step_ns"),
    ),
    "breakdown": (*_WARMUP[:2], *_BREAKDOWN_TEXT, *_BASE),
    "breakdown as JSON": (*_BREAKDOWN_TOTAL, *_LATER),
    "breakdown as CSV": _BREAKDOWN_DEVICES,
    "breakdown table": _BREAKDOWN_DEVICES,
    "steps": (*_STEPS_TEXT, *_WARMUP[:2], _STEP_ROWS[1]),
    "steps, some rows": (*_STEPS_TEXT, *_WARMUP[:2]),
    "steps as JSON": (
        *(*_STEPS_TEXT, *_STEP_ROWS, *_STEP_SCALARS, *_LATER),
        # A step is explained by usual ones that were recorded as it was.
        Rows("shortest listed step", "steps.steps", "duration_ns", take="minimum", where=is_usual),
        Rows("longest listed step", "steps.steps", "duration_ns", take="maximum", where=is_usual),
    ),
    "steps as CSV": _STEP_ROWS,
    "idle": (*_IDLE_CAUSES, *_IDLE_OF_ONE, *_BASE),
    "idle as JSON": (*_IDLE_CAUSES, *_IDLE_OF_ONE, *_LATER),
    "idle as CSV": _IDLE_OF_ONE,
    "findings": (*_BASE, *_FINDINGS, *_COUNTS[-5:]),
    "findings as JSON": (
        *_FINDING_ROWS,
        Rows("step time", "findings.scalars", "step_ns"),
        Rows("step time", "findings.findings", "base_ns", where=_is_of_a_step),
        *(*_LOSSES, *_LATER),
    ),
    "findings as CSV": _FINDING_ROWS,
    "table": (*_BASE, *_WARMUP[:2], Rows("step time", "ranks.ranks", "step_ns", take="mean")),
    "table as JSON": (
        *_LATER,
        Rows("step time", "mfu.mfu", "step_ns"),
        Rows("step time", "whatif.scalars", "step_ns"),
        Rows("step time", "ranks.ranks", "step_ns", take="mean"),
    ),
    "explain the slowest": (Prose("slowest step", r"^step (?P<v>\d+) is "),),
    "explain": (
        Prose("baseline", rf"^total +{TIME} +(?P<v>{TIME})"),
        Prose("length of that step", rf"^total +(?P<v>{TIME})"),
    ),
    "explain as JSON": (
        Rows("baseline", "explain.scalars", "reference_ns"),
        Rows("length of that step", "explain.scalars", "explained_ns"),
        *_LATER,
    ),
    "that step": (
        Rows(
            "length of that step", "steps.steps", "duration_ns", "", "mean", _is("chosen", "True")
        ),
    ),
    "ideal": IDEAL,
    "ideal as JSON": (*IDEAL, Rows("step time", "ideal.scalars", "length_ns"), *_LATER),
    "compare": _COMPARE,
    "compare as JSON": (*_COMPARE, *_COMPARE_PARTS),
    "report: verdict": (*_BASE, *_COUNTS, *_WARMUP, *_SHARES),
    "report: findings": (*_BASE, *_COUNTS[-5:], *_FINDINGS),
    "report: breakdown": (*_BREAKDOWN_TOTAL, *_BREAKDOWN_DEVICES),
    "report: steps": _STEPS_TEXT,
    "report: chart of steps": (
        Rows("step numbers", "chart", "step", take="list"),
        Rows("length of that step", "chart", "ns", where=lambda row: row.get("chosen")),
    ),
    "report: idle": _IDLE_CAUSES,
    "report: ideal": IDEAL,
    "report: ranks": (Rows("step time", "ranks.ranks", "step_ns", take="mean"),),
    "report: mfu": (Rows("step time", "mfu.mfu", "step_ns"),),
    "timeline": (
        Rows("all step numbers", "steps", "step", take="list"),
        Rows("length of that step", "steps", "ns", where=lambda row: row.get("chosen")),
    ),
    "all steps": (Rows("all step numbers", "steps.steps", "step", take="list"),),
    "figures": FIGURES_OF_PYTHON,
    "kept": (
        *FIGURES_OF_PYTHON,
        *_BREAKDOWN_TOTAL,
        *(*_FINDING_ROWS, *_STEP_ROWS, *_LOSSES[:-1], *_IDLE_CAUSES),
        Rows("steps used", "runs", "steps_count"),
    ),
    "scaling": tuple(
        Prose(f"{what}/s", rf"\n +\d+ +(?P<v>{NUMBER}) ", rf"^ *GPUs +{what}/s[^\n]*\n.*$")
        for what in ("samples", "steps")
    ),
    "kept runs listed": (
        Rows("step time", "runs", "step_period_ns"),
        Rows("samples/s", "runs", "samples_per_s"),
        Rows("steps used", "runs", "steps_count"),
    ),
}
"""What each kind of door shows."""

"""The answer to a question about a run: results about one window, and what to make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.facts.one_off_costs import one_off_costs
from traceprof.facts.steps.find import STEP_TABLES
from traceprof.facts.workload import Workload, workload
from traceprof.model.intervals import Intervals
from traceprof.model.parts import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, TraceInfo
from traceprof.model.window import TimeWindow
from traceprof.session.run import Run
from traceprof.session.selection import Selection

__all__ = ["PAGE", "Document", "Verdict", "answer", "page"]

PAGE: Final = (
    "findings",
    "steps",
    "rank-steps",
    "breakdown",
    "phases",
    "kernels",
    "collectives",
    "copies",
    "ranges",
    "ops",
)
"""What the page of ``traceprof analyze`` is made of, as far as it was recorded."""

_PART_NAMES: Final = {
    "exposed_transfer": "exposed transfers",
    "device_memory": "copies inside the device",
}
_LEAST_SHARE: Final = 0.01
_STEADY: Final = 0.1
_FILLED: Final = 0.95


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in a few sentences: where the time goes, and how steady it is.

    ``next_command`` is what to run next, with TRACE for the file.
    """

    sentences: tuple[Note, ...]
    next_command: str


@dataclass(frozen=True, slots=True)
class Document:
    """What is told about a run: everything was measured before, renderers measure nothing.

    ``span`` is the whole run and ``selection`` the window that the results are about. ``missing``
    says why other analyses have no result, ``recorded`` which tables the trace has. ``ranks``
    gives the rank of each process that has one. A page also has ``workload``, what the run does,
    and ``one_off``, what it paid once (see `traceprof.facts.one_off_costs`).
    """

    info: TraceInfo
    span: TimeWindow
    selection: Selection
    results: Mapping[str, Result]
    missing: Mapping[str, str] = field(default_factory=dict)
    recorded: frozenset[str] = frozenset()
    ranks: Mapping[int, int] = field(default_factory=dict)
    verdict: Verdict | None = None
    workload: Workload | None = None
    one_off: pd.DataFrame | None = None

    def ns_after_start(self, instant_ns: int) -> int:
        """Return an instant of the trace's clock in ns after the start of the run."""
        return instant_ns - self.span.start_ns


def answer(run: Run, names: Sequence[str], *, strict: bool = False) -> Document:
    """Return the results of the analyses ``names`` about the window of ``run``.

    Raises:
        NotRecordedError: ``strict``, and the trace lacks the data of one of them.
        UsageError: an analysis or the window is none.
    """
    answers = run.answers(names, strict=strict)
    frames = (frame for result in answers.results.values() for frame in result.tables.values())
    tells_processes = any("process" in frame for frame in frames)
    ranks = run.of_ranks(frozenset({"processes"} if tells_processes else ()))
    return Document(
        info=ranks.info,
        span=ranks.whole.span,
        selection=run.selection,
        results=answers.results,
        missing=answers.missing,
        recorded=ranks.recorded,
        ranks=_ranks_of_processes(ranks),
    )


def page(run: Run, names: Sequence[str] = PAGE) -> Document:
    """Return the answer with a verdict; ``names`` are all those of `PAGE`, or more."""
    found = answer(run, names)
    ranks = run.of_ranks(STEP_TABLES)
    return replace(
        found,
        verdict=_verdict(found),
        workload=workload(ranks),
        one_off=one_off_costs(ranks),
    )


def _ranks_of_processes(ranks: Ranks) -> dict[int, int]:
    """Return the rank of each process, where the run has several."""
    processes = [part.processes for part in ranks]
    pairs = {
        int(process): int(rank)
        for own in processes
        for process, rank in zip(own["process"].tolist(), own["rank"].tolist(), strict=True)
        if rank != ABSENT
    }
    return pairs if len(set(pairs.values())) > 1 else {}


def _verdict(document: Document) -> Verdict:
    sentences = (*_where(document), *_steadiness(document.results.get("steps")))
    return Verdict(sentences, _next_command(document))


def _where(document: Document) -> Iterable[Note]:
    """Return where the time of a step goes, on the devices or else on the host."""
    steps, breakdown = document.results.get("steps"), document.results.get("breakdown")
    start, values = _subject(document, steps)
    if breakdown is not None:
        shares = _device_shares(breakdown)
        devices = len(breakdown.table)
        of = " (mean of {devices:count} devices)" if devices > 1 else ""
        yield from _with_shares(start, shares, of, {**values, "devices": devices})
        return
    phases = document.results.get("phases")
    if phases is not None and len(phases.table):
        yield from _with_shares(start, _host_shares(phases), " on the host", values)


def _subject(document: Document, steps: Result | None) -> tuple[str, dict[str, Any]]:
    """Return what the shares are of: of a step where the window is made of them, else of it."""
    if steps is None or "median_ns" not in steps.scalars or not _are_the_window(document, steps):
        return "The window", {}
    if steps.scalars["is_pattern"]:
        return "A turn of the repeating pattern, {step:ns},", {"step": steps.scalars["median_ns"]}
    kind = "step" if steps.scalars["confidence_ratio"] == 1 else "step (inferred)"
    return f"A {kind} of {{step:ns}}", {"step": steps.scalars["median_ns"]}


def _are_the_window(document: Document, steps: Result) -> bool:
    """Return whether the steady steps of all ranks together fill the window."""
    table = steps.table[~steps.table["is_warmup"]]
    starts = table["at_ns"].to_numpy(np.int64)
    covered = Intervals.union_of(starts, starts + table["duration_ns"].to_numpy(np.int64))
    return covered.total_ns >= _FILLED * document.selection.window.duration_ns


def _device_shares(breakdown: Result) -> dict[str, float]:
    total = breakdown.to_frame("total")
    if total.empty or not total["duration_ns"].iloc[0]:
        return {}
    row = total.iloc[0]
    names = {part: _PART_NAMES.get(part, part.replace("_", " ")) for part in PARTS}
    return {name: row[f"{part}_ns"] / row["duration_ns"] for part, name in names.items()}


def _host_shares(phases: Result) -> dict[str, float]:
    first = phases.table[phases.table["process"] == phases.table["process"].iloc[0]]
    return dict(zip(first["phase"], first["host_ratio"], strict=True))


def _with_shares(
    start: str, shares: Mapping[str, float], end: str, values: Mapping[str, Any]
) -> Iterable[Note]:
    """Return a sentence with the shares that make up at least 1 %, the largest first."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    shown = [(name, share) for name, share in ranked if share >= _LEAST_SHARE]
    if not shown:
        return
    words = ", ".join(f"{{share{i}:ratio}} {{part{i}}}" for i in range(len(shown)))
    numbered: dict[str, Any] = {}
    for i, (name, share) in enumerate(shown):
        numbered |= {f"share{i}": float(share), f"part{i}": name}
    yield Note.of(f"{start} goes to {words}{end}.", **values, **numbered)


def _steadiness(steps: Result | None) -> Iterable[Note]:
    if steps is None or steps.scalars.get("steady_count", 0) < 2:
        return
    scalars, table = steps.scalars, steps.table
    word = "steady" if scalars["spread_ratio"] < _STEADY else "uneven"
    processes = int(table["process"].nunique())
    what = "turns" if scalars["is_pattern"] else "steps"
    text = f"{{n:count}} {what}" + (" of {processes:count} processes" if processes > 1 else "")
    text += f", {word}: 80 % of them take {{p10:ns}} to {{p90:ns}}"
    slow = int((table["excess_ns"] > 0).sum())
    text += "; {slow:count} of them slow" if slow else ""
    text += "; {rate:number} samples/s" if "mean_samples_per_s" in scalars else ""
    yield Note.of(
        f"{text}.",
        n=scalars["steady_count"],
        processes=processes,
        p10=scalars["p10_ns"],
        p90=scalars["p90_ns"],
        slow=slow,
        rate=scalars.get("mean_samples_per_s"),
    )


def _next_command(document: Document) -> str:
    findings = document.results.get("findings")
    if findings is not None and len(findings.table):
        first = findings.table.iloc[0]
        # A window that holds one gap shows nothing in a table of steps.
        has_window = first["window"] and first["show"] != "steps"
        window = f" --window '{first['window']}'" if has_window else ""
        return f"traceprof show {first['show']} TRACE{window}"
    if document.recorded & set(DEVICE_TABLES):
        return "traceprof show kernels TRACE"
    name = "ops" if "host_ops" in document.recorded else "ranges"
    return f"traceprof show {name} TRACE"

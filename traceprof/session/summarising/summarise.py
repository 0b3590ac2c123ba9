"""From the traces of a run to what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from traceprof.measures.composition import place_of_work
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.measures.workload import workload
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.summary import SUMMARY, SourceFile, Summary
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES
from traceprof.session.answer import PAGE
from traceprof.session.run import Run
from traceprof.session.summarising.bounded import bounded_makeup, bounded_result
from traceprof.session.summarising.course import course_of_run
from traceprof.session.summarising.environment import environment_of
from traceprof.session.summarising.lives import with_lives
from traceprof.session.summarising.makeup import makeup_of_run
from traceprof.session.summarising.measures import measures_of_run
from traceprof.session.summarising.steps import rank_numbers, steps_of_run
from traceprof.store.summaries import masked_run

__all__ = ["KEPT", "summarise"]

KEPT: Final = (*PAGE, "classes", "layers", "ranks", "callers")
"""The analyses whose results are kept: those of the page, and what runs are compared by."""


def summarise(run: Run, *, name: str = "", labels: Mapping[str, str] | None = None) -> Summary:
    """Return what is kept of ``run``, about the window that it is seen through.

    ``name`` is what the user calls it; left out, that of its file or folder. Epochs, metrics and
    events are those of the whole recording, and so are the steps unless a window was chosen.

    Raises:
        TraceError: it cannot be read.
        UsageError: the window is none of this run.
    """
    every = run.within("all").of_ranks().whole
    answers = run.answers(KEPT)
    selection = run.selection
    ranks = run.of_ranks()
    results = {own: bounded_result(result) for own, result in answers.results.items()}
    is_default = selection.window == run.within(None).selection.window
    steps = steps_of_run(every if is_default else ranks)
    tables = {"steps": steps, **course_of_run(every)}
    devices: int | None = None
    notes: tuple[Note, ...] = selection.notes
    if every.recorded & set(DEVICE_TABLES):
        devices, made, doubts = makeup_of_run(ranks)
        tables["makeup"] = bounded_makeup(made.merge(place_of_work(ranks), how="left"))
        notes += doubts
    numbers = rank_numbers(every)
    if numbers.are_guessed:
        notes += (_GUESSED,)
    steps_count = _steps_in(ranks)
    tables["measures"] = measures_of_run(ranks, answers.results, tables, steps_count)
    info = every.info
    environment = environment_of(every)
    command = environment.pop("command", "")
    found = Summary(
        name=name or Path(info.path).name or info.path,
        origin=info.format,
        command=command,
        workload=workload(every).kind,
        started_utc_ns=_start(every),
        environment=environment,
        labels=dict(labels or {}),
        sources=tuple(_sources(every)),
        window=selection.label,
        window_ns=selection.window.duration_ns,
        steps_count=steps_count or None,
        devices_count=devices,
        tables={own: SUMMARY.table(own).frame(table) for own, table in tables.items()},
        results=results,
        notes=notes,
    )
    return masked_run(with_lives(found, run.paths, run.opening.life))


_GUESSED: Final = Note(
    "no file says the ranks: processes are numbered in the order of their identifiers"
)


def _steps_in(ranks: Ranks) -> int:
    """Return how many steps of a rank lie in the window, of the rank with the most."""
    # Numbers may begin anew in every epoch: rows count.
    counts = steps_of_ranks(ranks).table.groupby("process").size()
    return int(counts.max()) if len(counts) else 0


def _start(ranks: Ranks) -> int | None:
    """Return when the recording starts, in ns since 1970; None where it is not known."""
    zero = ranks.info.utc_epoch_ns
    if zero is None:
        zero = next((p.info.utc_epoch_ns for p in ranks if p.info.utc_epoch_ns is not None), None)
    return None if zero is None else zero + ranks.span.start_ns


def _sources(ranks: Ranks) -> Iterator[SourceFile]:
    for part in ranks.whole.parts:
        path = Path(part.info.path)
        numbers = part.processes["rank"].to_numpy(np.int64)
        known = tuple(sorted(set(numbers[numbers != ABSENT].tolist())))
        yield SourceFile(str(path), part.info.format, _size(path), known)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None

"""Opening what the user named: one trace, or a run of several, and what he said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.formats.runs.files import is_run
from traceprof.measures.steps.find import decide_steps, mark_steps
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.trace import Trace
from traceprof.session.opened_files import open_files, place_files
from traceprof.session.options import Align, Opening

__all__ = ["Align", "Opening", "open_ranks"]

_OF_RUNS: Final = frozenset({"processes", "environment", "devices"})
"""The tables that tell which file is which rank, and which device is which."""
_TIED_BY: Final = frozenset({"kernels", "api_calls", "ranges", "collectives", "processes"})
"""The tables that collectives, which tie the clocks of files, are found in."""
_TIMES_OF_STEPS: Final = frozenset({"ranges"})


def open_ranks(
    paths: Sequence[Path | str],
    opening: Opening,
    tables: frozenset[str] | None = None,
    *,
    only_steps: bool = False,
) -> tuple[Ranks, tuple[Note, ...]]:
    """Return the ranks in ``paths`` on one clock, placed as ``opening`` says, and remarks on that.

    ``tables`` are those that are read, None for all; of several files also those that tie clocks.
    ``only_steps``, for a single file alone: of ranges those that can be steps are enough.

    Raises:
        TraceError: nothing is found, or what is found cannot be read.
        UsageError: an option makes no sense.
    """
    is_several = is_run(paths)
    is_tied = is_several and opening.align in (Align.AUTO, Align.COLLECTIVES)
    if tables is not None:
        tables |= _TIMES_OF_STEPS if opening.step_ranges is not None else frozenset()
        tables |= (_OF_RUNS if is_several else frozenset()) | (_TIED_BY if is_tied else frozenset())
    only_steps &= not is_several and opening.step_ranges is None
    files = open_files(paths, opening, tables, only_steps=only_steps)
    ranks = place_files(files, opening)
    notes: tuple[Note, ...] = ()
    if len(ranks) > 1 and is_tied:
        ranks, notes = _aligned(ranks)
    ranks = _with_steps(ranks, opening)
    return replace(ranks, info=replace(ranks.info, path=" ".join(map(str, paths)))), notes


def _with_steps(ranks: Ranks, opening: Opening) -> Ranks:
    warmup = opening.warmup_steps
    if warmup is not None:
        ranks = ranks.map(Trace.with_warmup, warmup)
    if opening.step_ranges is not None:
        return mark_steps(ranks, opening.step_ranges)
    return decide_steps(ranks)


def _aligned(ranks: Ranks) -> tuple[Ranks, tuple[Note, ...]]:
    # Of one file there is nothing to align, and what aligns takes long to import.
    from traceprof.measures.collectives.clocks import align_clocks, find_alignment

    alignment = find_alignment(ranks)
    if len(alignment.corrections) < 2:
        note = Note("no collectives are shared: the clocks are aligned by wall time")
        return ranks, (note,)
    aligned = align_clocks(ranks, alignment)
    # Each is said once: of ranks that nothing ties the aligned run warns.
    about = [note for note in alignment.notes if note.text not in aligned.info.warnings]
    return aligned, tuple(Note(f"clocks aligned, {note.text}", note.values) for note in about)

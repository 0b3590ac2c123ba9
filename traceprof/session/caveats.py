"""The caveats of every result of a run: warnings of readers, and missing GPU activity.

Only this module decides on caveats. They describe the whole recording, whatever the window, and are
part of every result in every output format: a table from a truncated file looks like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from traceprof.errors import NotRecordedError, TraceError
from traceprof.measures.analyses import STEP_TABLES
from traceprof.measures.lost_work import depends_on_power, is_incompleteness_warning, missing_work
from traceprof.measures.steps.thin import may_be_thin
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.trace import DEVICE_TABLES, MAX_SIMILAR_WARNINGS, merge_similar_warnings
from traceprof.session.kept_answers import KeptAnswers
from traceprof.session.run import Run
from traceprof.session.selection import Selection

INCOMPLETE: Final = "incomplete: "
"""The prefix of a caveat about missing data."""
WARNING: Final = "warning: "
_NOT_CHECKED: Final = Note(
    "Not checked for missing GPU activity, because the file is large. Run `traceprof show quality`."
)
_LACKS_WORK: Final = "GPU activity is missing (run `traceprof show quality`)"
_LAUNCHES: Final = frozenset({"api_calls", *DEVICE_TABLES})
_KEPT: Final = ("missing",)


@dataclass(frozen=True, slots=True)
class Caveats:
    """``warnings`` are the warnings of readers. ``missing`` is the GPU activity that is missing.

    ``is_checked``: traceprof checked for missing GPU activity.
    """

    warnings: tuple[str, ...] = ()
    missing: tuple[Note, ...] = ()
    is_checked: bool = True

    @property
    def notes(self) -> tuple[Note, ...]:
        """All caveats as notes; a note on missing data begins with `INCOMPLETE`."""
        return (
            *(() if self.is_checked else (_NOT_CHECKED,)),
            *(Note.of(f"{INCOMPLETE}{note.text}", **note.values) for note in self.missing),
            *(
                Note.of(
                    f"{INCOMPLETE if is_incompleteness_warning(text) else WARNING}{{said}}",
                    said=text,
                )
                for text in (
                    merge_similar_warnings(self.warnings)
                    if len(self.warnings) > MAX_SIMILAR_WARNINGS
                    else self.warnings
                )
            ),
        )


def is_incomplete(note: Note) -> bool:
    """Return whether a note is about missing data."""
    return note.text.startswith(INCOMPLETE)


def is_caveat(note: Note) -> bool:
    """Return whether a note that is stored with a run is one of its caveats."""
    return note.text.startswith((INCOMPLETE, WARNING))


def caveats_of_run(name: str, notes: Iterable[Note]) -> Iterator[Note]:
    """Yield the caveats in the stored ``notes`` of the run ``name``, each with that name."""
    for note in filter(is_caveat, notes):
        kind = INCOMPLETE if is_incomplete(note) else WARNING
        yield Note.of(f"{kind}{{of}}: {note.text.removeprefix(kind)}", of=name, **note.values)


def with_caveats(text: str, notes: Iterable[Note]) -> str:
    """Return ``text``, followed by the caveats in ``notes``."""
    found = dict.fromkeys(
        f"{INCOMPLETE if is_incomplete(note) else WARNING}{note.values.get('said', _LACKS_WORK)}"
        for note in filter(is_caveat, notes)
    )
    return "; ".join((text, *found))


def refused(error: NotRecordedError, notes: Iterable[Note]) -> NotRecordedError:
    """Return ``error`` with the caveats in ``notes``, which may be the reason for the error."""
    refusal = NotRecordedError(with_caveats(str(error), notes))
    refusal.has_caveats = True
    return refusal


_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def refuses_with_caveats(
    answer: Callable[Concatenate[Run, _Arguments], _Answer],
) -> Callable[Concatenate[Run, _Arguments], _Answer]:
    """Decorate a function on a run so that its NotRecordedErrors contain the caveats."""

    @wraps(answer)
    def answered(run: Run, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        try:
            return answer(run, *args, **kwargs)
        except NotRecordedError as error:
            if error.has_caveats:
                raise
            notes: tuple[Note, ...] = ()
            with suppress(TraceError):  # report the refusal, not another error of the file
                notes = caveats_of_stream(run.within("all")).notes
            raise refused(error, notes) from error

    return answered


@refuses_with_caveats
def selected(run: Run) -> Selection:
    """Return the window of ``run``.

    Raises:
        NotRecordedError: the trace does not contain what the window names.
        UsageError: the window is invalid for this run.
    """
    return run.selection


def caveats(run: Run) -> Caveats:
    """Return the caveats of every result of ``run``.

    Raises:
        TraceError: a file cannot be read.
    """
    missing = missing_in(run)
    return Caveats(run.of_ranks(frozenset()).info.warnings, missing)


def caveats_of_stream(run: Run) -> Caveats:
    """Return the caveats of ``run`` for callers that stream rows.

    For a large file, missing GPU activity is reported only if the cache has it. A check would read
    whole tables.
    """
    kept_notes: tuple[Note, ...] | None = KeptAnswers(run.cache, None).value(_KEPT)
    if kept_notes is None and not run.is_large:
        return caveats(run)
    return Caveats(
        run.of_ranks(frozenset()).info.warnings, kept_notes or (), kept_notes is not None
    )


def missing_in(run: Run, next_tables: frozenset[str] = frozenset()) -> tuple[Note, ...]:
    """Return the GPU activity that is missing.

    ``next_tables`` are tables that the caller reads next; they are read in the same pass.
    """
    kept = KeptAnswers(run.cache, None)
    kept_notes: tuple[Note, ...] | None = kept.value(_KEPT)
    if kept_notes is not None:
        return kept_notes
    if run.window not in (None, "all") and run.is_read_in_parts and run.is_large:
        return missing_work(run.of_ranks(_LAUNCHES | next_tables))
    whole_run = run.within(run.window if run.window is None else "all")
    # In a large file, the ranges of steps and passes are usually enough.
    tables = (STEP_TABLES - {"ranges"} if run.is_large else STEP_TABLES) | next_tables
    ranks = whole_run.of_ranks(tables)
    if "ranges" not in tables and may_be_thin(ranks.whole):
        ranks = whole_run.of_ranks(STEP_TABLES | next_tables)
    if "samples" in ranks.recorded and depends_on_power(ranks):
        ranks = whole_run.of_ranks(tables | {"samples", "devices"})
    found = missing_work(ranks.whole)
    kept.keep({_KEPT: found})
    return found


def caveats_of(ranks: Ranks) -> Caveats:
    """Return the caveats of ranks of which all tables were read."""
    return Caveats(ranks.info.warnings, missing_work(ranks.whole))

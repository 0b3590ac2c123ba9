"""What must be read with every result of a run: what readers warned of, and what is missing.

It is decided here alone, of the whole recording whatever the window, and goes with every result
into every form: a table that is cut off by its file looks like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from traceprof.errors import NotRecordedError, TraceError
from traceprof.measures.analyses import STEP_TABLES
from traceprof.measures.lost_work import depends_on_power, missing_work, says_incomplete
from traceprof.measures.steps.thin import may_be_thin
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.trace import DEVICE_TABLES, MOST_ALIKE, told_once
from traceprof.session.kept_answers import KeptAnswers
from traceprof.session.run import Run
from traceprof.session.selection import Selection

INCOMPLETE: Final = "incomplete: "
"""How a sentence begins that says what is missing."""
WARNING: Final = "warning: "
_NOT_CHECKED: Final = Note(
    "Not checked for missing GPU activity, because the file is large. Run `traceprof show quality`."
)
_LACKS_WORK: Final = "GPU activity is missing (run `traceprof show quality`)"
_LAUNCHES: Final = frozenset({"api_calls", *DEVICE_TABLES})
_KEPT: Final = ("missing",)


@dataclass(frozen=True, slots=True)
class Doubts:
    """``warnings`` are those of readers, ``missing`` is the work that the recording lacks.

    ``is_checked``: it was looked whether it lacks any.
    """

    warnings: tuple[str, ...] = ()
    missing: tuple[Note, ...] = ()
    is_checked: bool = True

    @property
    def notes(self) -> tuple[Note, ...]:
        """All of it in sentences; what says that something is missing begins with `INCOMPLETE`."""
        return (
            *(() if self.is_checked else (_NOT_CHECKED,)),
            *(Note.of(f"{INCOMPLETE}{note.text}", **note.values) for note in self.missing),
            *(
                Note.of(f"{INCOMPLETE if says_incomplete(text) else WARNING}{{said}}", said=text)
                for text in (
                    told_once(self.warnings) if len(self.warnings) > MOST_ALIKE else self.warnings
                )
            ),
        )


def is_incomplete(note: Note) -> bool:
    """Return whether a note says that a part of what happened is missing."""
    return note.text.startswith(INCOMPLETE)


def is_doubt(note: Note) -> bool:
    """Return whether a note, among others that are kept of a run, is one of `Doubts`."""
    return note.text.startswith((INCOMPLETE, WARNING))


def doubts_of_run(name: str, notes: Iterable[Note]) -> Iterator[Note]:
    """Yield, of what is kept of the run called ``name``, the doubts, each with that name."""
    for note in filter(is_doubt, notes):
        kind = INCOMPLETE if is_incomplete(note) else WARNING
        yield Note.of(f"{kind}{{of}}: {note.text.removeprefix(kind)}", of=name, **note.values)


def with_doubts(text: str, notes: Iterable[Note]) -> str:
    """Return ``text``, followed by those of ``notes`` that are doubts."""
    found = dict.fromkeys(
        f"{INCOMPLETE if is_incomplete(note) else WARNING}{note.values.get('said', _LACKS_WORK)}"
        for note in filter(is_doubt, notes)
    )
    return "; ".join((text, *found))


def refused(error: NotRecordedError, notes: Iterable[Note]) -> NotRecordedError:
    """Return ``error`` with those of ``notes`` that are doubts: they may be why it is raised."""
    refusal = NotRecordedError(with_doubts(str(error), notes))
    refusal.has_doubts = True
    return refusal


_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def refuses_with_doubts(
    answer: Callable[Concatenate[Run, _Arguments], _Answer],
) -> Callable[Concatenate[Run, _Arguments], _Answer]:
    """Let a function that answers about a run say with a refusal what is in doubt of the run."""

    @wraps(answer)
    def answered(run: Run, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        try:
            return answer(run, *args, **kwargs)
        except NotRecordedError as error:
            if error.has_doubts:
                raise
            notes: tuple[Note, ...] = ()
            with suppress(TraceError):  # what else is wrong with the file is not asked for here
                notes = doubts_of_stream(run.within("all")).notes
            raise refused(error, notes) from error

    return answered


@refuses_with_doubts
def selected(run: Run) -> Selection:
    """Return the window of ``run``.

    Raises:
        NotRecordedError: what the window names is not known.
        UsageError: the window is none of this run.
    """
    return run.selection


def doubts(run: Run) -> Doubts:
    """Return what must be read with every result of ``run``.

    Raises:
        TraceError: it cannot be read.
    """
    missing = missing_in(run)
    return Doubts(run.of_ranks(frozenset()).info.warnings, missing)


def doubts_of_stream(run: Run) -> Doubts:
    """Return the same for who passes rows on as they come: of a large file, if it is known by now.

    Its tables would have to be read whole for it.
    """
    known: tuple[Note, ...] | None = KeptAnswers(run.cache, None).value(_KEPT)
    if known is None and not run.is_large:
        return doubts(run)
    return Doubts(run.of_ranks(frozenset()).info.warnings, known or (), known is not None)


def missing_in(run: Run, beside: frozenset[str] = frozenset()) -> tuple[Note, ...]:
    """Return what work the recording lacks; ``beside`` are tables that are asked for next."""
    kept = KeptAnswers(run.cache, None)
    known: tuple[Note, ...] | None = kept.value(_KEPT)
    if known is not None:
        return known
    if run.window not in (None, "all") and run.is_read_in_parts and run.is_large:
        return missing_work(run.of_ranks(_LAUNCHES | beside))
    whole = run.within(run.window if run.window is None else "all")
    # Of a large file the ranges of steps and passes are enough, most often.
    tables = (STEP_TABLES - {"ranges"} if run.is_large else STEP_TABLES) | beside
    ranks = whole.of_ranks(tables)
    if "ranges" not in tables and may_be_thin(ranks.whole):
        ranks = whole.of_ranks(STEP_TABLES | beside)
    if "samples" in ranks.recorded and depends_on_power(ranks):
        ranks = whole.of_ranks(tables | {"samples", "devices"})
    found = missing_work(ranks.whole)
    kept.keep({_KEPT: found})
    return found


def doubts_of(ranks: Ranks) -> Doubts:
    """Return the same of ranks of which all tables were read."""
    return Doubts(ranks.info.warnings, missing_work(ranks.whole))

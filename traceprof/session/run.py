"""An opened run: what is asked of it, in which window, and the answers.

The one way from files to results, for commands, the viewer and Python alike. Nothing is read
before something is asked; then only the tables that the answer needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from traceprof.formats import reads_parts
from traceprof.formats.contract import LAUNCHING_TABLES, WINDOWED_TABLES
from traceprof.formats.runs.files import is_run
from traceprof.measures import FORMER_NAMES, analysis_names, load_analysis
from traceprof.measures.analyses import STEP_TABLES, run_analyses
from traceprof.measures.steps.find import has_named_steps
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result
from traceprof.model.tables import TABLES
from traceprof.model.trace import DEVICE_TABLES, RecordedBy, Trace
from traceprof.processes import PROGRESS
from traceprof.session.opening import open_ranks, read_more
from traceprof.session.options import Opening
from traceprof.session.run_cache import RunCache
from traceprof.session.selection import Selection, select

_EVERYTHING: Final = frozenset(name for name, table in TABLES.items() if not table.detail_of)
_MAX_WINDOWS: Final = 4
_MAX_CUT_RATIO: Final = 0.5
LARGE_BYTES: Final = 64 << 20
"""Of a larger file less is read, and of a window of it its launches alone are looked at."""
SELF_DESCRIPTION: Final = frozenset(n for n, table in TABLES.items() if not table.has_times)
"""What a file says of itself: it is read once, whatever else is read of it."""
_CUT_BY_READERS: Final = frozenset({*WINDOWED_TABLES, *LAUNCHING_TABLES})
"""The tables of which a reader brings the rows in a window alone; all others come whole."""
_STEPS: Final = frozenset({"ranges"})
"""The tables that named steps are found in."""
_READ_WITH_RANGES: Final = frozenset({"ranges", "marks", "collectives"})
"""The tables whose rows are read with the ranges, or made of them."""
_TABLES_BY_WORD: Final[Mapping[str, frozenset[str]]] = {
    "step": STEP_TABLES,
    "pattern": STEP_TABLES,
    "steady": STEP_TABLES,
    "range": frozenset({"ranges"}),
    "active": frozenset({"kernels", "copies"}),
    "&": frozenset({"ranges"}),
}
"""The tables that tell a window, by the words in it."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The results by name, and why those that are missing could not be had."""

    results: Mapping[str, Result]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Part:
    """A run cut to a window, with some tables; ``is_alone``: nothing else of them was read."""

    selection: Selection
    tables: frozenset[str]
    ranks: Ranks
    is_alone: bool = False


@dataclass
class _Source:
    """The files of a run, read as far as was needed so far."""

    paths: tuple[Path | str, ...]
    opening: Opening
    tables: frozenset[str] = frozenset()
    ranks: Ranks | None = None
    notes: tuple[Note, ...] = ()
    knows_steps: bool = False
    windows: dict[str | None, _Part] = field(default_factory=dict)
    cache: RunCache | None = None

    @cached_property
    def reads_parts(self) -> bool:
        """Whether to read a part costs less than to read all: not so for several files."""
        return not is_run(self.paths) and reads_parts(self.paths[0])

    @property
    def is_large(self) -> bool:
        """Whether one of the files is so large that it is worth to read less of it."""
        files = (path for path in map(Path, self.paths) if path.is_file())
        return any(path.stat().st_size > LARGE_BYTES for path in files)

    def whole(self, tables: frozenset[str]) -> Ranks:
        """Return the whole run with at least ``tables`` read."""
        if self.ranks is None or not tables <= self.tables:
            if self.ranks is not None and self.reads_parts:
                self.ranks = read_more(self.ranks, self.opening, tables - self.tables)
            else:
                tables |= frozenset() if self.ranks is None else self.tables | _EVERYTHING
                self.ranks, self.notes = open_ranks(self.paths, self.opening, tables)
            self.tables |= tables
            self.windows = {}
        return self.ranks

    def selection(self, text: str | None) -> Selection:
        """Return the window that ``text`` means."""
        if text in self.windows:
            return self.windows[text].selection
        first = SELF_DESCRIPTION if self.ranks is None else frozenset[str]()
        whole = self.whole(first | self._tables_of_window(text))
        found = select(whole, text)
        return replace(found, notes=(*found.notes, *self.notes))

    def within(self, text: str | None, tables: frozenset[str], uncut: frozenset[str]) -> Ranks:
        """Return the run cut to the window that ``text`` means, with ``tables`` read.

        Of ``uncut`` among them rows outside the window are needed, too.
        """
        known = self.windows.get(text)
        if known and tables <= known.tables and not (known.is_alone and uncut):
            return known.ranks
        if self.ranks is None:
            self._read_first(text, tables, is_cut=not uncut)
        has_step_ranges = self.knows_steps or bool(tables & _STEPS)
        if not tables.isdisjoint(DEVICE_TABLES) and not has_step_ranges and self._has_windows:
            return self.within(text, tables | _STEPS, uncut)
        selection, part, ranks = self.selection(text), None, self.ranks
        # To read the window alone is worth it of a small part of one file that was not read before.
        if (
            ranks is not None
            and not tables <= self.tables
            and self.tables >= SELF_DESCRIPTION
            and not uncut
            and self.reads_parts
            and selection.window.duration_ns < _MAX_CUT_RATIO * ranks.span.duration_ns
        ):
            alone = read_more(ranks, self.opening, tables - self.tables, selection.window)
            self.warn(alone.info.warnings)
            if tables.isdisjoint(_STEPS) or has_named_steps(alone):
                part = _Part(selection, tables, alone.within(selection.window), is_alone=True)
        if part is None:
            whole = self.whole(tables | self._tables_of_window(text))
            part = _Part(selection, self.tables, whole.within(selection.window))
        while len(self.windows) >= _MAX_WINDOWS:
            del self.windows[next(iter(self.windows))]
        self.windows[text] = part
        return part.ranks

    def warn(self, warnings: Iterable[str]) -> None:
        """Keep what readers warned of as they read a part, for all that is said of the run."""
        known = () if self.ranks is None else self.ranks.info.warnings
        new = [text for text in warnings if text not in known]
        if new and self.ranks is not None:
            self.ranks, self.windows = self.ranks.with_warnings(*new), {}

    @property
    def _has_windows(self) -> bool:
        """Whether ranges may tell when devices were recorded at all."""
        return self.ranks is not None and any(
            part.info.recorded_by is RecordedBy.OWN for part in self.ranks.whole
        )

    def _read_first(self, text: str | None, tables: frozenset[str], *, is_cut: bool) -> None:
        """Read what it takes to know the window ``text``, and what it makes sense to read with it.

        To read the window alone may be enough, and less; where it takes the device work to know
        what it is, all is read at once. Steps may be found in some of the ranges, which do not
        count as read; where there are none it takes all ranges to know the window.
        """
        is_whole = text in (None, "all")
        is_known_from_ranges = not is_whole and self._tables_of_window(text) <= _STEPS
        is_enough = is_known_from_ranges and is_cut and self.reads_parts
        first = (SELF_DESCRIPTION if is_enough else tables) | self._tables_of_window(text)
        reads_only_steps = is_whole and self.is_large and self.reads_parts
        if (
            reads_only_steps
            and first >= STEP_TABLES - _STEPS
            and tables.isdisjoint(_READ_WITH_RANGES)
        ):
            self.tables, found = first - _STEPS, first | _STEPS
            self.ranks, self.notes = open_ranks(self.paths, self.opening, found, only_steps=True)
            self.knows_steps = has_named_steps(self.ranks)
            if self.knows_steps:
                return
        needs_steps = is_whole and not tables.isdisjoint(DEVICE_TABLES)
        self.whole(first | (_STEPS if needs_steps else frozenset()))

    def _tables_of_window(self, text: str | None) -> frozenset[str]:
        """Return the tables that must be read to tell what the window ``text`` is."""
        if text is None:
            return STEP_TABLES - _STEPS if self.knows_steps else STEP_TABLES
        needed = (tables for word, tables in _TABLES_BY_WORD.items() if word in text)
        return frozenset[str]().union(*needed)


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A trace, or a run of several ranks, seen through a window.

    >>> run = traceprof.open("run/")
    >>> run.within("step:10..20").breakdown().to_frame()

    Every analysis is a method of its name (``step-phases`` is ``step_phases``) that returns a
    Result. Without a window it is the steady steps, else the time in which devices worked.
    """

    _source: _Source
    window: str | None = None
    """The window as it was typed; None is the default."""

    @classmethod
    def over(cls, run: Run) -> Self:
        """Return ``run`` as one of this class: both share what was read."""
        return cls(run._source, run.window)

    def within(self, window: str | None) -> Self:
        """Return the same run seen through another window, as ``--window`` takes it."""
        return type(self)(self._source, window)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, directories and patterns that were named."""
        return tuple(map(Path, self._source.paths))

    @property
    def is_read(self) -> bool:
        """Whether anything was read so far."""
        return self._source.ranks is not None

    @property
    def is_read_in_parts(self) -> bool:
        """Whether to read a part costs less than to read all: so of one file, not read so far."""
        source = self._source
        return (source.ranks is None or source.tables < _EVERYTHING) and source.reads_parts

    def warn(self, warnings: Iterable[str]) -> None:
        """Keep what readers warned of, who read more of the files elsewhere."""
        self._source.warn(warnings)

    @property
    def is_large(self) -> bool:
        """Whether one of the files is large."""
        return self._source.is_large

    @property
    def opening(self) -> Opening:
        """What the user said of how to read."""
        return self._source.opening

    @property
    def cache(self) -> RunCache:
        """What is kept of answers about the files; nothing where they are traces in memory."""
        source = self._source
        if source.cache is None:
            source.cache = RunCache.of(source.paths, source.opening)
        return source.cache

    @property
    def selection(self) -> Selection:
        """The window, what it is called and what must be known of it.

        Raises:
            UsageError: the window is not one, or not of this run.
        """
        return self._source.selection(self.window)

    def result(self, name: str) -> Result:
        """Return the result of the analysis called ``name``.

        Raises:
            UsageError: there is no such analysis, or the window is none of this run.
            NotRecordedError: the trace lacks the data.
        """
        answers = self.answers([name], strict=True)
        return answers.results[load_analysis(name).name]

    def answers(self, names: Sequence[str], *, strict: bool = False) -> Answers:
        """Return the results of several analyses as far as the trace has their data.

        Raises:
            NotRecordedError: ``strict``, and the trace lacks the data of one of them.
        """
        analyses, tables = [load_analysis(name) for name in names], tables_of(names)
        whole = frozenset[str]().union(*(analysis.whole_tables for analysis in analyses))
        ranks = self.of_ranks(tables, whole & tables)
        results: dict[str, Result] = {}
        missing: dict[str, str] = {}
        PROGRESS.done, PROGRESS.total = 0, sum(analysis.n_parts for analysis in analyses)
        for analysis, found in zip(analyses, run_analyses(analyses, ranks), strict=True):
            if isinstance(found, Result):
                results[analysis.name] = found
            elif strict:
                raise found
            else:
                missing[analysis.name] = str(found)
        return Answers(results, missing)

    def of_ranks(
        self, tables: frozenset[str] = _EVERYTHING, whole: frozenset[str] = frozenset()
    ) -> Ranks:
        """Return the traces of the ranks, cut to the window, with ``tables`` read.

        Of those that ``whole`` names the uncut traces have every row, wherever the window is.
        """
        return self._source.within(self.window, tables, whole & _CUT_BY_READERS)

    def trace(self, tables: frozenset[str] = _EVERYTHING) -> Trace:
        """Return all ranks as one Trace, cut to the window."""
        return self.of_ranks(tables).merged()

    if not TYPE_CHECKING:  # else a name that is none would be no error of type checkers

        def __getattr__(self, name: str) -> Callable[[], Result]:
            self._check_name(name)
            return lambda: self.result(name.replace("_", "-"))

    def _check_name(self, name: str) -> None:
        """Check that an analysis is called ``name``, written as Python needs it."""
        if isinstance(getattr(type(self), name, None), property):
            object.__getattribute__(self, name)  # it failed: for its own reason
        if name.replace("_", "-") not in {*analysis_names(), *FORMER_NAMES}:
            known = ", ".join(sorted(analysis_names()))
            raise AttributeError(f"a run has no attribute {name!r}; analyses: {known}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *(name.replace("-", "_") for name in analysis_names())]

    def __repr__(self) -> str:
        return f"<traceprof run {', '.join(f'{name} {value}' for name, value in self._known())}>"

    def _known(self) -> Iterator[tuple[str, str]]:
        """Yield what is known of the run by now, in a few words each: nothing is read for it."""
        source, part = self._source, self._source.windows.get(self.window)
        yield "of", " ".join(map(str, source.paths))
        if source.ranks is not None:
            yield "files", str(len(source.ranks))
        if source.ranks is not None and "devices" in source.tables:
            used = (int(part.devices["used"].sum()) for part in source.ranks)
            yield "devices", str(sum(used))
        yield "window", (self.window or "default") if part is None else part.selection.label


def tables_of(names: Sequence[str]) -> frozenset[str]:
    """Return the tables that analyses of these ``names`` read."""
    analyses = [load_analysis(name) for name in names]
    columns = {c.name for one in analyses for table in one.spec.tables for c in table}
    # What names processes is read where there is a column of them.
    named = frozenset({"processes"} if "process" in columns else ())
    return named.union(*(analysis.tables for analysis in analyses))


def open_run(paths: Sequence[Path | str], opening: Opening | None = None) -> Run:
    """Return the run in ``paths``: a file, or several files, a directory, a pattern, a manifest.

    Nothing is read yet; what cannot be read is found out with the first question.
    """
    return Run(_Source(tuple(paths), opening or Opening()))


def run_of(ranks: Ranks) -> Run:
    """Return traces that are in memory already as a run."""
    opening = Opening(is_cached=False)
    source = _Source((ranks.info.path,), opening, frozenset(TABLES), ranks.whole)
    return Run(source)

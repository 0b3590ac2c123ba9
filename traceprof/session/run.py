"""An open run: answers questions about a window and reads only the tables that it needs.

All commands, the viewer, and the Python API get results from files through this module. Nothing is
read before the first question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, cast

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
from traceprof.session.opening import TIED_BY, of_each_rank, open_ranks, read_more
from traceprof.session.options import Opening
from traceprof.session.run_cache import RunCache
from traceprof.session.selection import Selection, select

_EVERYTHING: Final = frozenset(name for name, table in TABLES.items() if not table.detail_of)
_MAX_WINDOWS: Final = 4
_MAX_CUT_RATIO: Final = 0.5
LARGE_BYTES: Final = 64 << 20
"""Above this size, less of a file is read. For a window, only its launches are checked."""
SELF_DESCRIPTION: Final = frozenset(n for n, table in TABLES.items() if not table.has_times)
"""The tables that describe a file. They are read once, whatever other tables are read."""
_CUT_BY_READERS: Final = frozenset({*WINDOWED_TABLES, *LAUNCHING_TABLES})
"""The tables of which a reader can read only the rows in a window; others are read whole."""
_STEPS: Final = frozenset({"ranges"})
"""The tables that contain marked steps."""
_OPERATORS: Final = frozenset({"host_ops"})
_OF_GPU: Final = frozenset({*DEVICE_TABLES, "api_calls"})
"""Without these tables, `_OPERATORS` can contain the steps."""
_READ_WITH_RANGES: Final = frozenset({"ranges", "marks", "collectives"})
"""The tables whose rows are read with the ranges, or derived from them."""
_TABLES_BY_WORD: Final[Mapping[str, frozenset[str]]] = {
    "step": STEP_TABLES,
    "pattern": STEP_TABLES,
    "steady": STEP_TABLES,
    "range": frozenset({"ranges"}),
    "active": frozenset({"kernels", "copies"}),
    "&": frozenset({"ranges"}),
}
"""The tables that define a window, by the words in its text."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Results by name, and the reasons for missing results."""

    results: Mapping[str, Result]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Part:
    """A run cut to a window, with some tables; ``is_alone``: only their rows in it were read."""

    selection: Selection
    tables: frozenset[str]
    ranks: Ranks
    is_alone: bool = False


@dataclass
class _Source:
    """The files of a run with the tables that were read so far."""

    paths: tuple[Path | str, ...]
    opening: Opening
    tables: frozenset[str] = frozenset()
    ranks: Ranks | None = None
    """The ranks as their files were read: one trace per file."""
    of_each_rank: tuple[Ranks, Ranks] | None = None
    """`ranks` as it was, and the same with one trace per rank."""
    notes: tuple[Note, ...] = ()
    knows_steps: bool = False
    windows: dict[str | None, _Part] = field(default_factory=dict)
    cache: RunCache | None = None

    @cached_property
    def reads_parts(self) -> bool:
        """Whether reading a part costs less than reading all; never for several files."""
        has_samples = self.opening.samples is not None
        return not (is_run(self.paths) or has_samples) and reads_parts(self.paths[0])

    @property
    def is_large(self) -> bool:
        """Whether a file is so large that less of it should be read."""
        files = (path for path in map(Path, self.paths) if path.is_file())
        return any(path.stat().st_size > LARGE_BYTES for path in files)

    def whole(self, tables: frozenset[str]) -> Ranks:
        """Return the whole run, one trace per rank, with at least ``tables`` read."""
        if self.ranks is None or not tables <= self.tables:
            if self.ranks is not None and self.reads_parts:
                self.ranks = read_more(self.ranks, self.opening, tables - self.tables)
            else:
                tables |= frozenset() if self.ranks is None else self.tables | _EVERYTHING
                self.ranks, self.notes = open_ranks(self.paths, self.opening, tables)
            self.tables |= tables
            self.windows = {}
            recorded = self.ranks.recorded
            if recorded - self.tables >= _OPERATORS and recorded.isdisjoint(_OF_GPU):
                return self.whole(tables | _OPERATORS)
        if self.of_each_rank is None or self.of_each_rank[0] is not self.ranks:
            has_gpus = len(self.ranks.parts[0].devices["used"].nonzero()[0]) > 0
            of_each = self.ranks if has_gpus else of_each_rank(self.ranks)
            # Roles, which define the steps, are found in collectives, as in a run of several files.
            if of_each is not self.ranks and not self.tables >= TIED_BY:
                return self.whole(tables | TIED_BY)
            self.of_each_rank = self.ranks, of_each
        return self.of_each_rank[1]

    def selection(self, text: str | None) -> Selection:
        """Return the window of the text."""
        if text in self.windows:
            return self.windows[text].selection
        first = SELF_DESCRIPTION if self.ranks is None else frozenset[str]()
        whole = self.whole(first | self._tables_of_window(text))
        found = select(whole, text)
        return replace(found, notes=(*found.notes, *self.notes))

    def within(self, text: str | None, tables: frozenset[str], uncut: frozenset[str]) -> Ranks:
        """Return the run cut to the window ``text``, with ``tables`` read.

        For the tables in ``uncut``, rows outside the window are read as well.
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
        # Read only the window if it is a small part of one file and its tables were not read yet.
        if (
            ranks is not None
            and not tables <= self.tables
            and self.tables >= SELF_DESCRIPTION
            and not uncut
            and self.reads_parts
            and self.whole(SELF_DESCRIPTION) is ranks
            and selection.window.duration_ns < _MAX_CUT_RATIO * ranks.span.duration_ns
        ):
            alone = read_more(ranks, self.opening, tables - self.tables, selection.window)
            self.warn(alone.info.warnings)
            if tables.isdisjoint(_STEPS) or has_named_steps(alone):
                part = _Part(
                    selection, tables, of_each_rank(alone).within(selection.window), is_alone=True
                )
        if part is None:
            whole = self.whole(tables | self._tables_of_window(text))
            part = _Part(selection, self.tables, whole.within(selection.window))
        while len(self.windows) >= _MAX_WINDOWS:
            del self.windows[next(iter(self.windows))]
        self.windows[text] = part
        return part.ranks

    def warn(self, warnings: Iterable[str]) -> None:
        """Add warnings that readers gave while they read a part to the warnings of the run."""
        known = () if self.ranks is None else self.ranks.info.warnings
        new = [text for text in warnings if text not in known]
        if new and self.ranks is not None:
            self.ranks, self.windows = self.ranks.with_warnings(*new), {}

    @property
    def _has_windows(self) -> bool:
        """Whether ranges may show in which windows GPU activity was recorded."""
        return self.ranks is not None and any(
            part.info.recorded_by is RecordedBy.OWN for part in self.ranks.whole
        )

    def _read_first(self, text: str | None, tables: frozenset[str], *, is_cut: bool) -> None:
        """Read the tables that define the window ``text``, and others if it saves a second pass.

        If the window is known from ranges, a later read of only the window may be enough. If the
        window depends on GPU activity, all tables are read at once. Steps may be found in a part of
        the ranges, which does not count as reading them. If it contains no steps, all ranges are
        read.
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
        """Return the tables that define the window ``text``."""
        if text is None:
            return STEP_TABLES - _STEPS if self.knows_steps else STEP_TABLES
        needed = (tables for word, tables in _TABLES_BY_WORD.items() if word in text)
        return frozenset[str]().union(*needed)


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A trace, or a run of several ranks, seen through a window.

    >>> run = traceprof.open("run/")
    >>> run.within("step:10..20").breakdown().to_frame()

    Every analysis is a method with its name (``step-phases`` is ``step_phases``) that returns a
    Result. The default window covers the steady steps, or without steps the time of GPU activity.
    """

    _source: _Source
    window: str | None = None
    """The window as the user typed it; None is the default."""

    @classmethod
    def over(cls, run: Run) -> Self:
        """Return ``run`` as an instance of this class; both share the tables that were read."""
        return cls(run._source, run.window)

    def within(self, window: str | None) -> Self:
        """Return the same run seen through another window, as ``--window`` takes it."""
        return type(self)(self._source, window)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, directories, and patterns that the user named."""
        return tuple(map(Path, self._source.paths))

    @property
    def is_read(self) -> bool:
        """Whether a table was read already."""
        return self._source.ranks is not None

    @property
    def is_read_in_parts(self) -> bool:
        """Whether reading a part costs less: for a single file that was not read whole already."""
        source = self._source
        return (source.ranks is None or source.tables < _EVERYTHING) and source.reads_parts

    def warn(self, warnings: Iterable[str]) -> None:
        """Add warnings of readers that read more of the files outside of this class."""
        self._source.warn(warnings)

    @property
    def is_large(self) -> bool:
        """Whether one of the files is large."""
        return self._source.is_large

    @property
    def opening(self) -> Opening:
        """The user's options for reading."""
        return self._source.opening

    @property
    def cache(self) -> RunCache:
        """The cached answers about the files; empty for traces in memory."""
        source = self._source
        if source.cache is None:
            source.cache = RunCache.of(source.paths, source.opening)
        return source.cache

    @property
    def selection(self) -> Selection:
        """The window with its label and notes.

        Raises:
            UsageError: the window is invalid, or not a window of this run.
        """
        return self._source.selection(self.window)

    def result(self, name: str) -> Result:
        """Return the result of the analysis ``name``.

        Raises:
            UsageError: there is no such analysis, or the window is invalid.
            NotRecordedError: the trace lacks the data.
        """
        answers = self.answers([name], strict=True)
        return answers.results[load_analysis(name).name]

    def answers(self, names: Sequence[str], *, strict: bool = False) -> Answers:
        """Return the results of several analyses, as far as the trace has their data.

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

        The uncut traces have all rows of the tables in ``whole``, outside the window as well.
        """
        return self._source.within(self.window, tables, whole & _CUT_BY_READERS)

    def of_files(self, tables: frozenset[str] = _EVERYTHING) -> Ranks:
        """Return the whole run, one trace per file, with ``tables`` read."""
        self._source.whole(tables)
        return cast("Ranks", self._source.ranks)

    def trace(self, tables: frozenset[str] = _EVERYTHING) -> Trace:
        """Return all ranks as one Trace, cut to the window."""
        return self.of_ranks(tables).merged()

    if not TYPE_CHECKING:  # with it, type checkers would accept every attribute name

        def __getattr__(self, name: str) -> Callable[[], Result]:
            self._check_name(name)
            return lambda: self.result(name.replace("_", "-"))

    def _check_name(self, name: str) -> None:
        """Check that an analysis is called ``name``, written as a Python identifier."""
        if isinstance(getattr(type(self), name, None), property):
            object.__getattribute__(self, name)  # raise the property's own AttributeError again
        if name.replace("_", "-") not in {*analysis_names(), *FORMER_NAMES}:
            known = ", ".join(sorted(analysis_names()))
            raise AttributeError(f"a run has no attribute {name!r}; analyses: {known}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *(name.replace("-", "_") for name in analysis_names())]

    def __repr__(self) -> str:
        return f"<traceprof run {', '.join(f'{name} {value}' for name, value in self._known())}>"

    def _known(self) -> Iterator[tuple[str, str]]:
        """Yield known facts of the run in a few words each; no file is read."""
        source, part = self._source, self._source.windows.get(self.window)
        yield "of", " ".join(map(str, source.paths))
        if source.ranks is not None:
            yield "files", str(len(source.ranks))
        if source.ranks is not None and "devices" in source.tables:
            used = (int(part.devices["used"].sum()) for part in source.ranks)
            yield "devices", str(sum(used))
        yield "window", (self.window or "default") if part is None else part.selection.label


def tables_of(names: Sequence[str]) -> frozenset[str]:
    """Return the tables that the analyses ``names`` read."""
    analyses = [load_analysis(name) for name in names]
    tables = (table for analysis in analyses for table in analysis.spec.tables)
    columns = {column.name for table in tables for column in table}
    # A result with a column of processes also needs the table that names them.
    named = frozenset({"processes"} if "process" in columns else ())
    return named.union(*(analysis.tables for analysis in analyses))


def open_run(paths: Sequence[Path | str], opening: Opening | None = None) -> Run:
    """Return the run in ``paths``: files, a directory, a pattern, or a manifest.

    Nothing is read yet. Files that cannot be read raise an error at the first question.
    """
    return Run(_Source(tuple(paths), opening or Opening()))


def run_of(ranks: Ranks) -> Run:
    """Return traces that are already in memory as a run."""
    opening = Opening(is_cached=False)
    source = _Source((ranks.info.path,), opening, frozenset(TABLES), ranks.whole)
    return Run(source)

"""A run as material to pass on: every row once, part after part, without what is secret.

One SQLite file is read a span of time after the other, so that memory does not grow with it; of
what cannot be read so (ranges, marks, collectives; other formats; runs of several files) a whole
table, or the whole of a rank, is in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.errors import UsageError
from traceprof.formats import open_trace, outline, secrets_in
from traceprof.formats.base import LAUNCHING_TABLES, WINDOWED_TABLES, ReadOptions
from traceprof.formats.runs.files import is_run
from traceprof.formats.shared.narrowing import narrowed
from traceprof.model.masking import MASK, masked_text
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT, TABLES, ColumnKind
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.session.opening import rules_of
from traceprof.session.run import Run
from traceprof.session.selection import Selection

__all__ = ["Material", "Part", "masked_frame"]

_SELF: Final = frozenset(name for name, table in TABLES.items() if not table.has_times)
_IN_PARTS: Final = (*WINDOWED_TABLES, *LAUNCHING_TABLES)
_ROWS_OF_PART: Final = 1 << 20
_TEXTS_OF_MACHINE: Final = frozenset({"devices", "processes", "threads", "environment"})


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one file: ``frames`` those that belong to this part, by table.

    ``trace`` has these, and around them what launched them.
    """

    frames: Mapping[str, pd.DataFrame]
    trace: Trace


@dataclass
class Material:
    """A run, or of it the rows that have a part in its window, on one clock.

    Rows are whole even where the window cuts them; of calls those come along that launched the
    device work in it. Without ``window`` it is everything. ``only_ranks`` leaves the rows of other
    processes out.
    """

    run: Run
    is_secret_kept: bool = False
    only_ranks: Collection[int] | None = None
    rows_of_part: int = field(default=_ROWS_OF_PART, repr=False)

    @cached_property
    def ranks(self) -> Ranks:
        """What the run says of itself; its events are read by `parts`, unless they must be all."""
        everything = self.run.within("all")
        tables = _SELF if self._is_in_parts else frozenset(TABLES)
        ranks = everything.of_ranks(tables).whole.map(self._masked_trace)
        return ranks if self.only_ranks is None else ranks.map(self._without_other_ranks)

    def _without_other_ranks(self, trace: Trace) -> Trace:
        frames = {n: self._of_ranks(trace.table(n)) for n in ("processes", "threads")}
        return trace.with_tables(frames)

    @cached_property
    def _processes(self) -> frozenset[int] | None:
        """The processes of the ranks that are wanted, None for all.

        Raises:
            UsageError: a rank is not there.
        """
        if self.only_ranks is None:
            return None
        whole = self.run.within("all").of_ranks(_SELF).whole.table("processes")
        missing = sorted(set(self.only_ranks) - set(whole["rank"]))
        if missing:
            known = ", ".join(map(str, sorted(set(whole["rank"]) - {ABSENT}))) or "none"
            raise UsageError(f"no rank {', '.join(map(str, missing))}: the trace has {known}")
        chosen = whole.loc[whole["rank"].isin(list(self.only_ranks)), "process"]
        return frozenset(map(int, chosen))

    def _of_ranks(self, frame: pd.DataFrame) -> pd.DataFrame:
        if self._processes is None or "process" not in frame:
            return frame
        return frame[frame["process"].isin(self._processes)].reset_index(drop=True)

    @cached_property
    def selection(self) -> Selection | None:
        """The window, None for everything."""
        return None if self.run.window in (None, "all") else self.run.selection

    @property
    def window(self) -> TimeWindow | None:
        """The window on the clock of the run, None for everything."""
        return None if self.selection is None else self.selection.window

    @property
    def span(self) -> TimeWindow:
        """The time that is passed on."""
        return self.ranks.span if self.window is None else self.window

    def parts(self, tables: Collection[str] = TABLES) -> Iterator[Part]:
        """Yield the rows of ``tables`` that have times, each row once; a table in order.

        Raises:
            TraceError: a file cannot be read.
        """
        wanted = frozenset(name for name in tables if TABLES[name].has_times)
        if not self._is_in_parts:
            for trace in self.ranks:
                yield self._whole_part(trace, wanted)
            return
        for group in ({"ranges", "marks"}, {"collectives"}):
            if group & wanted:
                trace = self._read(frozenset(group & wanted))
                yield self._whole_part(trace, frozenset(group & wanted))
        if wanted.intersection(_IN_PARTS):
            yield from self._spans(wanted.intersection(_IN_PARTS))

    @cached_property
    def _is_in_parts(self) -> bool:
        return self.run.is_read_in_parts

    def _read(self, tables: frozenset[str], window: TimeWindow | None = None) -> Trace:
        known = self.ranks.parts[0]
        options = ReadOptions(rules_of(self.run.opening), tables, window, known)
        return self._masked_trace(open_trace(self.run.paths[0], options))

    def _whole_part(self, trace: Trace, tables: frozenset[str]) -> Part:
        if self.window is not None:
            trace = narrowed(trace, ReadOptions(window=self.window))
            rest = tables - {*_IN_PARTS}
            trace = trace.with_tables({n: _overlapping(trace, n, self.window) for n in rest})
        frames = {name: trace.table(name) for name in TABLES if name in tables}
        return self._part(frames, trace)

    def _part(self, frames: Mapping[str, pd.DataFrame], trace: Trace) -> Part:
        return Part({name: self._of_ranks(frame) for name, frame in frames.items()}, trace)

    def _spans(self, tables: frozenset[str]) -> Iterator[Part]:
        n_rows = outline(self.run.paths[0]).n_rows
        n_parts = 1 + sum(n_rows[TABLES[n].detail_of or n] for n in tables) // self.rows_of_part
        span = self.span
        edges = np.linspace(span.start_ns, span.end_ns, n_parts + 1).astype(np.int64).tolist()
        # What happens at the end of everything belongs to the last part.
        edges[0], edges[-1] = span.start_ns, span.end_ns + (self.window is None)
        for first, end in pairwise(edges):
            if first == end:
                continue
            trace = self._read(tables, TimeWindow(first, end))
            is_first = first == edges[0]
            begins = None if is_first else first
            frames = {n: _begun(trace, n, begins, end) for n in TABLES if n in tables}
            yield self._part(frames, trace)

    @cached_property
    def _secrets(self) -> Sequence[str]:
        """What the files tell to be secret."""
        if self.is_secret_kept:
            return ()
        paths = dict.fromkeys(map(str, self.run.paths))
        if is_run(self.run.paths):
            whole = self.run.within("all").of_ranks(_SELF).whole
            paths = dict.fromkeys(part.info.path for part in whole)
        found = {one for path in paths if Path(path).exists() for one in secrets_in(path)}
        return sorted(found, key=len, reverse=True)

    def _masked_trace(self, trace: Trace) -> Trace:
        if self.is_secret_kept:
            return trace
        changes = {name: self.masked(name, trace.table(name)) for name in TABLES}
        return trace.with_tables(changes)

    def masked(self, name: str, frame: pd.DataFrame) -> pd.DataFrame:
        """Return rows of table ``name`` without secrets."""
        return masked_frame(name, frame, self._secrets)

    def masked_text(self, text: str) -> str:
        """Return a text of an answer about the run without secrets."""
        return text if self.is_secret_kept else masked_text(_without(text, self._secrets))


def masked_frame(name: str, frame: pd.DataFrame, secrets: Sequence[str]) -> pd.DataFrame:
    """Return rows of table ``name`` without ``secrets``, and without what tells to be one.

    That is looked for in texts about the machine; what a program wrote into names of its ranges
    is passed on as it is, as `traceprof.formats.cut` does.
    """
    changes: dict[str, Any] = {}
    for column, kind in TABLES[name].columns.items():
        if kind is ColumnKind.NAME and secrets:
            shown = _masked_names(frame[column].array, secrets)
            changes |= {} if shown is None else {column: shown}
        elif kind is ColumnKind.TEXT and name in _TEXTS_OF_MACHINE:
            changes[column] = [masked_text(_without(str(t), secrets)) for t in frame[column]]
    return frame.assign(**changes) if changes else frame


def _masked_names(names: pd.Categorical, secrets: Sequence[str]) -> pd.Categorical | None:
    before = list(map(str, names.categories))
    after = [_without(name, secrets) for name in before]
    if after == before:
        return None
    numbers: dict[str, int] = {}
    places = np.array([*(numbers.setdefault(n, len(numbers)) for n in after), -1], np.int64)
    index = pd.Index(list(numbers), dtype=object)
    return pd.Categorical.from_codes(places[names.codes], index)


def _without(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def _overlapping(trace: Trace, name: str, window: TimeWindow) -> pd.DataFrame:
    frame = trace.table(name)
    starts = frame["start_ns"].to_numpy()
    ends = frame["end_ns"].to_numpy() if TABLES[name].has_spans else starts
    return frame[window.overlaps(starts, ends)].reset_index(drop=True)


def _begun(trace: Trace, name: str, first_ns: int | None, end_ns: int) -> pd.DataFrame:
    """Return the rows that begin in a part; of the first also those that begin before it."""
    frame = trace.table(name)
    starts = frame["start_ns"].to_numpy()
    first = 0 if first_ns is None else int(np.searchsorted(starts, first_ns))
    return frame.iloc[first : int(np.searchsorted(starts, end_ns))]

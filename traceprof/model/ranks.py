"""The ranks of a run, side by side: what analyses take.

One Trace for each file, all on one clock, with processes and devices told apart. A single trace
is a run of one; a file may hold several ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import pandas as pd

from traceprof.model.clocks import ClockCorrection
from traceprof.model.elsewhere import change_each, measure_each, measure_of_each
from traceprof.model.frames import stack
from traceprof.model.hardware import Hardware
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.model.window import TimeWindow
from traceprof.values import dataclass

__all__ = ["Ranks"]

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The traces of a run (at least one), whole or cut to a window, all over the same span.

    ``info`` describes the run. ``uncut`` is what this was cut from, None for the whole, and
    ``clocks`` what the clock of each process was corrected by when the ranks were aligned.
    ``facts`` is where `traceprof.facts.cache` keeps what was computed of all ranks together.
    """

    parts: tuple[Trace, ...]
    info: TraceInfo
    uncut: Ranks | None = None
    clocks: Mapping[int, ClockCorrection] = field(default_factory=dict, repr=False)
    facts: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, trace: Trace | Ranks) -> Ranks:
        """Return a run of one file (a run is one already); a cut trace stays cut."""
        if isinstance(trace, Ranks):
            return trace
        if trace.uncut is None:
            return cls((trace,), trace.info)
        return cls((trace,), trace.info, cls((trace.uncut,), trace.info))

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Trace]:
        return iter(self.parts)

    @property
    def whole(self) -> Ranks:
        """The whole recording: itself unless it was cut."""
        return self if self.uncut is None else self.uncut

    @property
    def span(self) -> TimeWindow:
        """The time that it covers, the same for every rank."""
        return self.parts[0].span

    @property
    def recorded(self) -> frozenset[str]:
        """The tables that were recorded, of any rank."""
        return frozenset[str]().union(*(part.recorded for part in self.parts))

    @property
    def hardware(self) -> Hardware | None:
        """What the user said of the hardware."""
        return self.parts[0].hardware

    @property
    def warmup_steps(self) -> int | None:
        """How many leading steps the user calls warm-up."""
        return self.parts[0].warmup_steps

    def require(self, *names: str) -> None:
        """Check that the tables ``names`` were recorded by any rank.

        Raises:
            NotRecordedError: at least one was not; the message names the option that records it.
        """
        recorded = self.recorded
        for name in names:
            if name not in recorded:
                self.parts[0].require(name)

    def table(self, name: str) -> pd.DataFrame:
        """Return the rows of all ranks of table ``name``, sorted as tables are.

        For small tables: what grows with the number of kernels is looked at rank by rank.
        """
        if name == "environment":
            return self.parts[0].environment  # every rank holds that of the run
        return stack(name, [part.table(name) for part in self.parts])

    def within(self, window: TimeWindow) -> Ranks:
        """Return the part of every rank inside ``window`` (see `Trace.within`)."""
        parts = change_each(self.parts, Trace.within, [(window,)] * len(self))
        return replace(self, parts=tuple(parts), uncut=self.whole)

    def each(
        self,
        measure: Callable[Concatenate[Trace, _Arguments], _Answer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> list[_Answer]:
        """Return what ``measure`` says of the Trace of every rank, where the Trace is.

        ``measure`` must be the function of a module, and what goes there and comes back small: it
        may travel between processes.
        """
        return measure_each(self.parts, measure, *args, **kwargs)

    def each_of(
        self, measure: Callable[..., _Answer], args: Sequence[tuple[Any, ...]]
    ) -> list[_Answer]:
        """Return the same, each rank being asked with its own ``args``."""
        return measure_of_each(self.parts, measure, args)

    def map(self, change: Callable[..., Trace], *args: Any) -> Ranks:
        """Return the ranks with ``change`` made to the whole Trace of each, cut as they were."""
        return self.map_each(change, [args] * len(self))

    def map_each(self, change: Callable[..., Trace], args: Sequence[tuple[Any, ...]]) -> Ranks:
        """Return the ranks with ``change`` made to the whole Trace of each with its own ``args``.

        Cut as they were.
        """
        whole = replace(self.whole, parts=tuple(change_each(self.whole.parts, change, args)))
        return whole if self.uncut is None else whole.within(self.span)

    def with_warnings(self, *warnings: str) -> Ranks:
        """Return the same ranks with more warnings about the run."""
        info = replace(self.info, warnings=(*self.info.warnings, *warnings))
        uncut = None if self.uncut is None else self.uncut.with_warnings(*warnings)
        return replace(self, info=info, uncut=uncut)

    def merged(self) -> Trace:
        """Return all ranks as one Trace, for what draws them on one page."""
        if self.uncut is not None:
            return self.uncut.merged().within(self.span)
        if len(self.parts) == 1:
            part = self.parts[0]
            return part if part.info == self.info else replace(part, info=self.info)
        kept = self.facts
        if ("merged",) not in kept:
            tables = {name: self.table(name) for name in TABLES}
            devices = tables["devices"]
            worked = devices.loc[devices["used"] == 1, "device"]
            trace = make_trace(self.info, tables, self.recorded, self.span, worked)
            first = self.parts[0]
            kept["merged",] = replace(
                trace,
                hardware=first.hardware,
                warmup_steps=first.warmup_steps,
                steps=_steps(self),
                recordings={p: w for part in self.parts for p, w in part.recordings.items()},
            )
        merged: Trace = kept["merged",]
        return merged


def _steps(ranks: Ranks) -> Any:
    """Return the steps of all ranks, where they have been decided."""
    known = [part.steps for part in ranks.parts if part.steps is not None]
    if len(known) < len(ranks.parts):
        return None
    table = pd.concat([steps.table for steps in known], ignore_index=True)
    first = max(known, key=len)
    return replace(first, table=table.sort_values(["process", "start_ns"], ignore_index=True))

"""What is rendered: the answers of a run about one window, and how a renderer is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from traceprof.model.results import Note, Result
from traceprof.model.trace import TraceInfo
from traceprof.model.window import TimeWindow
from traceprof.session.selection import Selection

__all__ = ["Document", "Options", "Render", "Renderer", "Verdict"]


class Verdict(Protocol):
    """The answer in a few sentences.

    ``sentences`` say where the time goes and how steady it is. ``next_command`` is what to run
    next, with TRACE for the file; "" for nothing.
    """

    @property
    def sentences(self) -> tuple[Note, ...]:
        """The sentences, the most telling first."""
        ...

    @property
    def next_command(self) -> str:
        """What to run next."""
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """What is told about a run: everything was measured before, renderers measure nothing.

    ``span`` is the whole run and ``selection`` the window that the results are about. ``missing``
    says why other analyses have no result, ``recorded`` which tables the trace has. ``ranks``
    gives the rank of each process that has one.
    """

    info: TraceInfo
    span: TimeWindow
    selection: Selection
    results: Mapping[str, Result]
    missing: Mapping[str, str] = field(default_factory=dict)
    recorded: frozenset[str] = frozenset()
    ranks: Mapping[int, int] = field(default_factory=dict)
    verdict: Verdict | None = None

    def ns_after_start(self, instant_ns: int) -> int:
        """Return an instant of the trace's clock in ns after the start of the run."""
        return instant_ns - self.span.start_ns


@dataclass(frozen=True, slots=True)
class Options:
    """How it is shown.

    ``rows`` is how many rows of a table are shown (None: all, where the form has no use for
    fewer). ``width`` counts the columns of a terminal and ``colours`` names what it can show, as
    rich does ("" for none, "truecolor"). ``tables`` names tables that are shown beside the first
    of each result, however long they are. ``title`` heads a page.
    """

    rows: int | None = None
    width: int = 80
    colours: str = ""
    tables: tuple[str, ...] = ()
    title: str = ""


Render = Callable[[Document, Options], str]


@dataclass(frozen=True, slots=True)
class Renderer:
    """One way out: its name, its files' suffix and media type, and the module with ``RENDER``.

    A module that begins with a dot is one of this package.
    """

    name: str
    summary: str
    suffix: str
    media_type: str
    module: str

"""Documents for the tests of renderers: of hand-made results, or of what analyses measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.running import run
from traceprof.errors import NotRecordedError
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.session.answer import Document
from traceprof.session.selection import select

__all__ = ["document_of_results", "measured"]


def measured(
    trace: Trace | Ranks, names: Sequence[str], window: str | None = None, **more: Any
) -> Document:
    """Return what the analyses ``names`` say about a window, as the session puts it together."""
    whole = trace if isinstance(trace, Ranks) else Ranks.of(trace)
    selection = select(whole, window)
    part = whole.within(selection.window)
    results, missing = {}, {}
    for name in names:
        try:
            results[name] = run(name, part)
        except NotRecordedError as error:
            missing[name] = str(error)
    processes = whole.table("processes").to_frame()
    known = processes[processes["rank"] != ABSENT]
    return Document(
        info=whole.info,
        span=whole.span,
        selection=selection,
        results=results,
        missing=missing,
        recorded=whole.recorded,
        ranks=dict(zip(known["process"].tolist(), known["rank"].tolist(), strict=True)),
        **more,
    )


def document_of_results(trace: Trace, results: Mapping[str, Result], **more: Any) -> Document:
    """Return a document about the whole of ``trace`` that says ``results``."""
    ranks = Ranks.of(trace)
    return Document(trace.info, trace.span, select(ranks, "all"), results, **more)

"""The runs that tests here ask, each made or opened, and judged, once for all of them.

They are one worker's (tests/conftest.py): what one has asked for is there for the next.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.requirements import require
from tests.truth.scenarios import SCENARIOS
from traceprof.errors import NotRecordedError
from traceprof.measures.steps.find import decide_steps
from traceprof.model.results import Result
from traceprof.session.answer import Document, page
from traceprof.session.run import Run, open_run, run_of

__all__ = ["document_of", "result", "run_named"]


@cache
def run_named(name: str) -> Run:
    """Return what was planted under that name, or the shared trace."""
    for one in SCENARIOS:
        if one.name == name:
            return run_of(decide_steps(one.ranks))
    return open_run([Path(require("traces")) / name])


@cache
def result(name: str, analysis: str, window: str | None = None) -> Result | None:
    """Return what an analysis says of a run, None where it lacks what it needs."""
    try:
        return run_named(name).within(window).result(analysis)
    except NotRecordedError:
        return None


@cache
def document_of(name: str) -> Document:
    """Return the page of a run."""
    return page(run_named(name))

"""Running one analysis on a trace or on ranks that a test has made."""

from __future__ import annotations

from traceprof.measures import load_analysis
from traceprof.measures.analyses import run_analysis
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.trace import Trace

__all__ = ["run"]


def run(name: str, of: Trace | Ranks) -> Result:
    """Return the result of the analysis called ``name``."""
    return run_analysis(load_analysis(name), of if isinstance(of, Ranks) else Ranks.of(of))

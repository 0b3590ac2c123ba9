"""The public API: what ``import traceprof`` gives for reading traces, and for recording inside."""

from __future__ import annotations

from traceprof.api.comparing import accuracy, compare, elastic, memory, nodes, scaling
from traceprof.api.database import Runs, runs
from traceprof.api.recording import Recorded, record
from traceprof.api.results import Comparison, Page, Result
from traceprof.api.run import Run, open

__all__ = [
    "Comparison",
    "Page",
    "Recorded",
    "Result",
    "Run",
    "Runs",
    "accuracy",
    "compare",
    "elastic",
    "memory",
    "nodes",
    "open",
    "record",
    "runs",
    "scaling",
]

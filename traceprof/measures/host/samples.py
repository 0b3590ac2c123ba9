"""Python stacks that nsys sampled: how many samples there are, and how far apart."""

from __future__ import annotations

from traceprof.model.grouping import rows_by_values
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.timing import PYTHON_SAMPLES_DOMAIN
from traceprof.model.trace import Trace


def _samples(trace: Trace) -> Table:
    """Return the marks of the samples; none if the calls of functions were recorded."""
    return trace.marks.take(trace.marks["domain"] == PYTHON_SAMPLES_DOMAIN)


def count_samples(trace: Trace) -> int:
    """Return the number of sampled Python stacks in the window."""
    return len(_samples(trace))


def sample_interval_ns(trace: Trace) -> int:
    """Return the mean time between two samples of a Python thread; 0 without samples."""
    times, functions = _samples(trace)["start_ns"], trace.functions
    n_threads = len(rows_by_values(functions["process"], functions["thread"]))
    return int((times[-1] - times[0]) * n_threads // len(times)) if len(times) else 0


def notes_on_samples(trace: Trace) -> tuple[Note, ...]:
    """Return the note on the functions of sampled stacks; () without samples."""
    if not (n_samples := count_samples(trace)):
        return ()
    return (
        Note.of(
            "nsys sampled the Python stacks: {n:count} samples. Times are estimates: a function "
            "runs from one sample to the next. The count is the number of uninterrupted runs of "
            "samples, not of calls. The line is the one that ran. GPU time is not reported: which "
            "function launched a kernel is unknown.",
            n=n_samples,
        ),
    )

"""Analyses: pure functions of a Trace.

To add one: a module in this package that defines ``ANALYSIS``, and its line in `ANALYSES`. The
command line, JSON, CSV, the report and the contract tests pick it up from there. The lines hold
no imports, so that naming the analyses (as ``--help`` does) costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.analysis.base import Analysis, Result
    from traceprof.model.trace import Trace

__all__ = ["ANALYSES", "Entry", "load_analysis", "run_analysis"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an analysis is found: its name, one line of help, and the module that defines it."""

    name: str
    summary: str
    module: str


ANALYSES: Final[tuple[Entry, ...]] = (
    Entry(
        "findings", "ranked advice: what costs time, and what to do", "traceprof.analysis.findings"
    ),
    Entry("breakdown", "where the time of each device went", "traceprof.analysis.breakdown"),
    Entry("steps", "every step: duration, parts, phases, throughput", "traceprof.analysis.steps"),
    Entry(
        "phases", "host and device time by phase of the training loop", "traceprof.analysis.phases"
    ),
    Entry(
        "step-phases",
        "the phases of every step: host time against device time",
        "traceprof.analysis.step_phases",
    ),
    Entry("layers", "host and device time by layer of the model", "traceprof.analysis.layers"),
    Entry("kernels", "device time by kernel name", "traceprof.analysis.kernels"),
    Entry("classes", "kernels by class and phase", "traceprof.analysis.classes"),
    Entry("copies", "copies by direction, with bytes and GB/s", "traceprof.analysis.copies"),
    Entry(
        "transfers",
        "copies between host and devices: GB/s by size against the link's peak",
        "traceprof.analysis.transfers",
    ),
    Entry(
        "bandwidth",
        "bandwidth of copies over time, by device and route",
        "traceprof.analysis.bandwidth",
    ),
    Entry(
        "collectives",
        "collectives by operation and size: time, algbw, busbw, exposed",
        "traceprof.analysis.collectives",
    ),
    Entry(
        "messages",
        "every collective by itself: size, bandwidth, phase, exposed time",
        "traceprof.analysis.messages",
    ),
    Entry(
        "buckets",
        "the collectives of a step in their order (buckets of DDP)",
        "traceprof.analysis.buckets",
    ),
    Entry(
        "shared",
        "collectives that ranks share: time without waiting, who came last",
        "traceprof.analysis.shared",
    ),
    Entry(
        "ranks",
        "the ranks side by side: parts of their time, and waiting",
        "traceprof.analysis.ranks",
    ),
    Entry(
        "stragglers",
        "ranks that the others wait for: in which phase, since when",
        "traceprof.analysis.stragglers",
    ),
    Entry(
        "rank-steps",
        "every step of every rank: duration, skew, waiting, lateness",
        "traceprof.analysis.rank_steps",
    ),
    Entry(
        "alignment",
        "the clocks of the ranks, by the ends of shared collectives",
        "traceprof.analysis.alignment",
    ),
    Entry(
        "pipeline",
        "pipeline parallelism: the bubble of each stage",
        "traceprof.analysis.pipeline",
    ),
    Entry(
        "network",
        "network traffic by interface and process, beside collectives",
        "traceprof.analysis.network",
    ),
    Entry(
        "network-time",
        "network traffic over time, beside the collectives that caused it",
        "traceprof.analysis.network_time",
    ),
    Entry("idle", "why devices were idle", "traceprof.analysis.idle"),
    Entry("gaps", "the longest idle gaps", "traceprof.analysis.longest_gaps"),
    Entry(
        "streams", "streams one by one: busy, and waiting for what", "traceprof.analysis.streams"
    ),
    Entry("path", "the critical path of every step", "traceprof.analysis.critical_path"),
    Entry("whatif", "what at most could be gained", "traceprof.analysis.whatif"),
    Entry("launches", "launch latency and queue depth", "traceprof.analysis.launches"),
    Entry("sync", "where the host waits for a device", "traceprof.analysis.sync"),
    Entry("memory", "device memory over time, by phase", "traceprof.analysis.memory"),
    Entry("ranges", "NVTX and other host ranges by name", "traceprof.analysis.ranges"),
    Entry("ops", "host operators by name, self and total", "traceprof.analysis.ops"),
    Entry("quality", "what is suspicious in the trace itself", "traceprof.analysis.quality"),
)


def load_analysis(name: str, entries: Sequence[Entry] | None = None) -> Analysis:
    """Return the analysis called ``name``.

    Raises:
        UsageError: there is none of that name.
    """
    known = ANALYSES if entries is None else entries
    for entry in known:
        if entry.name == name:
            analysis: Analysis = import_module(entry.module).ANALYSIS
            return analysis
    raise UsageError(f"no analysis {name!r}: there are {', '.join(e.name for e in known)}")


def run_analysis(analysis: Analysis, trace: Trace) -> Result:
    """Return the result of ``analysis`` on ``trace``.

    Raises:
        NotRecordedError: the trace lacks a table that the analysis needs.
    """
    trace.require(*analysis.needs)
    return analysis.run(trace)

"""What is measured of a run: facts computed once of a recording, and the tables made of them.

To add an analysis: a constant of `Analysis` in a module of the room of its subject, and its line
in `ANALYSES`. The command line, JSON, CSV, the report and the contract tests pick it up from
there. The lines hold no imports, so that naming the analyses (as ``--help`` does) costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.measures.analyses import Analysis

__all__ = ["ANALYSES", "FORMER_NAMES", "Entry", "analysis_names", "load_analysis"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an analysis is found: its name, one line of help, and ``module:CONSTANT``.

    A module that begins with a dot is one of this package; without a constant it is ``ANALYSIS``.
    """

    name: str
    summary: str
    module: str


ANALYSES: Final[tuple[Entry, ...]] = (
    Entry(
        "findings", "ranked advice: what costs time, and what to do", "traceprof.findings:FINDINGS"
    ),
    Entry("breakdown", "where the time of each device went", ".device.times:BREAKDOWN"),
    Entry("steps", "every step: duration, parts, phases, throughput", ".steps.steps:STEPS"),
    Entry(
        "phases", "host and device time by phase of the training loop", ".steps.phases:LOOP_PHASES"
    ),
    Entry(
        "step-phases",
        "the phases of every step: host time against device time",
        ".steps.phases:STEP_PHASES",
    ),
    Entry("layers", "host and device time by layer of the model", ".host.layers:LAYERS"),
    Entry(
        "summary",
        "kernels, copies, CUDA calls by name, as nvprof sums up",
        ".device.kernels:SUMMARY",
    ),
    Entry("kernels", "device time by kernel name", ".device.kernels:KERNELS"),
    Entry("classes", "kernels by class and phase", ".device.kernels:CLASSES"),
    Entry(
        "occupancy",
        "grid, block, registers, shared memory of kernels, theoretical occupancy",
        ".device.occupancy:OCCUPANCY",
    ),
    Entry("copies", "copies by direction, with bytes and GB/s", ".traffic.copies:COPIES"),
    Entry(
        "transfers",
        "copies between host and devices: GB/s by size against the link's peak",
        ".traffic.transfers:TRANSFERS",
    ),
    Entry(
        "bandwidth",
        "bandwidth of copies over time, by device and route",
        ".traffic.bandwidth:BANDWIDTH",
    ),
    Entry(
        "collectives",
        "collectives by operation and size: time, algbw, busbw, exposed",
        ".collectives.by_size:COLLECTIVES",
    ),
    Entry(
        "collective-events",
        "every collective by itself: size, bandwidth, phase, exposed time",
        ".collectives.events:COLLECTIVE_EVENTS",
    ),
    Entry(
        "callers",
        "collectives by the phase and layer that called them: exposed, hidden",
        ".collectives.callers:CALLERS",
    ),
    Entry(
        "buckets",
        "the collectives of a step in their order (buckets of DDP)",
        ".collectives.buckets:BUCKETS",
    ),
    Entry(
        "shared",
        "collectives that ranks share: time without waiting, who came last",
        ".collectives.shared:SHARED",
    ),
    Entry("peers", "who sends how much to whom: messages and peer copies", ".traffic.peers:PEERS"),
    Entry(
        "ranks", "the ranks side by side: parts of their time, and waiting", ".ranks.times:RANKS"
    ),
    Entry(
        "stragglers",
        "ranks that the others wait for: in which phase, since when",
        ".ranks.stragglers:STRAGGLERS",
    ),
    Entry(
        "rank-steps",
        "every step of every rank: own time, waiting, lateness; a heat map",
        ".ranks.steps:RANK_STEPS",
    ),
    Entry("hosts", "the hosts side by side, and which is late as a whole", ".ranks.hosts:HOSTS"),
    Entry("racks", "the racks side by side, and which is late as a whole", ".ranks.hosts:RACKS"),
    Entry(
        "alignment",
        "the clocks of the ranks, by the ends of shared collectives",
        ".collectives.clocks:ALIGNMENT",
    ),
    Entry("pipeline", "pipeline parallelism: the bubble of each stage", ".ranks.pipeline:PIPELINE"),
    Entry(
        "network",
        "traffic of network, NVLink and PCIe by counters, against the link's peak",
        ".traffic.network:NETWORK",
    ),
    Entry(
        "network-time",
        "the same over time, beside the collectives that caused it",
        ".traffic.network:NETWORK_TIME",
    ),
    Entry("idle", "why devices were idle", ".idle.idle:IDLE"),
    Entry("gaps", "the longest idle gaps", ".idle.idle:GAPS"),
    Entry("streams", "streams one by one: busy, and waiting for what", ".device.streams:STREAMS"),
    Entry("path", "the critical path of every step", ".path.path:PATH"),
    Entry("whatif", "what at most could be gained", ".path.whatif:WHATIF"),
    Entry("launches", "launch latency and queue depth", ".host.launches:LAUNCHES"),
    Entry("sync", "where the host waits for a device", ".idle.waits:SYNC"),
    Entry("memory", "device memory over time, by phase", ".device.memory:MEMORY"),
    Entry("ranges", "NVTX and other host ranges by name", ".host.ranges:RANGES"),
    Entry(
        "range-work",
        "device work launched inside NVTX and other host ranges, by name",
        ".host.range_work:RANGE_WORK",
    ),
    Entry("operators", "host operators by name, self and total", ".host.ranges:OPERATORS"),
    Entry("quality", "what is suspicious in the trace itself", ".quality:QUALITY"),
)


FORMER_NAMES: Final = {"messages": "collective-events", "ops": "operators"}
"""What analyses were called before, and are still found by."""


def analysis_names() -> tuple[str, ...]:
    """Return the names of the analyses, in their order."""
    return tuple(entry.name for entry in ANALYSES)


def load_analysis(name: str, entries: Sequence[Entry] | None = None) -> Analysis:
    """Return the analysis called ``name``.

    Raises:
        UsageError: there is none of that name.
    """
    known = ANALYSES if entries is None else entries
    name = FORMER_NAMES.get(name, name)
    for entry in known:
        if entry.name == name:
            module, _, constant = entry.module.partition(":")
            analysis: Analysis = getattr(import_module(module, __package__), constant or "ANALYSIS")
            return analysis
    raise UsageError(f"no analysis {name!r}: there are {', '.join(e.name for e in known)}")

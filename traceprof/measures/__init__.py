"""What is measured of a run: facts computed once of a recording, and the tables made of them.

To add an analysis: a constant of `Analysis` in a module of the room of its subject, and its line
in `ANALYSES`. The command line, JSON, CSV, the report and the contract tests pick it up from
there. The lines hold no imports, so that naming the analyses (as ``--help`` does) costs nothing.
"""

from __future__ import annotations

import re
import textwrap
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


_ENTRIES: Final = """
    findings traceprof.findings:FINDINGS ranked advice: what costs time, and what to do
    breakdown .device.times:BREAKDOWN where the time of each device went
    steps .steps.steps:STEPS every step: duration, parts, phases, throughput
    phases .steps.phases:LOOP_PHASES host and device time by phase of the training loop
    step-phases .steps.phases:STEP_PHASES the phases of every step: host time against device time
    layers .host.layers:LAYERS host and device time by layer of the model
    summary .device.kernels:SUMMARY kernels, copies, CUDA calls by name, as nvprof sums up
    kernels .device.kernels:KERNELS device time by kernel name
    classes .device.kernels:CLASSES kernels by class and phase
    occupancy .device.occupancy:OCCUPANCY grid, block, registers, shared memory of kernels,
        theoretical occupancy
    copies .traffic.copies:COPIES copies by direction, with bytes and GB/s
    transfers .traffic.transfers:TRANSFERS copies between host and devices: GB/s by size against the
        link's peak
    bandwidth .traffic.bandwidth:BANDWIDTH bandwidth of copies over time, by device and route
    collectives .collectives.by_size:COLLECTIVES collectives by operation and size: time, algbw,
        busbw, exposed
    collective-events .collectives.events:COLLECTIVE_EVENTS every collective by itself: size,
        bandwidth, phase, exposed time
    callers .collectives.callers:CALLERS collectives by the phase and layer that called them:
        exposed, hidden
    buckets .collectives.buckets:BUCKETS the collectives of a step in their order (buckets of DDP)
    shared .collectives.shared:SHARED collectives that ranks share: time without waiting, who came
        last
    peers .traffic.peers:PEERS who sends how much to whom: messages and peer copies
    ranks .ranks.times:RANKS the ranks side by side: parts of their time, and waiting
    stragglers .ranks.stragglers:STRAGGLERS ranks that the others wait for: in which phase, since
        when
    rank-steps .ranks.steps:RANK_STEPS every step of every rank: own time, waiting, lateness; a heat
        map
    hosts .ranks.hosts:HOSTS the hosts side by side, and which is late as a whole
    racks .ranks.hosts:RACKS the racks side by side, and which is late as a whole
    alignment .collectives.clocks:ALIGNMENT the clocks of the ranks, by the ends of shared
        collectives
    pipeline .ranks.pipeline:PIPELINE pipeline parallelism: the bubble of each stage
    network .traffic.network:NETWORK traffic of network, NVLink and PCIe by counters, against the
        link's peak
    network-time .traffic.network:NETWORK_TIME the same over time, beside the collectives that
        caused it
    idle .idle.idle:IDLE why devices were idle
    gaps .idle.idle:GAPS the longest idle gaps
    streams .device.streams:STREAMS streams one by one: busy, and waiting for what
    path .path.path:PATH the critical path of every step
    whatif .path.path:WHATIF what at most could be gained
    launches .host.launches:LAUNCHES launch latency and queue depth
    sync .idle.waits:SYNC where the host waits for a device
    memory .device.memory:MEMORY device memory over time, by phase
    counters .device.counters:COUNTERS what counters of the GPUs measured: SMs, tensor cores, DRAM,
        links
    ranges .host.ranges:RANGES NVTX and other host ranges by name
    range-work .host.range_work:RANGE_WORK device work launched inside NVTX and other host ranges,
        by name
    operators .host.ranges:OPERATORS host operators by name, self and total
    quality .quality:QUALITY what is suspicious in the trace itself
    """
ANALYSES: Final = tuple(
    Entry(name, summary, module)
    for line in re.sub(r"\n +", " ", textwrap.dedent(_ENTRIES).strip()).splitlines()
    for name, module, summary in (line.split(" ", 2),)
)
"""Each with its name, where it is, and a line of help."""


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

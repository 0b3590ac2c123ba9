"""Registers the analyses: the tables that traceprof measures of a run.

To add an analysis, define a constant of `Analysis` in a module of the package of its subject, and
add one line to `_ENTRIES`. The command line, JSON, CSV, the report, and the contract tests read the
registry. This module imports no analysis, so listing the names (for ``--help``) is fast.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Final

from traceprof.errors import UsageError
from traceprof.registries import Registry

if TYPE_CHECKING:
    from traceprof.measures.analyses import Analysis

__all__ = [
    "ANALYSES",
    "FORMER_NAMES",
    "Entry",
    "analysis_names",
    "load_analysis",
    "names_shown",
    "nouns",
    "shown_by",
]


@dataclass(frozen=True, slots=True)
class Entry:
    """Location of an analysis: its name, one line of help, and ``module:CONSTANT``.

    A module that begins with a dot is relative to this package. Without a constant, the constant is
    ``ANALYSIS``. Users select the analysis by its ``noun`` ("collectives") and ``way`` ("caller"):
    `traceprof show NOUN --by WAY`. The noun without ``--by`` shows the analysis that has the same
    name as the noun. An empty ``noun`` defaults to the name.
    """

    name: str
    summary: str
    module: str
    noun: str = ""
    way: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "noun", self.noun or self.name)

    @property
    def words(self) -> str:
        """Arguments for `traceprof show`, for example "collectives --by caller"."""
        return self.noun if self.name == self.noun else f"{self.noun} --by {self.way}"


_ENTRIES: Final = """
    findings findings traceprof.findings:FINDINGS ranked advice: what costs time and what to do
        about it
    breakdown breakdown:device .steps.breakdown:BREAKDOWN time per GPU: compute, exposed
        communication, exposed transfers, idle
    steps steps:step .steps.steps:STEPS every step: duration, time breakdown, phases, throughput
    phases breakdown:phase .steps.phases:LOOP_PHASES CPU and GPU time by phase of the training loop
    step-phases steps:phase .steps.phases:STEP_PHASES CPU and GPU time by phase, for every step
    layers breakdown:layer .host.layers:LAYERS CPU and GPU time by model layer
    summary summary .device.kernels:SUMMARY kernels, copies, and CUDA calls by name (like the nvprof
        summary)
    kernels kernels:name .device.kernels:KERNELS GPU time by kernel name
    durations kernels:duration .device.kernels:HISTOGRAM histogram of kernel durations, by kernel
        name
    classes kernels:class .device.kernels:CLASSES GPU time by kernel class and phase
    mfu flops:step .compute.utilization:MFU MFU and HFU: FLOPs per step compared with the dense peak
        of the GPUs
    ideal flops:ideal .compute.ideal:IDEAL waterfall from the ideal step time (at hardware peak) to
        the measured step time
    flops flops:operator .compute.rates:FLOPS FLOPs, TFLOP/s, and FLOP per byte by PyTorch operator,
        compared with hardware peaks
    flops-shapes flops:shape .compute.shapes:FLOPS_SHAPES FLOPs, TFLOP/s, and waves of products,
        convolutions, and attention by size
    flops-kernels flops:kernel .compute.rates:FLOPS_KERNELS FLOPs, TFLOP/s, and FLOP per byte by
        kernel
    flops-classes flops:class .compute.rates:FLOPS_CLASSES FLOPs, TFLOP/s, and FLOP per byte by
        kernel class
    flops-phases flops:phase .compute.rates:FLOPS_PHASES FLOPs, TFLOP/s, and FLOP per byte by phase
    flops-layers flops:layer .compute.rates:FLOPS_LAYERS FLOPs, TFLOP/s, and FLOP per byte by layer
    energy energy .compute.energy:ENERGY GPU energy from power samples; cost per step, sample, and
        token
    occupancy kernels:shape .device.occupancy:OCCUPANCY grid, block, registers, shared memory, and
        theoretical occupancy of kernels
    copies copies:direction .traffic.copies:COPIES copies by direction: bytes and GB/s
    transfers copies:size .traffic.transfers:TRANSFERS copies between host and GPU by size: GB/s
        compared with the link's peak
    bandwidth copies:time .traffic.bandwidth:BANDWIDTH copy bandwidth over time, by GPU and route
    collectives collectives:operation .collectives.by_size:COLLECTIVES collectives by operation and
        size: time, algbw, busbw, exposed time
    collective-events collectives:event .collectives.events:COLLECTIVE_EVENTS each collective: size,
        bandwidth, phase, exposed time
    callers collectives:caller .collectives.callers:CALLERS collectives by calling phase and layer:
        exposed and overlapped time
    buckets collectives:bucket .collectives.buckets:BUCKETS collectives of a step in order (DDP
        buckets)
    shared collectives:rank .collectives.shared:SHARED each collective across its ranks: time
        without waiting, last rank to arrive
    peers network:peer .traffic.peers:PEERS traffic between each pair of ranks or GPUs: messages and
        peer copies
    ranks ranks:rank .ranks.times:RANKS time breakdown and wait time of each rank
    stragglers ranks:straggler .ranks.stragglers:STRAGGLERS stragglers: which rank the other ranks
        wait for, in which phase, since when
    rank-steps ranks:step .ranks.steps:RANK_STEPS every step of every rank: time without waiting,
        wait time, lateness; a heat map
    hosts ranks:host .ranks.hosts:HOSTS hosts compared, and hosts whose ranks are all late
    racks ranks:rack .ranks.hosts:RACKS racks compared, and racks whose hosts are all late
    alignment ranks:clock .collectives.clocks:ALIGNMENT clock offsets between ranks, from the ends
        of shared collectives
    pipeline ranks:stage .ranks.pipeline:PIPELINE pipeline parallelism: the bubble of each stage
    network network:link .traffic.network:NETWORK network, NVLink, and PCIe traffic from counters,
        compared with the link's peak
    network-time network:time .traffic.network:NETWORK_TIME network, NVLink, and PCIe traffic over
        time, with the collectives that caused it
    idle idle:cause .idle.idle:IDLE causes of idle GPU time
    gaps idle:gap .idle.idle:GAPS the longest idle gaps
    streams idle:stream .device.streams:STREAMS each stream: busy time, and what it waits for
    path path:step .path.path:PATH critical path of every step
    whatif path:what-if .path.path:WHATIF what-if analysis: upper bounds on savings
    launches kernels:launch .host.launches:LAUNCHES kernel launch latency and queue depth
    sync idle:wait .idle.waits:SYNC host synchronization: where the CPU waits for the GPU
    memory memory .device.memory:MEMORY GPU memory over time, by phase
    counters counters .device.counters:COUNTERS GPU hardware counters: SMs, tensor cores, DRAM,
        links
    ranges ranges:name .host.ranges:RANGES NVTX and other host ranges by name
    range-work ranges:work .host.range_work:RANGE_WORK GPU work launched inside NVTX and other host
        ranges, by name
    tree ranges:tree .host.tree:TREE nested ranges or operators: CPU and GPU time
    range-times ranges:time .steps.range_times:RANGE_TIMES time in ranges by thread, and changes of
        their durations
    functions functions:name .host.layers:FUNCTIONS Python functions (torch.profiler or nsys
        stacks): CPU time, and GPU time launched there
    function-stacks functions:stack .host.tree:STACKS nested Python functions of the program: CPU
        and GPU time
    operators operators .host.ranges:OPERATORS CPU operators by name: self time and total time
    quality quality .quality:QUALITY problems in the trace itself
    """
FORMER_NAMES: Final = {"messages": "collective-events", "ops": "operators"}
"""Former names of analyses, still accepted, mapped to the current names."""


def _names_of(entry: Entry) -> set[str]:
    """Return all accepted names of an analysis.

    These are its name, the name as a Python identifier, its command-line words, and former names.
    """
    former = (old for old, name in FORMER_NAMES.items() if name == entry.name)
    return {entry.name, entry.name.replace("-", "_"), entry.words, *former}


ANALYSES: Final[Registry[Entry]] = Registry(
    "analysis",
    (
        Entry(name, summary, module, *shown.split(":"))
        for line in re.sub(r"\n +", " ", textwrap.dedent(_ENTRIES).strip()).splitlines()
        for name, shown, module, summary in (line.split(" ", 3),)
    ),
    _names_of,
)
"""All analyses, each with its name, noun, way, location, and line of help."""


def analysis_names() -> tuple[str, ...]:
    """Return the names of the analyses in registration order."""
    return tuple(entry.name for entry in ANALYSES)


def nouns() -> dict[str, tuple[Entry, ...]]:
    """Return the analyses by noun; the first of each noun is the one shown without ``--by``."""
    found: dict[str, list[Entry]] = {}
    for entry in ANALYSES:
        found.setdefault(entry.noun, []).append(entry)
    return {
        noun: tuple(sorted(entries, key=lambda entry: entry.name != noun))
        for noun, entries in found.items()
    }


def shown_by(name: str) -> str:
    """Return the command that shows the analysis ``name``, without the trace argument."""
    entry = next(one for one in ANALYSES if one.name == FORMER_NAMES.get(name, name))
    return "traceprof findings" if name == "findings" else f"traceprof show {entry.words}"


def names_shown(noun: str, by: str | None = None) -> list[str]:
    """Return the names of the analyses for a ``noun`` and ``by``, one or more comma-separated ways.

    The name of an analysis is also accepted as noun: "callers" means "collectives" by "caller".

    Raises:
        UsageError: the noun or the way does not exist; the message suggests the closest name.
    """
    name, known = FORMER_NAMES.get(noun, noun), nouns()
    if name in analysis_names() and by is None:
        return [name]
    if name not in known:
        if name in analysis_names():
            raise UsageError(f"--by {by}: {name} already means `{shown_by(name)}`: remove --by")
        meant = _suggestion(name, known, analysis_names())
        raise UsageError(f"unknown table {noun!r}; {meant}")
    ways = {entry.way: entry.name for entry in known[name] if entry.way}
    found = []
    for way in (by or "").split(","):
        if way not in ways:
            if not ways:
                raise UsageError(f"--by {by}: {name} has only one grouping: remove --by")
            meant = _suggestion(way, ways)
            if way == "event" and name in ("kernels", "copies"):
                meant = "use `traceprof ops TRACE`"
            raise UsageError(f"{name} has no grouping {way!r}; {meant}")
        found.append(ways[way])
    return found


def _suggestion(word: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    """Return the word of ``known`` and ``others`` that is closest to ``word``, else all known."""
    close = get_close_matches(word, [*known, *others], n=1)
    return f"did you mean {close[0]!r}?" if close else f"use {', '.join(known)}"


def load_analysis(name: str, entries: Sequence[Entry] | None = None) -> Analysis:
    """Import and return the analysis ``name``.

    Raises:
        UsageError: there is no analysis with this name.
    """
    known = ANALYSES if entries is None else entries
    name = FORMER_NAMES.get(name, name)
    for entry in known:
        if entry.name == name:
            module, _, constant = entry.module.partition(":")
            analysis: Analysis = getattr(import_module(module, __package__), constant or "ANALYSIS")
            return analysis
    raise UsageError(f"unknown analysis {name!r}; use {', '.join(e.name for e in known)}")

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
    """Where an analysis is found: its name, one line of help, and ``module:CONSTANT``.

    A module that begins with a dot is one of this package; without a constant it is ``ANALYSIS``.
    People ask for its ``noun`` ("collectives") and ``way`` ("caller"): `traceprof show NOUN --by
    WAY`. The analysis that bears the name of its noun is what the noun alone shows; without a
    noun, the name is one.
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
        """What one types behind `traceprof show`: "collectives --by caller"."""
        return self.noun if self.name == self.noun else f"{self.noun} --by {self.way}"


_ENTRIES: Final = """
    findings findings traceprof.findings:FINDINGS ranked advice: what costs time, and what to do
    breakdown breakdown:device .steps.breakdown:BREAKDOWN where the time of each device went
    steps steps:step .steps.steps:STEPS every step: duration, parts, phases, throughput
    phases breakdown:phase .steps.phases:LOOP_PHASES host and device time by phase of the training
        loop
    step-phases steps:phase .steps.phases:STEP_PHASES the phases of every step: host time against
        device time
    layers breakdown:layer .host.layers:LAYERS host and device time by layer of the model
    summary summary .device.kernels:SUMMARY kernels, copies, CUDA calls by name, as nvprof sums up
    kernels kernels:name .device.kernels:KERNELS device time by kernel name
    durations kernels:duration .device.kernels:HISTOGRAM how many launches of each kernel took how
        long
    classes kernels:class .device.kernels:CLASSES kernels by class and phase
    mfu flops:step .compute.utilisation:MFU MFU and HFU: FLOPs of a step against the dense peak of
        its GPUs
    ideal flops:ideal .compute.ideal:IDEAL the waterfall from the ideal step, at the peaks, to the
        measured one
    flops flops:operator .compute.rates:FLOPS FLOPs, TFLOP/s and FLOP per byte by operator of
        PyTorch, against the peaks
    flops-kernels flops:kernel .compute.rates:FLOPS_KERNELS FLOPs, TFLOP/s and FLOP per byte by
        kernel
    flops-classes flops:class .compute.rates:FLOPS_CLASSES FLOPs, TFLOP/s and FLOP per byte by class
        of kernels
    flops-phases flops:phase .compute.rates:FLOPS_PHASES FLOPs, TFLOP/s and FLOP per byte by phase
    flops-layers flops:layer .compute.rates:FLOPS_LAYERS FLOPs, TFLOP/s and FLOP per byte by layer
    energy energy .compute.energy:ENERGY energy of GPUs by samples of power, and the cost of a step,
        a sample, a token
    occupancy kernels:shape .device.occupancy:OCCUPANCY grid, block, registers, shared memory of
        kernels, theoretical occupancy
    copies copies:direction .traffic.copies:COPIES copies by direction, with bytes and GB/s
    transfers copies:size .traffic.transfers:TRANSFERS copies between host and devices: GB/s by size
        against the link's peak
    bandwidth copies:time .traffic.bandwidth:BANDWIDTH bandwidth of copies over time, by device and
        route
    collectives collectives:operation .collectives.by_size:COLLECTIVES collectives by operation and
        size: time, algbw, busbw, exposed
    collective-events collectives:event .collectives.events:COLLECTIVE_EVENTS every collective by
        itself: size, bandwidth, phase, exposed time
    callers collectives:caller .collectives.callers:CALLERS collectives by the phase and layer that
        called them: exposed, hidden
    buckets collectives:bucket .collectives.buckets:BUCKETS the collectives of a step in their order
        (buckets of DDP)
    shared collectives:rank .collectives.shared:SHARED collectives that ranks share: time without
        waiting, who came last
    peers network:peer .traffic.peers:PEERS who sends how much to whom: messages and peer copies
    ranks ranks:rank .ranks.times:RANKS the ranks side by side: parts of their time, and waiting
    stragglers ranks:straggler .ranks.stragglers:STRAGGLERS ranks that the others wait for: in which
        phase, since when
    rank-steps ranks:step .ranks.steps:RANK_STEPS every step of every rank: own time, waiting,
        lateness; a heat map
    hosts ranks:host .ranks.hosts:HOSTS the hosts side by side, and which is late as a whole
    racks ranks:rack .ranks.hosts:RACKS the racks side by side, and which is late as a whole
    alignment ranks:clock .collectives.clocks:ALIGNMENT the clocks of the ranks, by the ends of
        shared collectives
    pipeline ranks:stage .ranks.pipeline:PIPELINE pipeline parallelism: the bubble of each stage
    network network:link .traffic.network:NETWORK traffic of network, NVLink and PCIe by counters,
        against the link's peak
    network-time network:time .traffic.network:NETWORK_TIME traffic of network, NVLink and
        PCIe over time, beside the collectives that caused it
    idle idle:cause .idle.idle:IDLE why devices were idle
    gaps idle:gap .idle.idle:GAPS the longest idle gaps
    streams idle:stream .device.streams:STREAMS streams one by one: busy, and waiting for what
    path path:step .path.path:PATH the critical path of every step
    whatif path:what-if .path.path:WHATIF what at most could be gained
    launches kernels:launch .host.launches:LAUNCHES launch latency and queue depth
    sync idle:wait .idle.waits:SYNC where the host waits for a device
    memory memory .device.memory:MEMORY device memory over time, by phase
    counters counters .device.counters:COUNTERS what counters of the GPUs measured: SMs, tensor
        cores, DRAM, links
    ranges ranges:name .host.ranges:RANGES NVTX and other host ranges by name
    range-work ranges:work .host.range_work:RANGE_WORK device work launched inside NVTX and other
        host ranges, by name
    tree ranges:tree .host.tree:TREE ranges or operators inside one another: host and device time
    operators operators .host.ranges:OPERATORS host operators by name, self and total
    quality quality .quality:QUALITY what is suspicious in the trace itself
    """
FORMER_NAMES: Final = {"messages": "collective-events", "ops": "operators"}
"""What analyses were called before, and are still found by."""


def _names_of(entry: Entry) -> set[str]:
    """Return the names under which people find an analysis, in Python and as a table, too."""
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
"""Each with its name, its noun and way, where it is, and a line of help."""


def analysis_names() -> tuple[str, ...]:
    """Return the names of the analyses, in their order."""
    return tuple(entry.name for entry in ANALYSES)


def nouns() -> dict[str, tuple[Entry, ...]]:
    """Return what there is to show: by noun its analyses, first what the noun alone shows."""
    found: dict[str, list[Entry]] = {}
    for entry in ANALYSES:
        found.setdefault(entry.noun, []).append(entry)
    return {
        noun: tuple(sorted(own, key=lambda entry: entry.name != noun))
        for noun, own in found.items()
    }


def shown_by(name: str) -> str:
    """Return the command that shows the analysis called ``name``, without the trace."""
    entry = next(one for one in ANALYSES if one.name == FORMER_NAMES.get(name, name))
    return "traceprof findings" if name == "findings" else f"traceprof show {entry.words}"


def names_shown(noun: str, by: str | None = None) -> list[str]:
    """Return the analyses that ``noun`` is shown by: ``by`` is a way of it, or several.

    A name of an analysis is one, too: "callers" is "collectives" by "caller".

    Raises:
        UsageError: there is no such noun or way; the message says what was meant.
    """
    name, known = FORMER_NAMES.get(noun, noun), nouns()
    if name in analysis_names() and by is None:
        return [name]
    if name not in known:
        if name in analysis_names():
            raise UsageError(f"--by {by}: {name} is `{shown_by(name)}` already")
        close = get_close_matches(name, [*known, *analysis_names()], n=1)
        meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise UsageError(f"no table {noun!r}: {meant}")
    ways = {entry.way: entry.name for entry in known[name] if entry.way}
    found = []
    for way in (by or "").split(","):
        if way not in ways:
            if not ways:
                raise UsageError(f"--by {by}: {name} is shown in one way, without --by")
            close = get_close_matches(way, ways, n=1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(ways)}"
            if way == "event" and name in ("kernels", "copies"):
                meant = "`traceprof ops TRACE` prints them one by one"
            raise UsageError(f"{name} --by {way}: {meant}")
        found.append(ways[way])
    return found


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

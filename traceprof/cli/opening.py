"""Opening what the user named: one trace, or a run of several, and what he said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.model.activity import Rule
    from traceprof.model.cluster import Cluster
    from traceprof.model.hardware import Hardware
    from traceprof.model.run import Run
    from traceprof.model.trace import Trace

__all__ = ["Align", "Opening", "open_members", "open_named", "open_with_notes"]


class Align(StrEnum):
    """How the clocks of the ranks of a run are put together."""

    AUTO = "auto"
    COLLECTIVES = "collectives"
    UTC = "utc"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Opening:
    """What the options say of how to read: kernel classes, clocks, hardware, hosts and racks."""

    rules: Path | None = None
    align: Align = Align.AUTO
    gpu: str | None = None
    links: Sequence[str] = ()
    hardware: Path | None = None
    racks: Sequence[str] = ()
    cluster: Path | None = None


def open_members(paths: Sequence[Path | str], opening: Opening | None = None) -> Run:
    """Return the run in ``paths``; a single file is a run of one member, however many processes.

    Raises:
        TraceError: nothing is found, or what is found cannot be read.
    """
    from traceprof.formats import ReadOptions, open_trace
    from traceprof.formats.runs.files import is_run, open_run
    from traceprof.model.run import RankTrace, Run

    options = ReadOptions(rules=_rules(opening.rules if opening else None))
    if is_run(paths):
        return open_run(paths, options)
    return Run(str(paths[0]), (RankTrace(open_trace(paths[0], options)),))


def open_named(paths: Sequence[Path | str], opening: Opening | None = None) -> Trace:
    """Return the Trace of one file, or of all ranks of a run (directory, pattern, manifest).

    Raises:
        TraceError: nothing is found, or what is found cannot be read.
        UsageError: an option makes no sense.
    """
    return open_with_notes(paths, opening)[0]


def open_with_notes(
    paths: Sequence[Path | str], opening: Opening | None = None
) -> tuple[Trace, tuple[str, ...]]:
    """Return what `open_named` does, and remarks on how the clocks of a run were put together."""
    from traceprof.model.merge import merge_run

    opening = opening or Opening()
    hardware = _hardware(opening)
    cluster = _cluster(opening)
    run = open_members(paths, opening)
    offsets = [0] * len(run) if opening.align is Align.NONE else None
    trace = merge_run(run, offsets)
    if cluster is not None:
        trace = cluster.placed(trace)
    notes: tuple[str, ...] = ()
    files = {member.trace.info.path for member in run}
    if len(files) > 1 and opening.align in (Align.AUTO, Align.COLLECTIVES):
        trace, notes = _aligned(trace)
    if hardware is not None:
        trace = trace.with_hardware(hardware)
    return replace(trace, info=replace(trace.info, path=" ".join(map(str, paths)))), notes


def _aligned(trace: Trace) -> tuple[Trace, tuple[str, ...]]:
    from traceprof.analysis.ranks.alignment import align_clocks, measure_alignment

    alignment = measure_alignment(trace)
    if len(alignment.corrections) < 2:
        return trace, ("no collectives are shared: the clocks are aligned by wall time",)
    notes = tuple(f"clocks aligned, {note}" for note in alignment.notes)
    return align_clocks(trace, alignment), notes


def _hardware(opening: Opening) -> Hardware | None:
    """Return what the user said of the hardware, in front of the built-in table."""
    from traceprof.model.hardware import built_in_hardware, parse_hardware

    if not (opening.gpu or opening.links or opening.hardware):
        return None
    hardware = built_in_hardware()
    if opening.hardware is not None:
        hardware = parse_hardware(_read(opening.hardware)).over(hardware)
    if opening.gpu is not None:
        hardware = hardware.with_gpu(opening.gpu)
    for link in opening.links:
        hardware = hardware.with_link(link)
    return hardware


def _cluster(opening: Opening) -> Cluster | None:
    """Return what the user said of hosts and racks."""
    from traceprof.model.cluster import Cluster, parse_cluster

    if not (opening.racks or opening.cluster):
        return None
    cluster = parse_cluster(_read(opening.cluster)) if opening.cluster else Cluster()
    for rack in opening.racks:
        cluster = cluster.with_rack(rack)
    return cluster


def _rules(path: Path | None) -> Sequence[Rule]:
    """Return the rules in the user's TOML file ``path``, before the built-in ones."""
    from traceprof.model.activity import RULES, parse_rules

    return RULES if path is None else parse_rules(_read(path))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error

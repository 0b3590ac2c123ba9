"""The files that the user named: one trace, or a run of several, as they are or on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from traceprof.errors import UsageError
from traceprof.files import kind_of_no_file
from traceprof.formats import Outline, ReadOptions, open_trace, outline
from traceprof.formats.contract import trace_of_outline
from traceprof.formats.runs.files import is_run, open_run, outline_run
from traceprof.hardware.catalogue import Hardware, built_in_hardware, parse_hardware
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.timing import TimeWindow
from traceprof.model.topology import Topology, parse_topology
from traceprof.model.trace import Trace
from traceprof.names.classes import KernelRule, parse_rules
from traceprof.session.one_run import check_one_run
from traceprof.session.options import Align, Opening
from traceprof.workers.choice import pool_for

__all__ = ["open_files", "outline_files", "place_files", "read_window", "rules_of"]


def open_files(
    paths: Sequence[Path | str],
    opening: Opening,
    tables: frozenset[str] | None = None,
    *,
    only_steps: bool = False,
) -> RunFiles:
    """Return the traces in ``paths``; a single file is a run of one member.

    ``tables`` are those that are read, None for all; ``only_steps``: of ranges those that can be
    steps (see `traceprof.formats.contract.ReadOptions`).

    Raises:
        TraceError: nothing is found, or what is found cannot be read.
        UsageError: the files that were named look like several runs.
    """
    options = ReadOptions(
        rules_of(opening), tables, only_steps=only_steps, keeps_secrets=opening.keeps_secrets
    )
    if is_run(paths):
        run = open_run(
            paths,
            options,
            opening.life,
            choose_crew=partial(pool_for, jobs=opening.jobs, scheduler=opening.scheduler),
            allow_missing=opening.allow_missing,
        )
        if not opening.is_one_run:
            check_one_run(paths, run)
        return run
    return RunFiles(str(paths[0]), (RankTrace(open_trace(paths[0], options)),))


def outline_files(
    paths: Sequence[Path | str], opening: Opening
) -> tuple[RunFiles, Mapping[str, Outline]]:
    """Return the traces in ``paths`` without their events, and the outlines of the files by path.

    Raises:
        TraceError: nothing is found, or what is found cannot be read.
        UsageError: the files that were named look like several runs, or an option makes no sense.
    """
    rules_of(opening)
    if is_run(paths):
        run, outlines = outline_run(paths, opening.life, allow_missing=opening.allow_missing)
        if not opening.is_one_run:
            check_one_run(paths, run)
        return run, outlines
    found = outline(paths[0])
    trace = trace_of_outline(found)
    return RunFiles(str(paths[0]), (RankTrace(trace),)), {trace.info.path: found}


def read_window(
    ranks: Ranks, opening: Opening, tables: frozenset[str], read: frozenset[str], window: TimeWindow
) -> Ranks:
    """Return the one file of ``ranks`` with ``tables``, those of events in ``window`` alone.

    Of ``tables`` those in ``read`` are there already, among them all that hold no events.
    """
    known = ranks.whole.parts[0]
    options = ReadOptions(
        rules_of(opening), tables - read, window, known, keeps_secrets=opening.keeps_secrets
    )
    kept = {name: known.table(name) for name in read}
    return ranks.map(lambda part: open_trace(part.info.path, options).with_tables(kept))


def place_files(files: RunFiles, opening: Opening) -> Ranks:
    """Return the ranks of ``files`` by their wall clocks, on what ``opening`` says of machines.

    Raises:
        UsageError: an option makes no sense.
    """
    hardware, cluster = _hardware(opening), _cluster(opening)
    ranks = place_run(files, [0] * len(files) if opening.align is Align.NONE else None)
    if cluster is not None:
        ranks = cluster.placed(ranks)
    if hardware is not None:
        ranks = ranks.map(Trace.with_hardware, hardware)
    return ranks


def _hardware(opening: Opening) -> Hardware | None:
    """Return what the user said of the hardware, in front of the built-in table."""
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


def _cluster(opening: Opening) -> Topology | None:
    """Return what the user said of hosts and racks."""
    if not (opening.racks or opening.cluster):
        return None
    cluster = parse_topology(_read(opening.cluster)) if opening.cluster else Topology()
    for rack in opening.racks:
        cluster = cluster.with_rack(rack)
    return cluster


def rules_of(opening: Opening) -> Sequence[KernelRule]:
    """Return the rules in the user's TOML file, none without one.

    Raises:
        UsageError: it cannot be read, or holds no rules.
    """
    return () if opening.rules is None else parse_rules(_read(opening.rules))


def _read(path: Path) -> str:
    if kind := kind_of_no_file(path):
        raise UsageError(f"{path}: {kind}, where a file is expected")
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error

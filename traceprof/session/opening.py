"""Opens the trace or run that the user named, and applies the user's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceprof.errors import TraceError, UsageError
from traceprof.files import special_file_kind
from traceprof.formats import Outline, ReadOptions, open_trace, outline
from traceprof.formats.contract import trace_of_outline
from traceprof.formats.runs.files import is_run, open_run, outline_run
from traceprof.hardware.catalogue import Hardware, Stated, built_in_hardware, parse_hardware
from traceprof.model.placement import UNTIED_CLOCKS, place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.results import Note
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.classes import UserRule, parse_rules
from traceprof.session.options import Align, Opening

if TYPE_CHECKING:
    from traceprof.model.topology import Topology


def open_files(
    paths: Sequence[Path | str],
    opening: Opening,
    tables: frozenset[str] | None = None,
    *,
    only_steps: bool = False,
) -> RunFiles:
    """Return the traces in ``paths``; a single file is a run with one member.

    ``tables`` are the tables to read (None: all). ``only_steps``: read only ranges that can be
    steps (see `traceprof.formats.contract.ReadOptions`).

    Raises:
        TraceError: no file is found, or a file cannot be read.
        SeveralRunsError: the files belong to several runs.
    """
    options = ReadOptions(
        rules_of(opening), tables, only_steps=only_steps, keeps_secrets=opening.keeps_secrets
    )
    if is_run(paths):
        from traceprof.workers.choice import pool_for

        return open_run(
            paths,
            options,
            opening.attempt,
            choose_pool=partial(pool_for, jobs=opening.jobs, scheduler=opening.scheduler),
            allow_missing=opening.allow_missing,
            is_one=opening.is_one_run,
        )
    return RunFiles(str(paths[0]), (RankTrace(open_trace(paths[0], options)),))


def outline_files(
    paths: Sequence[Path | str], opening: Opening
) -> tuple[RunFiles, Mapping[str, Outline]]:
    """Return the traces in ``paths`` without their events, and the outlines of the files by path.

    Raises:
        TraceError: no file is found, or a file cannot be read.
        SeveralRunsError: the files belong to several runs.
        UsageError: an option is invalid.
    """
    rules_of(opening)
    if is_run(paths):
        return outline_run(
            paths, opening.attempt, allow_missing=opening.allow_missing, is_one=opening.is_one_run
        )
    found = outline(paths[0])
    trace = trace_of_outline(found)
    return RunFiles(str(paths[0]), (RankTrace(trace),)), {trace.info.path: found}


def read_more(
    ranks: Ranks, opening: Opening, tables: frozenset[str], window: TimeWindow | None = None
) -> Ranks:
    """Return the single file of ``ranks`` with more ``tables``, with events only in ``window``.

    The tables without events must have been read before.
    """
    known = ranks.whole.parts[0]
    options = ReadOptions(
        rules_of(opening), tables, window, known, keeps_secrets=opening.keeps_secrets
    )
    kept = {name: known.table(name) for name in TABLES if name not in tables}
    more = ranks.map(lambda part: open_trace(part.info.path, options).with_tables(kept))
    all_warnings = (text for part in more.whole for text in part.info.warnings)
    return more.with_warnings(*(text for text in all_warnings if text not in ranks.info.warnings))


def place_files(files: RunFiles, opening: Opening) -> Ranks:
    """Return the ranks of ``files`` on their wall clocks, with hosts and hardware of ``opening``.

    Raises:
        UsageError: an option is invalid.
    """
    ranks = place_run(files, [0] * len(files) if opening.align is Align.NONE else None)
    if opening.racks or opening.cluster:
        ranks = _cluster(opening).placed(ranks)
    stated = opening.model_flops or opening.parameters or opening.tokens or opening.price
    from_user = (opening.gpu, opening.links, opening.hardware, opening.link_from, stated)
    if any(from_user):
        ranks = ranks.map(Trace.with_hardware, _hardware(opening))
    return ranks


def _hardware(opening: Opening) -> Hardware:
    """Return the hardware from the user's options, which overrides the built-in table."""
    hardware = built_in_hardware()
    if opening.hardware is not None:
        hardware = parse_hardware(_read(opening.hardware)).over(hardware)
    if opening.gpu is not None:
        hardware = hardware.with_gpu(opening.gpu)
    for link in opening.links:
        hardware = hardware.with_link(link)
    stated = (opening.model_flops, opening.parameters, opening.tokens, opening.price)
    hardware = replace(hardware, stated=Stated.of(*stated))
    if opening.link_from is None:
        return hardware
    from traceprof.hardware.link_tests import parse_link_tests

    return replace(hardware, tests=parse_link_tests(_read(opening.link_from)))


def _cluster(opening: Opening) -> Topology:
    """Return the hosts and racks from the user's options."""
    from traceprof.model.topology import Topology, parse_topology

    cluster = parse_topology(_read(opening.cluster)) if opening.cluster else Topology()
    for rack in opening.racks:
        cluster = cluster.with_rack(rack)
    return cluster


def rules_of(opening: Opening) -> Sequence[UserRule]:
    """Return the kernel rules in the user's TOML file (none without a file).

    Raises:
        TraceError: the file cannot be read.
        UsageError: the file contains no rules.
    """
    return () if opening.rules is None else parse_rules(_read(opening.rules))


def _read(path: Path) -> str:
    """Return the text of a file.

    Raises:
        TraceError: the file cannot be read.
        UsageError: ``path`` is not a file.
    """
    if kind := special_file_kind(path):
        raise UsageError(f"{path}: expected a file, found {kind}")
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TraceError(f"{path}: cannot read the file: {reason}") from error


_OF_RUNS: Final = frozenset({"processes", "environment", "devices"})
"""The tables that identify the rank of each file and the devices."""
TIED_BY: Final = frozenset({"kernels", "api_calls", "ranges", "collectives", "processes"})
"""The tables in which collectives are found. They align clocks of files, and ranks have roles."""
_BY_WALL_TIME: Final = "traceprof aligned the clocks by wall time."
_TIMES_OF_STEPS: Final = frozenset({"ranges"})


def open_ranks(
    paths: Sequence[Path | str],
    opening: Opening,
    tables: frozenset[str] | None = None,
    *,
    only_steps: bool = False,
) -> tuple[Ranks, tuple[Note, ...]]:
    """Return the ranks in ``paths`` on one clock, by the options, and notes on the clocks.

    ``tables`` are the tables to read (None: all). For several files, tables that align clocks are
    added. ``only_steps``: for a single file, read only ranges that can be steps.

    Raises:
        TraceError: no file is found, or a file cannot be read.
        UsageError: an option is invalid.
    """
    # Imported here: `contents` needs no steps, and these modules are slow to import.
    from traceprof.measures.steps.find import decide_steps, mark_steps

    if opening.samples is not None:
        tables = None  # the samples belong to devices, which any table can show
    is_several = is_run(paths)
    is_tied = is_several and opening.align in (Align.AUTO, Align.COLLECTIVES)
    if tables is not None:
        tables |= _TIMES_OF_STEPS if opening.step_ranges is not None else frozenset()
        tables |= (_OF_RUNS if is_several else frozenset()) | (TIED_BY if is_tied else frozenset())
    only_steps &= not is_several and opening.step_ranges is None
    files = open_files(paths, opening, tables, only_steps=only_steps)
    ranks = place_files(files, opening)
    notes: tuple[Note, ...] = ()
    if opening.samples is not None:
        from traceprof.session.gpu_samples import with_gpu_samples

        ranks, note = with_gpu_samples(ranks, opening.samples)
        notes = (note,)
    if len(ranks) > 1 and is_tied:
        ranks, on_clocks = _aligned(ranks)
        notes += on_clocks
    if opening.warmup_steps is not None:
        ranks = ranks.map(Trace.with_warmup, opening.warmup_steps)
    if opening.step_ranges is not None:
        ranks = mark_steps(ranks, opening.step_ranges)
    elif len(ranks) > 1:  # the steps of a single rank are found when they are needed
        ranks = _with_roles(decide_steps(ranks)) if is_tied else decide_steps(ranks)
    return replace(ranks, info=replace(ranks.info, path=" ".join(map(str, paths)))), notes


def of_each_rank(ranks: Ranks) -> Ranks:
    """Return a run with one trace per rank, also if one file contains the CPUs of several ranks."""
    # Imported here: most traces contain work on GPUs.
    from traceprof.measures.steps.find import decide_steps
    from traceprof.model.separate import separate_ranks

    separate = separate_ranks(ranks)
    if separate is ranks or separate.parts[0].steps is not None:  # marked by --step-ranges
        return separate
    return _with_roles(decide_steps(separate))


def _with_roles(ranks: Ranks) -> Ranks:
    # Imported here: a single file has no roles. Collectives, which roles need, are read.
    """Return the ranks with a rollout and its updates as one step, if they have roles.

    They also know when a GPU of one role waits for the other role.
    """
    from traceprof.measures.ranks.role_waits import with_waits_for_roles
    from traceprof.measures.ranks.rounds import join_steps_of_roles

    return with_waits_for_roles(join_steps_of_roles(ranks))


def _aligned(ranks: Ranks) -> tuple[Ranks, tuple[Note, ...]]:
    # Imported here: a single file needs no alignment, and the module is slow to import.
    """Return the ranks with clocks aligned by collectives if possible, and notes on that."""
    from traceprof.measures.collectives.clocks import align_clocks, find_alignment

    alignment = find_alignment(ranks)
    if len(alignment.corrections) < 2:
        by_wall_time = () if UNTIED_CLOCKS in ranks.info.warnings else (Note(_BY_WALL_TIME),)
        return ranks, (*alignment.notes, *by_wall_time)
    aligned = align_clocks(ranks, alignment)
    # The aligned run already has warnings on ranks without shared collectives.
    about = (note for note in alignment.notes if note.text not in aligned.info.warnings)
    return aligned, tuple(about)

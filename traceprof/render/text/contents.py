"""Format the output of ``traceprof info`` for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traceprof.measures import shown_by
from traceprof.model.results import ResultSpec
from traceprof.model.table import Table as ModelTable
from traceprof.model.trace import how_to_record, merge_similar_warnings
from traceprof.render.escape import plain_text
from traceprof.render.registry import Options
from traceprof.render.shown import shown_table
from traceprof.render.text.tables import printed, table_view, unbroken
from traceprof.session.contents import Contents
from traceprof.units import format_bytes, format_count, format_duration

_SHOW_ALL: Final = "--rows N, --json"
_RANKS, _ATTEMPTS = ResultSpec.of("""
    table ranks: files of the run
    same rank: rank of the process
    same local_rank: rank within the host
    same host: host of the rank
    same rack: rack of the host
    same detected_by: source of the rank number
    same format: file format
    key path: file
    table attempts: every attempt of every rank
    key attempt [number]: attempt of the job, counted from 0
    key rank: rank of the process
    same host: host of the rank
    same started_utc: start time of the rank, in UTC
    same duration_ns: run time of the rank
    same ended: reason why the rank ended
    same world_size [number]: number of ranks in the attempt
    same path: file
    """).tables


def render_contents(contents: Contents, options: Options) -> str:
    """Return the contents of a trace as lines of at most ``options.line_width`` characters.

    The lines list facts, the ranks and attempts of a run, warnings, and further commands. Each
    list has at most ``options.rows`` entries.
    """
    every = contents.devices, contents.processes, contents.ranks, contents.attempts
    most = options.rows or max(map(len, every))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for label, value in _facts(contents, most):
        facts.add_row(label, Text(plain_text(value)))
    parts: list[RenderableType] = [Text(plain_text(contents.info.path), style="bold"), facts]
    for title, spec, rows in (
        ("Ranks", _RANKS, contents.ranks),
        ("Attempts", _ATTEMPTS, contents.attempts),
    ):
        if rows:
            shown = [{**asdict(row), "path": Path(row.path).name} for row in rows[:most]]
            values = ModelTable.of_rows(shown)
            table = table_view(shown_table(spec, values), most, options)
            parts += [Text(f"{title} ".ljust(options.width, "─"), "dim"), table]
            parts += [Text(f"{n} more ({_SHOW_ALL})", "dim")] if (n := len(rows) - most) > 0 else []
    warnings = merge_similar_warnings(contents.info.warnings)
    parts += [Text(f"warning: {plain_text(w)}", style="yellow") for w in warnings]
    path = plain_text(shlex.quote(contents.info.path))
    more = (f"{shown_by(table)} {path}" for table in ("quality", "steps"))
    parts += [unbroken(Text(f"more: {command}", style="dim")) for command in more]
    return printed(Group(*parts), options)


def _facts(contents: Contents, most: int) -> Iterator[tuple[str, str]]:
    """Yield label and text of each fact; lists of hosts, GPUs, and processes have ``most``."""
    info = contents.info
    schema = f", schema {info.schema_version}" if info.schema_version else ""
    yield "profiler", f"{info.profiler} ({info.format}{schema})"
    hosts = (info.host or contents.environment.get("host", "not recorded")).split(", ")
    left = len(hosts) - most
    yield "host", ", ".join(hosts[:most]) + (f" and {left} more ({_SHOW_ALL})" if left > 0 else "")
    yield "started", contents.started_utc or "not recorded"
    yield "duration", format_duration(contents.span.duration_ns)
    for device in contents.devices[:most]:
        memory = "" if device.memory_bytes is None else f", {format_bytes(device.memory_bytes)}"
        yield (
            f"GPU {device.device}",
            f"{device.name or 'name not recorded'}{memory}: {format_count(device.kernels)} "
            f"kernels, {format_count(device.copies)} copies and memsets",
        )
    if (left := len(contents.devices) - most) > 0:
        yield "", f"{left} more {'GPU' if left == 1 else 'GPUs'} ({_SHOW_ALL})"
    if contents.n_unused_devices:
        more = "more " if contents.devices else ""
        gpus = "GPU" if contents.n_unused_devices == 1 else "GPUs"
        is_known = contents.rows.get("kernels") is not None
        work = "without activity in this trace" if is_known else "without recorded activity"
        yield "", f"{contents.n_unused_devices} {more}{gpus} {work}"
    for process in contents.processes[:most]:
        rank = "" if process.rank is None else f", rank {process.rank}"
        yield (
            f"process {process.process}",
            f"{process.name or 'name not recorded'}{rank}: {format_count(process.api_calls)} "
            f"API calls, {format_count(process.ranges)} ranges, "
            f"{format_count(process.host_ops)} host operators",
        )
    yield from _remarks_on_processes(contents, len(contents.processes) - most)
    recorded = {name: count for name, count in contents.rows.items() if count is not None}
    counts = (f"{format_count(n)} {name.replace('_', ' ')}" for name, n in recorded.items())
    yield "recorded", ", ".join(counts) or "nothing"
    if info.unread:
        yield "not read", ", ".join(info.unread)
    for name in ("kernels", "ranges"):
        if name not in recorded:
            yield "not recorded", f"{name}: {how_to_record(name, contents.info, recorded)}"


def _remarks_on_processes(contents: Contents, n_left: int) -> Iterator[tuple[str, str]]:
    """Yield how many processes are not listed, and how many are not ranks of one job."""
    if n_left > 0:
        yield "", f"{n_left} more {'process' if n_left == 1 else 'processes'} ({_SHOW_ALL})"
    if n_apart := contents.independent_count:
        yield "", f"{n_apart} independent processes: no rank and no process group was recorded"

"""Read Kineto (torch.profiler) Chrome traces, 2021 to 2026, NVIDIA and AMD, plain or gzip."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from traceprof.errors import TraceError
from traceprof.formats.contract import ReadOptions
from traceprof.formats.kineto import header
from traceprof.formats.kineto import rows as kineto
from traceprof.formats.kineto.collectives import make_collectives
from traceprof.formats.kineto.events import KinetoEvents, read_kineto_events
from traceprof.formats.kineto.format import FORMAT
from traceprof.formats.kineto.merged import bind_device_work, devices_of, is_labelled
from traceprof.formats.kineto.rows import IGNORED_CATEGORIES
from traceprof.formats.kineto.stacks import FUNCTIONS, are_functions
from traceprof.formats.shared.collectives import annotated_collectives
from traceprof.formats.shared.redaction import masked_trace, secrets_of_values
from traceprof.model.table import Table
from traceprof.model.tables import empty_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace, make_trace


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a Kineto file.

    Time 0 is its first event, or the start of its window if the file was cut and that is earlier.

    Raises:
        TraceError: the file contains no events to analyze.
    """
    details: dict[str, Any] = {
        "keep": kineto.least_ns_read,
        "phases": kineto.PHASES,
        "with_shapes": options.wants("kernel_shapes"),
        "with_inputs": options.wants("operator_inputs"),
    }
    events = read_kineto_events(path, **details)
    if is_labelled(events):
        events = read_kineto_events(path, is_labelled=True, **details)
    note = header.cut_note_in(events.header.get(header.NOTE))
    window = note.window
    has_time = kineto.have_times(events)
    is_counted = has_time & ~are_functions(events.category, events.name)
    if not is_counted.any() and window is None:
        raise TraceError(f"{path}: {_why_nothing(events)}")
    starts_ns = [int(events.start_ns[is_counted].min())] if is_counted.any() else []
    zero_ns = min(starts_ns if window is None else [*starts_ns, window.start_ns])
    rows = kineto.all_rows(events, zero_ns, kineto.ON_HOST)
    n_untimed = int((~has_time).sum())
    rows = rows.where(has_time) if n_untimed else rows
    merged = bind_device_work(rows)
    rank_of = header.ranks_of(events, merged)
    tables = _tables(merged.rows, options, rank_of)
    process_columns = [table["process"] for table in tables.values() if "process" in table]
    used = np.unique(np.concatenate(process_columns))
    used = used[used >= 0]
    with_work = np.concatenate([tables[name]["device"] for name in ("kernels", "copies")])
    devices = [merged.given.get(device, device) for device in np.unique(with_work).tolist()]
    tables |= {
        "devices": devices_of(header.make_devices(events.header, devices), merged.given),
        "processes": header.make_processes(events, used, rank_of, merged),
        "threads": header.make_threads(events, used),
        "environment": header.make_environment(events.header),
    }
    info = header.make_info(path, events, zero_ns, FORMAT.name, n_untimed)
    info = replace(
        info, is_part=window is not None, has_some_devices_only=note.has_some_devices_only
    )
    has_rows = {name for name, table in tables.items() if len(table)}
    has_rows |= {"kernel_shapes"} if events.has_shapes else set()
    has_rows |= {"operator_inputs"} if events.has_inputs else set()
    has_rows |= {"functions"} if events.header.get("with_stack") else set()
    recorded = note.recorded_of(has_rows, _recorded(has_rows | note.recorded))
    trace = make_trace(info, tables, recorded).with_worked(note.devices)
    changed = {new: old for new, old in merged.given.items() if new != old}
    trace = replace(trace.with_warnings(*merged.warnings), device_numbers_in_file=changed)
    secrets = () if options.keeps_secrets else secrets_of_values(events.header)
    trace = masked_trace(trace, secrets) if secrets else trace
    if window is None:
        return trace
    covered = TimeWindow(window.start_ns - zero_ns, window.end_ns - zero_ns)
    return replace(trace, span=trace.span | covered)


def _tables(
    rows: kineto.Rows, options: ReadOptions, rank_of: Mapping[int, int]
) -> dict[str, Table]:
    """Return the event tables of the trace."""
    is_function = are_functions(rows.category, rows.name)
    functions = rows.where(is_function)
    rows = rows.where(~is_function) if len(functions) else rows
    operators, of_kernels = rows.of(*kineto.OPERATORS), rows.of(*kineto.KERNELS)
    made: Mapping[str, tuple[Callable[[kineto.Rows], Table], kineto.Rows]] = {
        "kernels": (lambda table_rows: kineto.make_kernels(table_rows, options), of_kernels),
        "kernel_shapes": (kineto.make_kernel_shapes, of_kernels),
        "copies": (kineto.make_copies, rows.of(*kineto.COPIES)),
        "api_calls": (kineto.make_api_calls, rows.of(*kineto.API_CALLS)),
        "host_ops": (kineto.make_host_ops, rows.of(*kineto.OPERATORS, *kineto.HOST_SOURCES)),
        "operator_inputs": (kineto.make_operator_inputs, operators),
        "syncs": (kineto.make_syncs, rows.of(*kineto.SYNCS)),
        "samples": (kineto.make_samples, rows.of(*kineto.MEMORY)),
        "overheads": (kineto.make_overheads, rows.of(*kineto.OVERHEADS)),
    }
    tables = {
        name: make(table_rows) if len(table_rows) else empty_table(name)
        for name, (make, table_rows) in made.items()
    }
    tables["functions"] = kineto.make_function_calls(functions, rows)
    kernels, api_calls = tables["kernels"], tables["api_calls"]
    ranges = kineto.make_ranges(rows.of(*kineto.ANNOTATIONS), operators, rows.of(*FUNCTIONS))
    collectives = make_collectives(rows, kernels, api_calls, rank_of)
    for annotated in (ranges, tables["host_ops"]):
        if collectives.empty:
            collectives = annotated_collectives(annotated, kernels, api_calls)
    return {**tables, "ranges": ranges, "collectives": collectives}


def _recorded(has_rows: set[str]) -> set[str]:
    """Return the tables that the user requested: the profiler's activities are CPU and CUDA."""
    activities = {"kernels", "copies", "api_calls"}, {"host_ops", "ranges"}
    return has_rows.union(*(activity for activity in activities if activity & has_rows))


_KINETO_KEYS: Final = frozenset(
    ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "trace_id")
)
"""Top-level keys that Kineto writes."""
_CATEGORIES_OF: Final = {
    "NCCL's profiler plugin": {"GROUP_API", "COLL_API", "P2P_API", "COLL", "P2P", "PROXY", "NET"}
}
_PROCESSES_OF: Final = {
    "Ascend's profiler": re.compile(r"Ascend Hardware|CANN"),
    "TensorFlow (timeline)": re.compile("^/job:"),
    "jax.profiler or TensorFlow": re.compile(r"/(device|host):"),
    "rocprof or rocmProfileData": re.compile(r"\b(HIP|HSA) API|^\d+ GPU\d+$"),
}
"""Other programs that write Chrome traces, and the names of their categories or processes."""


def _why_nothing(events: KinetoEvents) -> str:
    """Return the reason why a file has no events to analyze."""
    if not events.has_array:
        return "not a torch.profiler trace (the JSON contains no traceEvents)"
    if not events.is_complete:
        return "the torch.profiler trace is truncated before its first event; record it again"
    if not events.category.isin(FUNCTIONS).all():
        return "no event has a timestamp (the profiler wrote 0 for all); record the trace again"
    if sentences := header.left_out(events):
        return f"no events to analyze: {sentences[0]}"
    unread = header.unread_kinds(events)
    kinds = header.listed(sorted(map(header.named, unread)))
    if _KINETO_KEYS & events.header.keys() or IGNORED_CATEGORIES & events.unread.keys():
        if unread:
            return (
                f"the torch.profiler trace contains only categories that traceprof cannot read "
                f"({kinds}); record with activities CPU and CUDA"
            )
        return "the torch.profiler trace is empty; profiling stopped before its first active step"
    if not unread:
        return "the Chrome trace is empty; record with torch.profiler or `traceprof record`"
    names = list(events.process_names.values())
    programs = [name for name, marks in _CATEGORIES_OF.items() if marks & unread.keys()]
    programs += [name for name, marks in _PROCESSES_OF.items() if any(map(marks.search, names))]
    processes = f"; processes {', '.join(names[:_MAX_LISTED_NAMES])}" if names else ""
    return (
        f"traceprof cannot read Chrome traces of {programs[0] if programs else 'another program'} "
        f"(event categories {kinds}{processes}); open the trace in ui.perfetto.dev, or record with "
        "torch.profiler or `traceprof record`"
    )


_MAX_LISTED_NAMES: Final = 5

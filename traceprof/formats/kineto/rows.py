"""Convert the rows of a Kineto trace to tables, by category.

The categories are those of all versions of Kineto. Only this module decides which events become
rows, because time 0 of a trace is the first of these events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.contract import ReadOptions
from traceprof.formats.kineto.events import KinetoEvents
from traceprof.formats.kineto.parse import NO_SHAPE, NO_TIME, SHAPE, KinetoEvent
from traceprof.formats.kineto.stacks import (
    FUNCTIONS,
    MIN_FUNCTION_NS,
    MODULE_PREFIX,
    are_functions,
    is_function,
    make_functions,
)
from traceprof.formats.shared.cupti import plain_api_name, with_depth
from traceprof.model.grouping import numbered
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.model.timing import TimeWindow
from traceprof.names.classes import classify

_NAMELESS: Final = 0
"""The process of a trace that has only GPU rows."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Events as columns; ``host_process`` is the process that was traced.

    ``owner`` is the process of each row, including GPU rows, if there are several processes.
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    process: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    category: Names
    name: Names
    arguments: Mapping[str, Any]
    host_process: int
    shapes: npt.NDArray[np.int64] | None = None
    owner: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def owners(self) -> npt.NDArray[np.int64]:
        """The process of each row."""
        return np.full(len(self), self.host_process) if self.owner is None else self.owner

    def of(self, *categories: str) -> Rows:
        """Return the rows of these categories."""
        return self.where(self.category.isin(categories))

    def where(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """Return the rows where ``chosen`` is true."""
        places = np.flatnonzero(chosen)  # faster than a mask for each column if few are chosen
        taken: dict[str, Any] = {
            name: getattr(self, name)[places]
            for name in ("start_ns", "end_ns", "process", "thread", "category")
        }
        taken["name"] = self.name[places].used()
        taken["arguments"] = _SelectedArguments(self.arguments, places)
        taken["owner"] = None if self.owner is None else self.owner[places]
        return replace(self, shapes=None if self.shapes is None else self.shapes[places], **taken)

    def number(self, argument: str) -> npt.NDArray[np.int64]:
        """Return an argument that is a whole number; `ABSENT` if a row has none."""
        values: npt.NDArray[np.int64] = self.arguments[argument]
        return values

    def text(self, argument: str) -> Names:
        """Return an argument that is a text; "" if a row has none."""
        values: Names = self.arguments[argument]
        return values

    def named(self, matches: Any) -> npt.NDArray[np.bool_]:
        """Return the rows for which ``matches(name)`` is true, called once per distinct name."""
        names = self.name.texts.tolist()
        return self.name.by_text(np.array([bool(matches(name)) for name in names], np.bool_))


@dataclass(frozen=True, slots=True)
class _SelectedArguments(Mapping[str, Any]):
    """The arguments of some rows; each argument is selected when it is read."""

    every: Mapping[str, Any]
    places: npt.NDArray[np.int64]

    def __getitem__(self, name: str) -> Any:
        values = self.every[name]
        if isinstance(values, np.ndarray) and values.strides == (0,):
            return values[: len(self.places)]  # one value broadcast to all rows: no copy
        return values[self.places]

    def __iter__(self) -> Iterator[str]:
        return iter(self.every)

    def __len__(self) -> int:
        return len(self.every)


def all_rows(events: KinetoEvents, zero_ns: int, host_categories: tuple[str, ...]) -> Rows:
    """Return every event, in ns since ``zero_ns``."""
    on_host = events.process[
        events.category.isin(host_categories) & ~are_functions(events.category, events.name)
    ]
    processes, counts = np.unique(on_host[on_host != ABSENT], return_counts=True)
    return Rows(
        *(events.start_ns - zero_ns, events.end_ns - zero_ns, events.process, events.thread),
        *(events.category, events.name, events.arguments),
        int(processes[counts.argmax()]) if len(processes) else _NAMELESS,
        events.shapes,
    )


KERNELS: Final = ("kernel", "Kernel")
COPIES: Final = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
API_CALLS: Final = (
    *("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime"),
    *("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver", "mtia_runtime"),
)
OPERATORS: Final = ("cpu_op", "Operator")
ANNOTATIONS: Final = ("user_annotation",)
SYNCS: Final = ("cuda_sync",)
OVERHEADS: Final = ("overhead",)
MEMORY: Final = ("cpu_instant_event",)
COLLECTIVES: Final = ("collective",)
"""The category of collectives in files that `traceprof export` writes."""
HOST_SOURCES: Final = (
    *("osrt", "cudnn", "cublas", "mpi", "ucx", "async", "xla", "python", "host_op"),
)
"""The categories of other host operators in files that `traceprof export` writes: their sources."""
ON_HOST: Final = (
    *(*API_CALLS, *OPERATORS, *ANNOTATIONS, *FUNCTIONS),
    *(*COLLECTIVES, *HOST_SOURCES),
)


_STEP: Final = "ProfilerStep"
_EARLY_ANNOTATION: Final = re.compile(r"ProfilerStep|Optimizer\.|enumerate\(DataLoader\)#|## ")
_CUDA_DEVICE: Final = 1


def make_api_calls(rows: Rows) -> Table:
    """Return the calls of the CUDA or HIP runtime and driver."""
    names = Names.coded(map(plain_api_name, rows.name.texts), rows.name.packed, is_sorted=True)
    return make_table(
        "api_calls",
        {**_place_on_host(rows), "correlation": rows.number("correlation"), "name": names},
    )


def make_host_ops(operators: Rows) -> Table:
    """Return the CPU operators of PyTorch, and exported host operators of other sources."""
    rows = operators.where(~_is_early_annotation(operators))
    sources = [text if text in HOST_SOURCES else "cpu_op" for text in rows.category.texts.tolist()]
    source = Names.coded(sources, rows.category.packed)
    return make_table("host_ops", {**_place_on_host(rows), "source": source, "name": rows.name})


def make_operator_inputs(operators: Rows) -> Table:
    """Return the inputs of operators, as far as they were recorded; until 2022 under another key.

    Kernels that Inductor generates record their FLOPs and bytes if Inductor benchmarks them.
    """
    early, dims = operators.text("Input dims"), operators.text("Input Dims")
    dims = early if not dims.codes.any() and len(early.texts) > 1 else dims
    measured = {"flop": operators.text("kernel_flop"), "gigabytes": operators.text("kernel_num_gb")}
    has_any = np.logical_or.reduce([texts != "" for texts in (dims, *measured.values())])
    rows = np.flatnonzero(has_any & ~_is_early_annotation(operators))
    columns: dict[str, Any] = {
        **_place_on_host(operators),
        "name": operators.name,
        "dims": dims,
        "types": operators.text("Input type"),
        "concrete": operators.text("Concrete Inputs"),
        **measured,
    }
    return make_table("operator_inputs", {name: column[rows] for name, column in columns.items()})


def make_ranges(annotations: Rows, operators: Rows, functions: Rows) -> Table:
    """Return the CPU annotations and, in the domain ``nn.Module``, the modules.

    Kineto repeats annotations on every stream; these copies are ignored. Old versions repeat a step
    among the operators; each step counts once.
    """
    modules = functions.where(functions.named(lambda name: name.startswith(MODULE_PREFIX)))
    plain = [name.removeprefix(MODULE_PREFIX) for name in modules.name.texts.tolist()]
    early = operators.where(_is_early_annotation(operators))
    annotated = [_ranges(rows, rows.name, "") for rows in (annotations, early)]
    module_names = Names.coded(plain, modules.name.packed, is_sorted=True)
    ranges = stack("ranges", annotated)
    names = ranges["name"]
    once = names.by_text([not name.startswith(_STEP) for name in names.texts.tolist()])
    _, first = numbered(ranges["process"], names)
    once[first] = True
    return with_depth(
        stack("ranges", [ranges.take(once), _ranges(modules, module_names, "nn.Module")])
    )


def make_function_calls(functions: Rows, others: Rows) -> Table:
    """Return the calls of Python functions during the time of the ``others``."""
    if not len(functions) or not len(others):
        return empty_table("functions")
    span = TimeWindow(int(others.start_ns.min()), int(others.end_ns.max()))
    on_host = others.process[others.category.isin(ON_HOST)]
    return make_functions(_place_on_host(functions), functions.name, span, on_host)


def make_overheads(rows: Rows) -> Table:
    """Return the time that the profiler itself used; Kineto does not record its thread."""
    return make_table(
        "overheads",
        {
            **_place_on_host(rows),
            "process": np.where(rows.process < 0, rows.host_process, rows.process),
            "name": rows.name,
        },
    )


def make_samples(rows: Rows) -> Table:
    """Return the bytes that PyTorch's allocator held, after each change."""
    device = rows.number("Device Id")
    on_device = rows.number("Device Type") == _CUDA_DEVICE
    numbers, place = np.unique(np.where(on_device, device, -1), return_inverse=True)
    sources = [f"gpu:{number}" if number >= 0 else "host" for number in numbers]
    parts = [
        make_table(
            "samples",
            {
                "start_ns": rows.start_ns,
                "source": Names.coded(sources, place.ravel(), is_sorted=True),
                "metric": Names.repeated(metric, len(rows)),
                "value": rows.number(argument).astype(np.float64),
            },
        ).take(rows.number(argument) >= 0)
        for argument, metric in (
            ("Total Allocated", "torch_allocated_bytes"),
            ("Total Reserved", "torch_reserved_bytes"),
        )
    ]
    return stack("samples", parts)


def _place_on_host(rows: Rows) -> dict[str, npt.NDArray[np.int64]]:
    """Return times, process and thread of each row."""
    return {name: getattr(rows, name) for name in ("start_ns", "end_ns", "process", "thread")}


def _ranges(rows: Rows, names: Names, domain: str) -> Table:
    """Return rows as nested ranges with these names."""
    return make_table(
        "ranges",
        {
            **_place_on_host(rows),
            "domain": Names.repeated(domain, len(rows)),
            "name": names,
            "kind": Names.repeated("push_pop", len(rows)),
        },
    )


def _is_early_annotation(operators: Rows) -> npt.NDArray[np.bool_]:
    """Return which operators are annotations: before 2022 both had the category Operator."""
    is_step = operators.named(lambda name: name.startswith(_STEP))
    return ((operators.category == "Operator") | is_step) & operators.named(_EARLY_ANNOTATION.match)


_DRIVER_CATEGORIES: Final = frozenset((*KERNELS, *COPIES, *API_CALLS, *SYNCS))
"""Categories with times from the driver. A missing start is 0, and often the end, too."""
YEAR_NS: Final = 365 * 86_400 * 10**9
"""Longer than any recorded event."""


def is_stamped(category: str, start_ns: int, duration_ns: int) -> bool:
    """Return whether an event has a time of its own, judging by this event only."""
    takes_time = 0 < duration_ns < YEAR_NS
    return takes_time or start_ns != 0 or category not in _DRIVER_CATEGORIES


def usual_years(counts: Mapping[int, int]) -> list[int]:
    """Return the year in which most events begin, and the years next to it.

    ``counts`` maps years to numbers of events.
    """
    most = max(counts, key=lambda year: counts[year], default=0)
    return [year for year in counts if abs(year - most) <= 1]


def have_times(events: KinetoEvents) -> npt.NDArray[np.bool_]:
    """Return which events have a possible time: not 0, and not years away from most events."""
    starts, lengths = events.start_ns, events.end_ns - events.start_ns
    takes_time = (lengths > 0) & (lengths < YEAR_NS)
    is_by_driver = events.category.isin(tuple(_DRIVER_CATEGORIES))
    found: npt.NDArray[np.bool_] = takes_time | (starts != 0) | ~is_by_driver
    years, counts = np.unique(starts[found] // YEAR_NS, return_counts=True)
    if len(years) > 1:
        usual = usual_years(dict(zip(years.tolist(), counts.tolist(), strict=True)))
        found &= np.isin(starts // YEAR_NS, usual)
    return found


PHASES: Final = ("X", "i")
_READ_CATEGORIES: Final = frozenset((*KERNELS, *COPIES, *ON_HOST, *SYNCS, *OVERHEADS, *MEMORY))
OWN_CATEGORY: Final = "traceprof"
"""Category of the lanes that `traceprof export` adds: findings, steps, and idle gaps."""
IGNORED_CATEGORIES: Final = frozenset((*FUNCTIONS, "Trace", "gpu_user_annotation", OWN_CATEGORY))
"""Unread categories that repeat others, or show how the program was called."""


def becomes_row(event: KinetoEvent) -> bool:
    """Return whether an event of `PHASES` becomes a row, and may be time 0 of the trace."""
    return _is_read(event) and not is_function(event)


def least_ns_read(event: KinetoEvent) -> int | None:
    """Return the least duration in ns of events of this kind that are read; None for no event."""
    if not _is_read(event):
        return None
    return MIN_FUNCTION_NS if is_function(event) else NO_TIME


def _is_read(event: KinetoEvent) -> bool:
    """Return whether an event of `PHASES` is read: it becomes a row, or is a Python function."""
    return event.cat in (MEMORY if event.ph == "i" else _READ_CATEGORIES)


_DIRECTION: Final = re.compile(
    r"(Host|Device|Peer|Array|[HDPA])[tT]o(Host|Device|Peer|Array|[HDPA])"
)
_DIRECTION_PAIRS: Final = "HH h2h HD h2d HA h2d DH d2h AH d2h PP p2p"
_DIRECTIONS: Final = dict(
    zip(_DIRECTION_PAIRS.split()[::2], _DIRECTION_PAIRS.split()[1::2], strict=True)
)
_MEMORY_KINDS: Final = re.compile(r"\((?:(?P<source>[\w ]+?) -> )?(?P<target>[\w ]+?)\)")
_SYNC_KINDS: Final = {
    "Event Sync": "event",
    "Stream Wait Event": "stream_wait",
    "Stream Sync": "stream",
    "Context Sync": "context",
}
_NO_STREAM: Final = (1 << 32) - 1
"""CUPTI's value for a wait that concerns no stream. HIP's streams are pointers, far larger."""


def make_kernels(rows: Rows, options: ReadOptions) -> Table:
    """Return the kernels. Triton's CPU rows with a stream have another category."""
    return make_table(
        "kernels",
        {
            **_place_on_device(rows),
            "name": rows.name,
            "activity": classify(rows.name, options.rules),
            "graph_node": rows.number("graph node id"),
        },
    )


def make_kernel_shapes(rows: Rows) -> Table:
    """Return how the kernels were launched, one row per kernel; empty if no event contains it."""
    shapes = rows.shapes
    if shapes is None or not len(shapes) or (shapes == NO_SHAPE).all():
        return empty_table("kernel_shapes")
    return make_table(
        "kernel_shapes", {**_place_on_device(rows), **dict(zip(SHAPE, shapes.T, strict=True))}
    )


def make_copies(rows: Rows) -> Table:
    """Return the copies and memsets; their names contain the direction and the kinds of memory."""
    names = rows.name.texts.tolist()
    directions = [_direction(name) for name in names]
    kinds = [_MEMORY_KINDS.search(name) for name in names]
    sources = [
        "" if direction == "memset" else _kind(found, "source")
        for direction, found in zip(directions, kinds, strict=True)
    ]
    parsed = {
        "direction": directions,
        "src_kind": sources,
        "dst_kind": [_kind(found, "target") for found in kinds],
    }
    codes = rows.name.codes
    return make_table(
        "copies",
        {
            **_place_on_device(rows),
            **{name: Names.coded(texts, codes, is_sorted=True) for name, texts in parsed.items()},
            "n_bytes": rows.number("bytes"),
            "src_device": rows.number("fromDevice"),
            "dst_device": rows.number("toDevice"),
            "graph_node": rows.number("graph node id"),
        },
    )


def make_syncs(rows: Rows) -> Table:
    """Return the synchronizations of CPU threads and streams."""
    kinds = (_SYNC_KINDS.get(name, "unknown") for name in rows.name.texts.tolist())
    return make_table(
        "syncs",
        {**_place_on_device(rows), "kind": Names.coded(kinds, rows.name.packed, is_sorted=True)},
    )


def _place_on_device(rows: Rows) -> dict[str, npt.NDArray[np.int64]]:
    """Return times and place of each row. GPU rows have the device in place of a process."""
    device, stream = rows.number("device"), rows.number("stream")
    stream = np.where(stream == ABSENT, rows.thread, stream)
    return {
        "start_ns": rows.start_ns,
        "end_ns": rows.end_ns,
        "device": np.where(device == ABSENT, rows.process, device),
        "stream": np.where((stream < 0) | (stream == _NO_STREAM), ABSENT, stream),
        "process": rows.owners,
        "correlation": rows.number("correlation"),
    }


def _direction(name: str) -> str:
    if "memset" in name.lower() or "fillbuffer" in name.lower():
        return "memset"
    found = _DIRECTION.search(name)
    if not found:
        return "unknown"
    return _DIRECTIONS.get(found.group(1)[0] + found.group(2)[0], "d2d")


def _kind(found: re.Match[str] | None, group: str) -> str:
    text = found.group(group) if found else None
    return text.lower().replace(" ", "_") if text else "unknown"

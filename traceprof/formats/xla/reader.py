"""Read traces of jax.profiler and TensorFlow on NVIDIA and AMD GPUs, and TPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError
from traceprof.formats.contract import ReadOptions
from traceprof.formats.shared.cupti import plain_api_name, with_depth
from traceprof.formats.xla.format import FORMAT, JSON_FORMAT
from traceprof.formats.xla.planes import Line, Plane, Space, read_chrome, read_space
from traceprof.model.activity import Activity
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.model.trace import RecordedBy, Trace, TraceInfo, make_trace
from traceprof.names.classes import classify
from traceprof.names.ranges import phase_of

_DEVICE: Final = re.compile(r"/device:(?P<kind>GPU|TPU):(?P<number>\d+)")
_HOST: Final = re.compile(r"/host:(CPU|CUPTI|ROCTRACER|python-tracer)")
_STREAM: Final = re.compile(r"Stream #(\d+)")
_TOO_LARGE: Final = re.compile(rf"(?:{_DEVICE.pattern}|{_STREAM.pattern})(?<=\d{{19}})")
_OPERATIONS: Final = ("XLA Ops", "Async XLA Ops")
_STEPS: Final = "Steps"
_DETAIL: Final = re.compile(r"(?<!\w)(\w++):(\S++)")
_COPY: Final = re.compile(r"(?i)(async)?mem(cpy|set)(?P<direction>[HDP][to]*[2T]?[tT]?o?[HDP])?")
_OF_COPIES: Final = frozenset({"memcpy_details", "memset_details"})
_DIRECTIONS: Final = {"HH": "h2h", "HD": "h2d", "DH": "d2h", "DD": "d2d", "PP": "p2p"}
_CUDA_CALL: Final = re.compile(r"(cu|hip|cuda)[A-Z]\w+")
_STEP_WORD: Final = re.compile(r"(step|iter(ation)?|batch)$", re.IGNORECASE)
_COLLECTIVE: Final = re.compile(
    r"all-(reduce|gather|to-all)|reduce-scatter|collective-(permute|broadcast)|ragged-all-to-all"
)
_FIRST_EPOCH_NS: Final = 10**17  # 1973: earlier times count from the start of the profiler
_MAX_JSON_EVENTS: Final = 1_000_000


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in an XPlane file; time 0 is its first event."""
    return _trace(path, read_space(path), options, FORMAT.name)


def read_json(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in the Chrome JSON of such a profiler; time 0 is its first event."""
    return _trace(path, read_chrome(path), options, JSON_FORMAT.name)


def _trace(path: Path, space: Space, options: ReadOptions, format_name: str) -> Trace:
    starts = [
        int(line.starts_ns.min())
        for plane_read in space.planes
        for line in plane_read.lines
        if len(line)
    ]
    if not starts:
        why = "".join(f"; {sentence}" for sentence in _left_out(space))
        raise TraceError(f"{path}: the jax.profiler or TensorFlow trace contains no events{why}")
    names = chain.from_iterable(
        (plane_read.name, *(n.name for n in plane_read.lines)) for plane_read in space.planes
    )
    if impossible := next(filter(_TOO_LARGE.match, names), ""):
        raise TraceError(
            f"{path}: damaged trace (impossible device or stream number in {impossible[:60]!r})"
        )
    zero_ns = min(starts)
    process = _process(space)
    rows = _Tables(process, zero_ns, options)
    for plane in space.planes:
        if device := _DEVICE.match(plane.name):
            rows.add_device(plane, int(device["number"]), device["kind"])
        elif _HOST.match(plane.name):
            rows.add_host(plane)
    tables = rows.tables()
    tables["devices"] = make_table("devices", _devices(space))
    tables["processes"] = make_table("processes", {"process": [process]})
    tables["environment"] = _environment(space)
    recorded = {name for name, table in tables.items() if len(table)}
    if rows.has_device:
        recorded |= {"kernels", "copies"}
    if rows.has_host:
        recorded |= {"host_ops", "ranges"}
    return make_trace(_info(path, space, zero_ns, format_name), tables, recorded)


def _process(space: Space) -> int:
    """Return the traced process; in Chrome JSON it is the number of the host's plane."""
    candidates = [_whole(plane.stats.get("process_id")) for plane in space.planes]
    candidates += [_whole(plane.number) for plane in space.planes if _HOST.match(plane.name)]
    return next((number for number in candidates if number != ABSENT), 0)


class _Tables:
    """The tables of a Trace, to which planes are added."""

    def __init__(self, process: int, zero_ns: int, options: ReadOptions) -> None:
        self.process = process
        self.zero_ns = zero_ns
        self.options = options
        self.parts: dict[str, list[Table]] = {}
        self.threads: dict[int, str] = {}
        self.steps_of_device: list[Table] = []
        self.has_device = self.has_host = False

    def add_device(self, plane: Plane, device: int, kind: str) -> None:
        """Add kernels and copies: events on streams or, without streams, XLA's operations."""
        self.has_device = True
        streams = [(line, found) for line in plane.lines if (found := _STREAM.match(line.name))]
        for line, stream in streams:
            self._add_work(line, device, int(stream[1]))
        for line in plane.lines:
            if not streams and line.name in _OPERATIONS:
                self._add_work(_leaves(line), device, _OPERATIONS.index(line.name))
            elif kind == "TPU" and line.name == _STEPS:
                self.steps_of_device.append(self._ranges(line, [f"step {n}" for n in line.names]))

    def _add_work(self, line: Line, device: int, stream: int) -> None:
        """Add the events of a line as kernels or copies."""
        is_copy = np.array(
            [
                _COPY.match(name) is not None or not _OF_COPIES.isdisjoint(stats)
                for name, stats in zip(line.names, line.stats, strict=True)
            ],
            np.bool_,
        )
        for name, make, chosen in (
            ("kernels", self._kernels, ~is_copy),
            ("copies", self._copies, is_copy),
        ):
            work = _taken(line, chosen)
            place = {
                **self._times(work),
                "device": np.full(len(work), device),
                "stream": np.full(len(work), stream),
                "process": np.full(len(work), self.process),
                "correlation": _numbers(work, "correlation_id"),
            }
            self._add(
                name,
                make_table(
                    name,
                    {**place, "graph_node": _numbers(work, "cuda_graph_node_id"), **make(work)},
                ),
            )
            if name == "kernels" and any("kernel_details" in stats for stats in work.stats):
                self._add("kernel_shapes", make_table("kernel_shapes", {**place, **_shapes(work)}))

    def _kernels(self, line: Line) -> dict[str, Any]:
        names = Names.of(line.names)
        activity = classify(names, self.options.rules)
        categories = [str(stats.get("hlo_category", "")) for stats in line.stats]
        if any(categories):
            exchanged = [
                _COLLECTIVE.search(category or name) is not None
                for category, name in zip(categories, line.names, strict=True)
            ]
            texts = np.array(list(activity), object)
            texts[np.array(exchanged, np.bool_)] = Activity.COMMUNICATION.value
            activity = Names.of(texts)
        return {"name": names, "activity": activity}

    @staticmethod
    def _copies(line: Line) -> dict[str, Any]:
        details = [_details(copy_details) for copy_details in line.stats]
        return {
            "direction": [_direction(name) for name in line.names],
            "n_bytes": [_whole(copy_details.get("size")) for copy_details in details],
            "src_kind": [copy_details.get("kind_src", "") for copy_details in details],
            "dst_kind": [
                copy_details.get("kind_dst", copy_details.get("kind", ""))
                for copy_details in details
            ],
        }

    def add_host(self, plane: Plane) -> None:
        """Add CUDA calls, steps, and all other events of threads.

        Annotations of the program look like events of the runtime, except the names of phases.
        """
        self.has_host = True
        for line in plane.lines:
            self.threads[line.number] = line.name
            is_step = np.array(["step_num" in stats for stats in line.stats], np.bool_)
            is_call = np.array(
                [_CUDA_CALL.match(name) is not None for name in line.names], np.bool_
            )
            calls = _taken(line, is_call)
            names = [plain_api_name(name.split()[0]) for name in calls.names]
            columns = {"name": names, "correlation": _numbers(calls, "correlation_id")}
            self._add("api_calls", make_table("api_calls", {**self._on_thread(calls), **columns}))
            steps = _taken(line, is_step)
            self._add("ranges", self._ranges(steps, _named_steps(steps)))
            is_phase = np.array([phase_of(name, "") is not None for name in line.names], np.bool_)
            phases = _taken(line, is_phase & ~(is_step | is_call))
            self._add("ranges", self._ranges(phases, list(phases.names)))
            others = _taken(line, ~(is_step | is_call | is_phase))
            sources = ["python" if name.startswith("$") else "xla" for name in others.names]
            columns = {"source": sources, "name": list(others.names)}
            self._add("host_ops", make_table("host_ops", {**self._on_thread(others), **columns}))

    def _ranges(self, line: Line, names: Sequence[str]) -> Table:
        return make_table(
            "ranges",
            {**self._on_thread(line), "name": list(names), "kind": ["push_pop"] * len(line)},
        )

    def tables(self) -> dict[str, Table]:
        """Return the tables; the steps of devices are used if the host recorded no ranges."""
        if not any(map(len, self.parts.get("ranges", ()))):
            self.parts["ranges"] = self.steps_of_device
        found = {name: stack(name, parts) for name, parts in self.parts.items()}
        found["ranges"] = with_depth(found.get("ranges", empty_table("ranges")))
        named_threads = [number for number, name in self.threads.items() if name]
        found["threads"] = make_table(
            "threads",
            {
                "process": [self.process] * len(named_threads),
                "thread": named_threads,
                "name": [self.threads[number] for number in named_threads],
            },
        )
        return found

    def _add(self, name: str, table: Table) -> None:
        self.parts.setdefault(name, []).append(table)

    def _times(self, line: Line) -> dict[str, npt.NDArray[np.int64]]:
        return {"start_ns": line.starts_ns - self.zero_ns, "end_ns": line.ends_ns - self.zero_ns}

    def _on_thread(self, line: Line) -> dict[str, npt.NDArray[np.int64]]:
        return {
            **self._times(line),
            "process": np.full(len(line), self.process),
            "thread": np.full(len(line), line.number),
        }


def _taken(line: Line, chosen: npt.NDArray[np.bool_]) -> Line:
    """Return the chosen events of a line."""
    return replace(
        line,
        starts_ns=line.starts_ns[chosen],
        ends_ns=line.ends_ns[chosen],
        names=line.names[chosen],
        stats=line.stats[chosen],
    )


def _leaves(line: Line) -> Line:
    """Return the operations that enclose no others: a loop is the sum of its iterations."""
    order = np.lexsort((-line.ends_ns, line.starts_ns))
    starts, ends = line.starts_ns[order], line.ends_ns[order]
    encloses = np.zeros(len(order), np.bool_)
    encloses[:-1] = (starts[1:] < ends[:-1]) & (ends[1:] <= ends[:-1])
    chosen = np.zeros(len(order), np.bool_)
    chosen[order] = ~encloses
    return _taken(line, chosen)


def _named_steps(line: Line) -> list[str]:
    """Return the names of steps with their numbers: "train" and 3 become "train step 3"."""
    found = []
    for name, stats in zip(line.names, line.stats, strict=True):
        word = name if _STEP_WORD.search(name) else f"{name} step"
        found.append(f"{word} {stats['step_num']}".strip())
    return found


def _numbers(line: Line, name: str) -> npt.NDArray[np.int64]:
    """Return a statistic of each event as a whole number; `ABSENT` if it has none."""
    return np.array([_whole(stats.get(name)) for stats in line.stats], np.int64)


def _whole(value: object) -> int:
    """Return a whole number, which may be given as text; `ABSENT` for other values."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else ABSENT


def _details(stats: Mapping[str, Any]) -> dict[str, str]:
    """Return the details of a copy or memset: key → value."""
    text = stats.get("memcpy_details") or stats.get("memset_details") or ""
    return dict(_DETAIL.findall(str(text)))


def _direction(name: str) -> str:
    """Return the direction of a copy from its name."""
    found = _COPY.match(name)
    if found is not None and found[2].lower() == "set":
        return "memset"
    ends = "".join(re.findall(r"[HDP]", (found and found["direction"]) or ""))
    return _DIRECTIONS.get(ends, "unknown")


def _shapes(line: Line) -> dict[str, Any]:
    """Return the columns of `kernel_shapes` from the details of kernels."""
    kernels = [dict(_DETAIL.findall(str(stats.get("kernel_details", "")))) for stats in line.stats]

    def whole_numbers(name: str) -> list[int]:
        return [_whole(kernel.get(name)) for kernel in kernels]

    def axes(name: str) -> dict[str, list[int]]:
        sizes = [(kernel.get(name, "").split(",") + [""] * 3)[:3] for kernel in kernels]
        return {
            f"{name}_{axis}": [_whole(xyz[place]) for xyz in sizes]
            for place, axis in enumerate("xyz")
        }

    static, dynamic = whole_numbers("static_shared"), whole_numbers("dynamic_shared")
    total = [
        _whole(a + b) if min(a, b) >= 0 else ABSENT for a, b in zip(static, dynamic, strict=True)
    ]
    return {
        **axes("grid"),
        **axes("block"),
        "registers": whole_numbers("regs"),
        "static_shared_bytes": static,
        "dynamic_shared_bytes": dynamic,
        "shared_bytes": total,
    }


def _capability(stats: Mapping[str, Any]) -> int:
    """Return the compute capability of an NVIDIA GPU; `ABSENT` for other devices."""
    major, minor = (_whole(stats.get(f"compute_cap_{part}")) for part in ("major", "minor"))
    is_nvidia = str(stats.get("device_vendor", "")).lower() == "nvidia"
    return major * 10 + minor if is_nvidia and major > 0 and minor >= 0 else ABSENT


_DEVICE_COLUMNS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "name": lambda stats: str(
        stats.get("gpu_device_name") or stats.get("device_type_string") or ""
    ),
    "memory_bytes": lambda stats: _whole(stats.get("memory_size")),
    "memory_bytes_per_s": lambda stats: _whole(stats.get("memory_bandwidth")),
    "sm_count": lambda stats: _whole(stats.get("core_count")),
    "compute_capability": _capability,
}


def _devices(space: Space) -> dict[str, list[Any]]:
    found = [(plane, match) for plane in space.planes if (match := _DEVICE.match(plane.name))]
    numbers = [int(match["number"]) for _, match in found]
    columns = {
        name: [read_stat(plane.stats) for plane, _ in found]
        for name, read_stat in _DEVICE_COLUMNS.items()
    }
    return {"device": numbers, **columns}


_VERSIONS: Final = {
    "jax_version": "jax",
    "jaxlib_version": "jaxlib",
    "cuda_driver_version": "cuda_driver",
    "cuda_runtime_version": "cuda_runtime",
    "tensorflow_version": "tensorflow",
}


def _environment(space: Space) -> Table:
    stats = {name: value for plane in space.planes for name, value in plane.stats.items()}
    found = {plain: str(stats[name]) for name, plain in _VERSIONS.items() if stats.get(name)}
    return make_table("environment", {"name": list(found), "value": list(found.values())})


def _profiler(space: Space, version: object) -> str:
    """Return the recording program: TensorFlow writes such files, too, but only JAX has pjit."""
    names = (name for plane in space.planes for line in plane.lines for name in line.names)
    if not version and not any(name.startswith("PjitFunction(") for name in names):
        return RecordedBy.XLA
    return f"{RecordedBy.JAX} {version or ''}".strip()


def _left_out(space: Space) -> list[str]:
    """Return a sentence about the events that are in no table, if there are any."""
    sentence = f"traceprof ignored {space.left_out} events without a valid time"
    return [sentence] if space.left_out else []


def _info(path: Path, space: Space, zero_ns: int, format_name: str) -> TraceInfo:
    """Return the origin of the trace; times are absolute, or since the start of the profiler."""
    stats = {name: value for plane in space.planes for name, value in plane.stats.items()}
    started, utc_ns = stats.get("profile_start_time"), zero_ns
    if zero_ns < _FIRST_EPOCH_NS:
        utc_ns = started + zero_ns if isinstance(started, int) else 0
    version = stats.get("jax_version")
    warnings = []
    if not space.is_complete:
        warnings.append("the file is truncated; the rest of the trace is missing")
    warnings += _left_out(space)
    n_events = sum(len(line) for plane in space.planes for line in plane.lines)
    if format_name == JSON_FORMAT.name and n_events >= _MAX_JSON_EVENTS:
        warnings.append(
            f"this JSON format is limited to {_MAX_JSON_EVENTS} events; give the .xplane.pb file "
            "in the same folder"
        )
    return TraceInfo(
        path=str(path),
        format=format_name,
        profiler=_profiler(space, version),
        host=next(iter(space.hosts), ""),
        utc_epoch_ns=utc_ns if utc_ns >= _FIRST_EPOCH_NS else None,
        warnings=tuple(warnings),
    )

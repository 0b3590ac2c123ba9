"""Metadata of a Kineto trace: the machine, its processes, and what the file was cut from."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Final

import numpy as np

from traceprof.formats.kineto.cost import recording_cost
from traceprof.formats.kineto.events import KinetoEvents
from traceprof.formats.kineto.merged import Merged, process_id
from traceprof.formats.kineto.parse import whole
from traceprof.formats.kineto.rows import IGNORED_CATEGORIES
from traceprof.model.cutting import WHOLE, CutNote, CutRequest, noted_names, noted_numbers
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, make_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import FIRST_EPOCH_NS, TraceInfo
from traceprof.secrets import storable
from traceprof.version import __version__

_VERSIONED: Final = (
    *("cuda_runtime", "cuda_driver", "cupti", "hip_runtime", "hip_driver"),
    *("roctracer", "rocprofiler-sdk"),
)
_MAX_KINDS, _MAX_CHARACTERS = 8, 60
"""A warning lists at most this many categories, and this many characters of each name."""


def make_info(
    path: Path, events: KinetoEvents, zero_ns: int, format_name: str, n_untimed: int
) -> TraceInfo:
    """Return the origin of the trace; ``n_untimed`` events in it have an impossible time."""
    utc_ns = events.base_time_ns + zero_ns
    warnings = []
    if not events.is_complete:
        warnings.append(
            f"the file is damaged after {len(events)} events; the rest of the trace is missing"
            if events.is_damaged
            else f"the file is truncated after {len(events)} events because the profiler or a "
            "copy was interrupted; the rest of the trace is missing"
        )
    elif events.is_damaged:
        warnings.append("the file is damaged (wrong checksum); its numbers may be wrong")
    if events.bytes_behind:
        warnings.append(
            f"traceprof ignored {events.bytes_behind} bytes after the end of the JSON document; "
            "another trace was appended, or the file is damaged and lacks events"
        )
    warnings += left_out(events)
    if n_untimed:
        warnings.append(
            f"traceprof ignored {n_untimed} events whose timestamps are 0 or years away from all "
            "others (lost by the profiler)"
        )
    if unread := unread_kinds(events):
        shown = listed([f"{named(kind)} ({n})" for kind, n in sorted(unread.items())])
        warnings.append(
            f"traceprof cannot read the categories of {sum(unread.values())} events ({shown}); any "
            "GPU activity in these events is missing"
        )
    recording = recording_cost(events, cut_note_in(events.header.get(NOTE)).window)
    warnings += [recording.warning] if recording else []
    return TraceInfo(
        path=str(path),
        recording=recording,
        format=format_name,
        profiler="torch.profiler (Kineto)",
        schema_version=str(events.header.get("schemaVersion", "")),
        utc_epoch_ns=utc_ns if utc_ns >= FIRST_EPOCH_NS else None,
        warnings=tuple(warnings),
    )


def left_out(events: KinetoEvents) -> list[str]:
    """Return a sentence about the events that are in no table, if there are any."""
    sentence = (
        f"traceprof ignored {events.left_out} events whose time or duration is missing or invalid"
    )
    return [sentence] if events.left_out else []


def unread_kinds(events: KinetoEvents) -> dict[str, int]:
    """Return category → number of events, for unread categories that contain information."""
    return {kind: n for kind, n in events.unread.items() if n and kind not in IGNORED_CATEGORIES}


def named(kind: str) -> str:
    """Return a category as printable text of limited length; "none" if it is empty."""
    return storable(kind)[:_MAX_CHARACTERS] or "none"


def listed(names: Sequence[str]) -> str:
    """Return the first of ``names``, separated by commas, and "…" if there are more."""
    return ", ".join([*names[:_MAX_KINDS], *["…"][: len(names) - _MAX_KINDS]])


_NVIDIA_WARP: Final = 32
_AMD_WARP: Final = 64
_AMD_MODELS: Final[Mapping[tuple[int, ...], str]] = {
    (9, 4, 304, 192): "AMD Instinct MI300X",
    (9, 4, 304, 256): "AMD Instinct MI325X",
    (9, 4, 228, 128): "AMD Instinct MI300A",
    (9, 0, 110, 64): "AMD Instinct MI250X",
    (9, 0, 120, 32): "AMD Instinct MI100",
}
"""Models by gfx version (major, minor), compute units, and memory in GiB, from AMD's data sheets.
Several models share 104 units and 64 GiB, so these remain without a name."""


def make_devices(header: Mapping[str, Any], used: Iterable[int] = ()) -> Table:
    """Return the accelerators that the process could see, and those with work.

    ROCm numbers the devices of kernels differently from the list in the file. If all listed devices
    are of one model, so are those with work (numbers ``used``) that the list lacks.
    """
    listed = header.get("deviceProperties")
    listed = listed if isinstance(listed, list) else []
    # Merging tools concatenate the lists of all files.
    devices = [item for item in listed if isinstance(item, dict)]
    devices = list({str(item.get("id", i)): item for i, item in enumerate(devices)}.values())
    numbers = {whole(item.get("id", number)) for number, item in enumerate(devices)}
    if len({str(item.get("name", "")) for item in devices}) == 1:
        unlisted = (number for number in used if number >= 0 and number not in numbers)
        devices += [{**devices[0], "id": number, "uuid": ""} for number in unlisted]
    return make_table(
        "devices",
        {
            "device": [whole(item.get("id", number)) for number, item in enumerate(devices)],
            "name": [_device_name(item) for item in devices],
            "uuid": [str(item.get("uuid", "")) for item in devices],
            "memory_bytes": [whole(item.get("totalGlobalMem")) for item in devices],
            "sm_count": [whole(item.get("numSms")) for item in devices],
            "compute_capability": [_capability(item) for item in devices],
        },
    )


def _device_name(device: Mapping[str, Any]) -> str:
    """Return the recorded name; if ROCm left it empty, the AMD model with these properties."""
    if (name := str(device.get("name", ""))) or whole(device.get("warpSize")) != _AMD_WARP:
        return name
    version = (whole(device.get(key)) for key in ("computeMajor", "computeMinor", "numSms"))
    memory_gib = round(whole(device.get("totalGlobalMem")) / 2**30)
    return _AMD_MODELS.get((*version, memory_gib), "")


def _capability(device: Mapping[str, Any]) -> int:
    """Return the compute capability of an NVIDIA GPU; for AMD the fields mean something else."""
    major, minor = whole(device.get("computeMajor")), whole(device.get("computeMinor"))
    if major <= 0 or minor < 0 or whole(device.get("warpSize")) != _NVIDIA_WARP:
        return ABSENT
    return major * 10 + minor


def make_processes(
    events: KinetoEvents, used: np.ndarray, rank_of: Mapping[int, int], merged: Merged
) -> Table:
    """Return the processes; ``rank_of`` maps traced processes to their ranks, where known."""
    size = world_size(events.header)
    ranks = [rank_of.get(process, ABSENT) for process in used.tolist()]
    return make_table(
        "processes",
        {
            "process": used,
            "name": [
                events.process_names.get(merged.labelled.get(process, process_id(process)), "")
                for process in used.tolist()
            ],
            "rank": ranks,
            "world_size": [ABSENT if rank == ABSENT else size for rank in ranks],
        },
    )


def ranks_of(events: KinetoEvents, merged: Merged) -> Mapping[int, int]:
    """Return the rank of each traced process, as far as the file contains it.

    The header describes one rank only, so it is ignored if the file has several processes without a
    description of each.
    """
    if len(merged.processes) > 1:
        return merged.ranks(
            events.process_names, events.header.get("distributedInfo"), world_size(events.header)
        )
    process = merged.rows.host_process
    listed = _group(events.header), events.header
    numbers = [whole(values.get(name)) for values in listed for name in _RANK_KEYS]
    match = _RANK_IN_NAME.search(events.process_names.get(process, ""))
    numbers += [int(match[1])] if match else []
    return {process: next((number for number in numbers if number >= 0), ABSENT)}


_RANK_KEYS: Final = ("rank", "RANK", "global_rank")
"""Names of the rank in the header, also as metadata that the user adds."""
_RANK_IN_NAME: Final = re.compile(r"(?i)\b(?:global[ _])?rank[ _:#=-]{0,3}(\d{1,7})\b")


def world_size(header: Mapping[str, Any]) -> int:
    """Return the number of ranks of the run; `ABSENT` if the file does not contain it."""
    return whole(_group(header).get("world_size"))


def _group(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the header's description of the process group; empty if there is none."""
    group = header.get("distributedInfo")
    return group if isinstance(group, dict) else {}


def make_threads(events: KinetoEvents, used: Iterable[int]) -> Table:
    """Return the names of the threads of the processes ``used``."""
    kept = {
        place: name
        for place, name in events.thread_names.items()
        if place[0] in used and place[1] != ABSENT and name
    }
    return make_table(
        "threads",
        {
            "process": [process for process, _ in kept],
            "thread": [thread for _, thread in kept],
            "name": list(kept.values()),
        },
    )


def make_environment(header: Mapping[str, Any]) -> Table:
    """Return the software versions that the file contains."""
    found = {
        name.replace("-", "_"): _version(header[f"{name}_version"])
        for name in _VERSIONED
        if f"{name}_version" in header
    }
    group = _group(header)
    for name, plain in (("nccl_version", "nccl"), ("backend", "backend")):
        if group.get(name):
            found[plain] = str(group[name])
    return make_table("environment", {"name": list(found), "value": list(found.values())})


def _version(value: object) -> str:
    """Return a CUDA version number such as 12090 as "12.9"; other values unchanged."""
    number = whole(value)
    if 1000 <= number < 100_000:
        return f"{number // 1000}.{number % 1000 // 10}"
    return str(value)


NOTE: Final = "traceprofCut"
"""The key of the list of cuts in the document: one object per cut, times in ns since the base."""


def note_of(
    request: CutRequest, window: TimeWindow, recorded: Collection[str], devices: Collection[int]
) -> dict[str, object]:
    """Return the note of a cut to ``window``, in times of the file.

    ``recorded`` are the tables of the source. ``devices`` are the GPUs with activity in the source,
    as far as they are kept.
    """
    return {
        "source": request.source,
        "window_start_ns": window.start_ns,
        "window_end_ns": window.end_ns,
        "window": request.label,
        "is_clipped": request.clip,
        "devices": None if request.devices is None else sorted(request.devices),
        "tables": None if request.tables is None else sorted(request.tables),
        "recorded": sorted(recorded),
        "used_devices": sorted(devices),
        "traceprof_version": __version__,
    }


def cut_note_in(notes: Any) -> CutNote:
    """Return the combined note of all cuts (`NOTE` in the header), in times of the file.

    It contains the last window, and the tables that every cut kept.
    """
    entries = notes if isinstance(notes, list) else []
    note = entries[-1] if entries else None
    if not isinstance(note, dict):
        return WHOLE
    edges = [whole(note.get(name)) for name in ("window_start_ns", "window_end_ns")]
    if ABSENT in edges or edges[0] > edges[1]:
        return WHOLE
    listed_tables = [entry.get("tables") for entry in entries if isinstance(entry, dict)]
    kept_tables = [noted_names(entry) for entry in listed_tables if isinstance(entry, list)]
    return CutNote(
        TimeWindow(edges[0], edges[1]),
        noted_names(note.get("recorded")),
        noted_numbers(note.get("used_devices")),
        reduce(frozenset.__and__, kept_tables) if kept_tables else None,
        any(isinstance(entry, dict) and entry.get("devices") is not None for entry in entries),
    )

"""Cutting the files of a run: selects the window of each file and writes the parts.

Only the target files and temporary files next to them are written.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from traceprof.errors import UsageError
from traceprof.files import check_trace_name, new_file, new_folder
from traceprof.formats import cut
from traceprof.formats.runs.files import is_run
from traceprof.formats.runs.manifest import MANIFEST_KEY
from traceprof.measures.analyses import STEP_TABLES
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.model.cutting import CutProgress, CutReport, CutRequest, no_progress
from traceprof.model.placement import clock_offsets_ns
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.timing import ClockCorrection, TimeWindow
from traceprof.model.trace import Trace
from traceprof.session.caveats import refuses_with_caveats
from traceprof.session.options import Align
from traceprof.session.run import SELF_DESCRIPTION, Run
from traceprof.session.selection import Selection, check_ranks, describe_work, select

_MAX_PARTS_IN_A_ROW: Final = 2


@dataclass(frozen=True, slots=True)
class CutPart:
    """One window of a file, and the empty target file for it."""

    target: Path
    request: CutRequest


def cut_parts(
    source: Path, parts: Sequence[CutPart], progress: CutProgress
) -> list[tuple[CutPart, CutReport]]:
    """Write the parts of ``source``, which are ordered by window.

    Each half of the parts is first cut into a temporary file. The file is therefore read about
    log2(n) times for n parts, instead of n times.

    Raises:
        TraceError: ``source`` cannot be cut.
        UsageError: a target cannot be written.
    """
    # Progress is the bytes read for one part, and the number of written files for several.
    if len(parts) == 1:
        return list(_cut(source, parts, progress))
    done = []
    for written in _cut(source, parts, no_progress):
        done.append(written)
        progress(len(done), len(parts), "files")
    return done


def _cut(
    source: Path, parts: Sequence[CutPart], progress: CutProgress
) -> Iterator[tuple[CutPart, CutReport]]:
    """Yield the written parts; more than two parts are cut from temporary halves of the file."""
    if len(parts) <= _MAX_PARTS_IN_A_ROW:
        for part in parts:
            yield part, cut(source, part.target, part.request, progress)
        return
    middle = len(parts) // 2
    for half in (parts[:middle], parts[middle:]):
        with tempfile.TemporaryDirectory(prefix=".traceprof-", dir=half[0].target.parent) as folder:
            half_file = Path(folder, half[0].target.name)
            half_file.touch()
            report = cut(source, half_file, _request_for_all(half), progress)
            moved = [
                replace(part, request=replace(part.request, zero_ns=report.zero_ns))
                for part in half
            ]
            yield from _cut(half_file, moved, progress)


def _request_for_all(parts: Sequence[CutPart]) -> CutRequest:
    """Return a request for a window that contains the windows of all ``parts``."""
    requests = [part.request for part in parts]
    first = min(request.window.start_ns for request in requests)
    last = max(request.window.end_ns for request in requests)
    hull = TimeWindow(first, last)
    return replace(requests[0], window=hull, clip=False, is_packed=False, is_noted=False)


_PROCESS_STRIDE: Final = 100_000_000
"""The distance between process IDs of different files in a run: `traceprof.model.placement`."""
_N_CORRECTIONS: Final = 4
"""The number of iterations that convert a time of the run to the clock of a file."""


@dataclass(frozen=True, slots=True)
class FileOfRun:
    """One file of a run, with the values that convert times of the run to times of the file."""

    path: Path
    parts: tuple[Trace, ...]
    offset_ns: int = 0
    correction: ClockCorrection = field(default_factory=ClockCorrection)

    def to_file_clock(self, window: TimeWindow) -> TimeWindow:
        """Return ``window`` on the clock of the file."""
        edges = []
        for common_ns in (window.start_ns, window.end_ns):
            on_file = common_ns
            for _ in range(_N_CORRECTIONS):
                error = float(self.correction.error_ns(np.array([on_file], np.int64))[0])
                on_file = common_ns + round(error)
            edges.append(on_file - self.offset_ns)
        return TimeWindow(edges[0], edges[1])

    @property
    def ranks(self) -> list[int]:
        """The ranks in the file."""
        found = {
            rank
            for part in self.parts
            for rank in part.processes["rank"].tolist()
            if rank != ABSENT
        }
        return sorted(found)

    @property
    def devices(self) -> Mapping[int, int]:
        """The devices with activity in the file: number in the run to number in the file."""
        return {
            device: part.device_numbers_in_file.get(device, device)
            for part in self.parts
            for device in part.devices["device"][part.devices["used"] == 1].tolist()
        }

    def processes_of(self, ranks: Collection[int]) -> frozenset[int]:
        """Return the processes of the file that belong to ``ranks``, by their IDs in the file."""
        return frozenset(
            process % _PROCESS_STRIDE
            for table in (part.processes for part in self.parts)
            for process in table["process"][np.isin(table["rank"], list(ranks))].tolist()
        )


def files_of_run(run: Run, wanted: Collection[int] | None) -> list[FileOfRun]:
    """Return the files that contain the ranks ``wanted`` (None: all ranks).

    Raises:
        UsageError: the run has no such rank.
    """
    ranks = run.within("all").of_ranks(SELF_DESCRIPTION).whole
    offsets = _offsets(ranks, run.opening.align, several=is_run(run.paths))
    by_path: dict[Path, list[int]] = {}
    for index, part in enumerate(ranks):
        by_path.setdefault(Path(part.info.path), []).append(index)
    if not is_run(run.paths):
        by_path = {run.paths[0]: list(range(len(ranks)))}
    files = []
    for path, indices in by_path.items():
        parts, first = tuple(ranks.parts[i] for i in indices), indices[0]
        files.append(FileOfRun(path, parts, offsets[first], _correction(ranks, first)))
    if wanted is None:
        return files
    check_ranks(wanted, (rank for file in files for rank in file.ranks))
    return [file for file in files if not set(file.ranks).isdisjoint(wanted)]


def _offsets(ranks: Ranks, align: Align, *, several: bool) -> list[int]:
    """Return the ns that were added to the times of each file to put all files on one clock."""
    is_moved = several and len(ranks) > 1 and align is not Align.NONE
    offsets = clock_offsets_ns(part.info for part in ranks) if is_moved else None
    return [0] * len(ranks) if offsets is None else list(offsets)


def _correction(ranks: Ranks, index: int) -> ClockCorrection:
    """Return the clock correction of the processes of a file."""
    processes = ranks.parts[index].processes["process"].tolist()
    corrections = (ranks.clocks[process] for process in processes if process in ranks.clocks)
    return next(corrections, ClockCorrection())


_ABSOLUTE_WINDOW: Final = re.compile(r"@(\d+)\.\.@?(\d+)")
MANIFEST: Final = "run.json"


@dataclass(frozen=True, slots=True)
class Cutting:
    """What to keep of a run besides the window, see `CutRequest`; ``ranks`` are global."""

    devices: Collection[int] | None = None
    ranks: Collection[int] | None = None
    tables: Collection[str] | None = None
    clip: bool = False
    keep_environment: bool = False


@dataclass(slots=True)
class Cuts:
    """The result of cutting: numbers of events and bytes written, and remarks on tables."""

    path: Path
    n_events: int = 0
    n_bytes: int = 0
    n_files: int = 0
    remarks: dict[str, None] = field(default_factory=dict)

    def add(self, parts: Sequence[tuple[CutPart, CutReport]]) -> None:
        """Add the parts that were written of a file."""
        for part, report in parts:
            self.n_events += report.n_events
            self.n_bytes += part.target.stat().st_size
            self.n_files += 1
            for name, what in report.unknown.items():
                self.remarks[f"unknown table {name}: {what}"] = None
            for name in report.left_out:
                self.remarks[f"table {name} is omitted: it is a virtual table of SQLite"] = None


@refuses_with_caveats
def cut_run(
    run: Run,
    output: Path,
    cutting: Cutting,
    *,
    force: bool = False,
    progress: CutProgress = no_progress,
) -> tuple[Cuts, Selection]:
    """Write the window of ``run`` to ``output``: a file, or a folder for a run of several files.

    Raises:
        TraceError: a file cannot be read or cut.
        UsageError: the window is invalid, no events are left, or ``output`` cannot be written.
    """
    cuts = Cuts(output)
    if not is_run(run.paths):
        selection, files = _select_in_file(run, cutting)
        if (suffix := _suffix(files[0].path)) in (".json", ".json.gz", ".sqlite", ".nvprof"):
            check_trace_name(output, is_json=".json" in suffix)
        with new_file(output, force=force, inputs=run.paths) as target:
            part = CutPart(target, _request(files[0], selection, cutting, output.name))
            cuts.add(cut_parts(files[0].path, [part], progress))
        if not cuts.n_events and run.is_read:
            whole = run.within("all").of_ranks(SELF_DESCRIPTION | {"kernels"}).whole
            cuts.remarks[f"the window contains no events; {describe_work(whole)}"] = None
        return cuts, selection
    selection = run.selection
    files = _files_with_devices(run, cutting)
    with new_folder(output) as folder:
        _cut_files(files, {folder: selection}, cutting, cuts, progress)
        write_manifest(folder, files, output.name)
    return cuts, selection


@refuses_with_caveats
def cut_steps(
    run: Run, output: Path, cutting: Cutting, *, progress: CutProgress = no_progress
) -> tuple[Cuts, Sequence[Selection]]:
    """Write each step of ``run`` to its own file in the folder ``output``, in few passes.

    For a run of several files, each step is a folder. With a window, only steps inside it are
    written.

    Raises:
        TraceError: a file cannot be read or cut.
        UsageError: no steps are known, or ``output`` cannot be written.
    """
    ranks = run.within("all").of_ranks(STEP_TABLES | SELF_DESCRIPTION).whole
    inside = ranks.span if run.window is None else run.selection.window
    selections = [
        found
        for number in sorted(set(steps_of_ranks(ranks).table["step"].tolist()))
        if (found := select(ranks, f"step:{number}")).window & inside == found.window
    ]
    if not selections:
        select(ranks, "steady")  # raises an error with the reason if no steps are known
        raise UsageError("the window contains no whole step")
    cuts, several = Cuts(output), is_run(run.paths)
    files = _files_with_devices(run, cutting)
    suffix = "" if several else _suffix(files[0].path)
    with new_folder(output) as folder:
        targets = [folder / f"{name}{suffix}" for name in _numbered(selections)]
        for target in targets if several else ():
            target.mkdir()
        selection_of = dict(zip(targets, selections, strict=True))
        _cut_files(files, selection_of, cutting, cuts, progress, several=several)
        for target in targets if several else ():
            write_manifest(target, files, f"{output.name} {target.name}")
    return cuts, selections


def _numbered(steps: Sequence[Selection]) -> list[str]:
    """Return names of steps that sort in the order of the steps: step-007."""
    numbers = [step.label.removeprefix("step:") for step in steps]
    width = max(map(len, numbers))
    return [f"step-{number.zfill(width)}" for number in numbers]


def _cut_files(
    files: Sequence[FileOfRun],
    selection_of: Mapping[Path, Selection],
    cutting: Cutting,
    cuts: Cuts,
    progress: CutProgress,
    *,
    several: bool = True,
) -> None:
    """Write every file of a run, cut to each of the windows, into the folder of the window.

    ``several``: the run has several files. If not, each place is the target file itself.
    """
    names = _names(files)
    for file in files:
        parts = []
        for output, selection in selection_of.items():
            target = output / names[file.path] if several else output
            target.touch()
            parts.append(CutPart(target, _request(file, selection, cutting, target.name)))
        cuts.add(cut_parts(file.path, parts, progress))


def _select_in_file(run: Run, cutting: Cutting) -> tuple[Selection, list[FileOfRun]]:
    """Return the window and the file; for an absolute window, the file is not read."""
    match = _ABSOLUTE_WINDOW.fullmatch((run.window or "").replace(" ", ""))
    if match and cutting.ranks is None:
        window = TimeWindow(int(match[1]), int(match[2]))
        if window.duration_ns:
            return Selection(window, run.window or ""), [FileOfRun(run.paths[0], ())]
    return run.selection, _files_with_devices(run, cutting)


def _files_with_devices(run: Run, cutting: Cutting) -> list[FileOfRun]:
    """Return the files that contain the wanted ranks and devices.

    Raises:
        UsageError: no file has activity on a wanted device.
    """
    files, wanted = files_of_run(run, cutting.ranks), cutting.devices
    known = {device for file in files for device in file.devices}
    if wanted is not None and known and known.isdisjoint(wanted):
        known_devices = ", ".join(map(str, sorted(known)))
        wanted_devices = ", ".join(map(str, sorted(wanted)))
        raise UsageError(
            f"no GPU {wanted_devices} in the trace; GPUs with activity: {known_devices}"
        )
    return files


def _request(file: FileOfRun, selection: Selection, cutting: Cutting, name: str) -> CutRequest:
    """Return the request for the window of a file; ``name`` is the name of the target."""
    processes = None
    if cutting.ranks is not None and not set(file.ranks) <= set(cutting.ranks):
        processes = file.processes_of(cutting.ranks)
    span = None
    if file.parts:
        trace = file.parts[0]
        span = file.to_file_clock(next(iter(trace.recordings.values()), trace.span))
    return CutRequest(
        file.to_file_clock(selection.window),
        selection.label,
        file.path.name,
        _devices(file, cutting.devices),
        processes,
        _as_frozenset(cutting.tables),
        cutting.clip,
        cutting.keep_environment,
        is_packed=name.endswith(".gz"),
        span=span,
    )


def _devices(file: FileOfRun, wanted: Collection[int] | None) -> frozenset[int] | None:
    """Return the wanted devices as numbered in the file (None: all)."""
    if wanted is None or not file.parts:
        return _as_frozenset(wanted)
    return frozenset(number for device, number in file.devices.items() if device in wanted)


def _as_frozenset(items: Collection[Any] | None) -> frozenset[Any] | None:
    """Return ``some`` as a frozenset, or None."""
    return None if items is None else frozenset(items)


def _names(files: Sequence[FileOfRun]) -> dict[Path, str]:
    """Return the name of the part of each file: the name of the file, or a unique variant of it."""
    names: dict[Path, str] = {}
    for file in files:
        name, number = _name(file.path), 2
        while name in names.values():
            name, number = f"{number}-{_name(file.path)}", number + 1
        names[file.path] = name
    return names


def _name(path: Path) -> str:
    """Return the name of a part: reports become exports, compressed exports plain ones."""
    if path.name.endswith(".gz") and ".json" not in path.name:
        return path.name.removesuffix(".gz")
    return f"{path.stem}.sqlite" if path.suffix in (".nsys-rep", ".qdrep", ".qdstrm") else path.name


def _suffix(path: Path) -> str:
    """Return the suffix of a part of ``path``, with .gz if the file is compressed."""
    name = Path(_name(path))
    return f"{Path(name.stem).suffix}.gz" if name.suffix == ".gz" else name.suffix


def write_manifest(
    folder: Path, files: Sequence[FileOfRun], label: str, names: Mapping[Path, str] | None = None
) -> None:
    """Write the manifest that maps files in ``folder`` to ranks; ``names`` overrides file names."""
    names, rows = names or _names(files), []
    for file in files:
        row: dict[str, Any] = {"file": names[file.path]}
        if len(file.ranks) == 1 and len(file.parts) == 1:
            processes = file.parts[0].processes
            first = processes.take(processes["rank"] != ABSENT).row(0)
            row |= {"rank": first["rank"]}
            row |= {"local_rank": first["local_rank"]} if first["local_rank"] != ABSENT else {}
            row |= {name: first[name] for name in ("host", "rack") if first.get(name)}
        rows.append(row)
    sizes = {
        size
        for file in files
        for part in file.parts
        for size in part.processes["world_size"].tolist()
    }
    n_ranks = sum(max(1, len(file.ranks)) for file in files)
    manifest = {
        MANIFEST_KEY: 1,
        "label": label,
        "world_size": max(n_ranks, *sizes, 0) if sizes else n_ranks,
        "ranks": rows,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")

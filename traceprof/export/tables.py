"""``parquet`` and ``arrow``: the tables of a trace in a folder that is read as a trace again.

Of a run of several files it is a folder for each, with the manifest of the run. Results are a file
for each of their tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from traceprof.export.request import Export, Exported, Request
from traceprof.export.result_files import write_results
from traceprof.files import new_folder
from traceprof.formats.runs.files import is_run
from traceprof.formats.tables.folder import FolderWriter, Storage
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.session.cutting import FileOfRun, files_of_run, write_manifest
from traceprof.session.material import Material, Portion
from traceprof.session.run import Run, open_run

__all__ = ["EXPORTS"]


def _export(run: Run, request: Request, storage: Storage) -> Exported:
    done = Exported(request.output)
    if request.results:
        write_results(run, request, storage.value, done)
        return done
    with new_folder(request.output) as folder:
        if not is_run(run.paths):
            material = Material(run, request.ranks)
            _write(material, folder, storage, done, request)
            return done
        files = files_of_run(run, request.ranks)
        names = _folders(files)
        for number, file in enumerate(files):
            own = folder / names[file.path]
            own.mkdir()
            alone = open_run([file.path], run.opening)
            if run.window not in (None, "all"):
                window = file.own(run.selection.window)
                alone = alone.within(f"@{window.start_ns}..@{window.end_ns}")
            chosen = request.ranks if len(file.ranks) > 1 else None
            material = Material(alone, chosen)
            _write(material, own, storage, done, request)
            request.progress(number + 1, len(files), "files")
        write_manifest(folder, files, request.output.name, names)
    return done


def _write(
    material: Material, folder: Path, storage: Storage, done: Exported, request: Request
) -> None:
    trace = material.ranks.parts[0]
    wanted = frozenset(TABLES if request.tables is None else request.tables)
    span = material.span
    with FolderWriter(folder, storage) as writer:
        for part in material.parts(wanted):
            for name, frame in part.frames.items():
                writer.add(name, frame)
                done.n_rows += len(frame)
            span |= _extent(part, span)
            request.progress(done.n_rows, 0, "rows")
        for name in wanted:
            if not TABLES[name].has_times:
                writer.add(name, trace.table(name))
                done.n_rows += len(trace.table(name))
        writer.finish(trace.info, trace.recorded & wanted, span)


def _extent(part: Portion, span: TimeWindow) -> TimeWindow:
    """Return when the first row begins and the last one ends; ``span`` without rows."""
    starts = [int(f["start_ns"].iloc[0]) for f in part.frames.values() if len(f)]
    ends = [
        int(f["end_ns" if TABLES[n].has_spans else "start_ns"].max())
        for n, f in part.frames.items()
        if len(f)
    ]
    return TimeWindow(min(starts, default=span.start_ns), max(ends, default=span.end_ns))


def _folders(files: list[FileOfRun]) -> dict[Path, str]:
    """Return what the folder of each file is called: as the file, without its suffixes."""
    names: dict[Path, str] = {}
    for file in files:
        stem = file.path.name.split(".")[0] or "trace"
        name, number = stem, 2
        while name in names.values():
            name, number = f"{stem}-{number}", number + 1
        names[file.path] = name
    return names


EXPORTS: Final[Mapping[str, Export]] = {
    storage.value: partial(_export, storage=storage) for storage in Storage
}

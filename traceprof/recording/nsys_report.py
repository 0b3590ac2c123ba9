"""Finding the report that nsys left, and exporting it to SQLite."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError
from traceprof.recording.process import run_quietly

__all__ = ["convert_qdstrm", "export_report", "find_importer", "find_report"]

_MENTIONED: Final = re.compile(r"(/\S+\.(?:nsys-rep|qdrep|qdstrm))")
_SUFFIXES: Final = (".nsys-rep", ".qdrep", ".qdstrm")
_PACKAGES: Final = (
    Path("/usr/lib/nsight-systems"),
    Path("/opt/nvidia/nsight-systems"),
    Path("/opt/nvidia/nsight-systems-cli"),
)


def find_report(folder: Path, log: str, started: float) -> Path | None:
    """Return the report of this run, None where there is none.

    nsys ends with 0 without a report, and where it cannot write to the folder it leaves the
    report in the temporary folder and only mentions it: so look in both, for a new file.
    ``started`` is when nsys was started, in seconds since 1970.
    """
    candidates = [folder / f"report{suffix}" for suffix in _SUFFIXES]
    candidates += [Path(text) for text in _MENTIONED.findall(log.replace("'", " "))]
    whole = [path for path in candidates if _is_new(path, started)]
    return min(whole, key=lambda path: _SUFFIXES.index(path.suffix), default=None)


def _is_new(path: Path, started: float) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_size > 0 and status.st_mtime >= started - 1


def find_importer(nsys: str, packages: Sequence[Path] = _PACKAGES) -> Path | None:
    """Return the package's QdstrmImporter, which some installations do not find themselves."""
    on_path = shutil.which("QdstrmImporter")
    if on_path:
        return Path(on_path)
    found = _importers(Path(nsys).resolve(), packages)
    return next((path for path in found if path.is_file()), None)


def _importers(nsys: Path, packages: Sequence[Path]) -> Iterator[Path]:
    for above in list(nsys.parents)[:4]:
        if above != Path("/") and above != Path("/usr"):
            yield from above.glob("host-linux*/QdstrmImporter")
    for package in packages:
        yield from package.glob("host-linux*/QdstrmImporter")
        yield from package.glob("*/host-linux*/QdstrmImporter")


def convert_qdstrm(nsys: str, stream: Path, packages: Sequence[Path] = _PACKAGES) -> Path:
    """Convert a ``.qdstrm`` to a ``.nsys-rep`` beside it, and return that.

    Raises:
        RecordingError: there is no importer, or the file is damaged.
    """
    importer = find_importer(nsys, packages)
    if importer is None:
        raise RecordingError(
            f"nsys left {stream.name} and has no QdstrmImporter to convert it: "
            "install the complete Nsight Systems package, or take --keep-report elsewhere"
        )
    report = stream.with_suffix(".nsys-rep")
    if run_quietly([importer, "-f", "-i", stream, "-o", report]) or not report.is_file():
        raise RecordingError(f"{stream.name}: cannot be converted; it is damaged or was cut off")
    return report


def export_report(nsys: str, report: Path, database: Path, *, with_blobs: bool) -> Path:
    """Export ``report`` to the SQLite file ``database``; return the report that was exported.

    Args:
        nsys: the program.
        report: a .nsys-rep, .qdrep or .qdstrm file.
        database: is overwritten.
        with_blobs: whether this version can export NVTX payloads (the sizes of NCCL messages).

    Raises:
        RecordingError: nsys could not.
    """
    if report.suffix == ".qdstrm":
        report = convert_qdstrm(nsys, report)
    more = ["--include-blobs=true"] if with_blobs else []
    command = [nsys, "export", "--type=sqlite", "--force-overwrite=true", *more]
    code = run_quietly([*command, f"--output={database}", report])
    if code or not database.is_file():
        raise RecordingError(f"{report.name}: nsys could not export it (exit code {code})")
    return report

"""The tools of an nsys package: the importer that finishes reports, and the exporter."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError

__all__ = ["convert_stream", "export_report", "find_importer"]

_PACKAGES: Final = (
    Path("/usr/lib/nsight-systems"),
    Path("/opt/nvidia/nsight-systems"),
    Path("/opt/nvidia/nsight-systems-cli"),
    Path("/usr/local/cuda"),
)
_TOO_HIGH: Final = (Path("/"), Path("/usr"))
_CANNOT_START: Final = (126, 127)


def find_importer(nsys: str | Path, packages: Sequence[Path] = _PACKAGES) -> Path | None:
    """Return the QdstrmImporter that belongs to ``nsys``, else any; some nsys do not find theirs.

    An importer of another version may refuse the stream.
    """
    own = next(_importers_beside(Path(nsys).resolve()), None)
    if own:
        return own
    on_path = shutil.which("QdstrmImporter")
    return Path(on_path) if on_path else next(_importers_of(packages), None)


def _importers_beside(nsys: Path) -> Iterator[Path]:
    """Return the importers of the package that has ``nsys``, also where Debian cuts it in two."""
    for above in list(nsys.parents)[:4]:
        if above not in _TOO_HIGH:
            yield from above.glob("host-linux*/QdstrmImporter")
            yield from above.glob("nsight-systems/host-linux*/QdstrmImporter")


def _importers_of(packages: Sequence[Path]) -> Iterator[Path]:
    for package in packages:
        for pattern in ("host-linux*/QdstrmImporter", "*/host-linux*/QdstrmImporter"):
            yield from package.glob(pattern)


def convert_stream(importer: Path, stream: Path, report: Path) -> None:
    """Convert a ``.qdstrm``, which the importer may change, to the ``.nsys-rep`` file ``report``.

    Raises:
        TraceError: the importer does not start, or the stream is damaged.
    """
    code, said = _run([importer, "-f", "-i", stream, "-o", report])
    if code in _CANNOT_START:
        raise TraceError(
            f"{importer} does not start, {stream.name} stays as it is ({_last_line(said)})"
        )
    if code or not report.is_file():
        raise TraceError(
            f"{stream.name}: cannot be converted, it is damaged or was cut off ({_last_line(said)})"
        )


def export_report(nsys: str, report: Path, database: Path) -> None:
    """Export a ``.nsys-rep`` to the SQLite file ``database``, which is overwritten.

    With NVTX payloads where this nsys can: in them are the sizes of NCCL's messages.

    Raises:
        TraceError: nsys could not.
    """
    _, usage = _run([nsys, "export", "--help"])
    more = ["--include-blobs=true"] if "--include-blobs" in usage else []
    command = [nsys, "export", "--type=sqlite", "--force-overwrite=true", *more]
    code, said = _run([*command, f"--output={database}", report])
    if code or not database.is_file():
        raise TraceError(f"{report.name}: nsys cannot read this report ({_last_line(said)})")


def _run(command: Sequence[str | Path]) -> tuple[int, str]:
    """Run a tool of nsys and return its exit code and what it said."""
    done = subprocess.run(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        start_new_session=True,  # Ctrl-C is for us: a report that is lost is lost for good
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _last_line(said: str) -> str:
    lines = [line.rpartition("\r")[2].strip() for line in said.split("\n") if line.strip()]
    return lines[-1] if lines else "it said nothing"

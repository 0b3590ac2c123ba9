"""Export reports of Nsight Systems with nsys, and find the tools of its package.

Only nsys can read reports. The export is written to a temporary folder, and a copy of it to the
user's cache. Nothing is written to the user's file or its folder.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from traceprof.cache.entries import Cache
from traceprof.cache.identity import digest, identify_code, identify_file, is_settled
from traceprof.errors import TraceError
from traceprof.formats.nsys import python_stacks
from traceprof.formats.nsys.format import MAGIC_WITHIN, STREAM

_PACKAGES: Final = (
    Path("/usr/lib/nsight-systems"),
    Path("/opt/nvidia/nsight-systems"),
    Path("/opt/nvidia/nsight-systems-cli"),
    Path("/usr/local/cuda"),
)
_SYSTEM_FOLDERS: Final = (Path("/"), Path("/usr"))
_CANNOT_START: Final = (126, 127)
"""Exit codes of a shell for a program that cannot start."""


def find_importer(nsys: str | Path, packages: Sequence[Path] = _PACKAGES) -> Path | None:
    """Return the QdstrmImporter of the package of ``nsys``, or any other one; None if none exists.

    Some versions of nsys do not find their importer. An importer of another version may refuse the
    stream.
    """
    return next(_importers(Path(nsys).resolve(), packages), None)


def _importers(nsys: Path, packages: Sequence[Path]) -> Iterator[Path]:
    """Yield importers: in the package of ``nsys``, on the PATH, then in ``packages``."""
    for folder in list(nsys.parents)[:4]:
        if folder not in _SYSTEM_FOLDERS:
            yield from folder.glob("host-linux*/QdstrmImporter")
            # Debian splits the package into two folders.
            yield from folder.glob("nsight-systems/host-linux*/QdstrmImporter")
    if on_path := shutil.which("QdstrmImporter"):
        yield Path(on_path)
    for package in packages:
        yield from package.glob("host-linux*/QdstrmImporter")
        yield from package.glob("*/host-linux*/QdstrmImporter")


def convert_stream(nsys: str | Path, stream: Path, report: Path, shown: Path | None = None) -> None:
    """Convert a ``.qdstrm``, which the importer may change, to the ``.nsys-rep`` file ``report``.

    ``shown`` is the user's name for the stream, for error messages.

    Raises:
        TraceError: there is no importer, it does not start, or the stream is damaged.
    """
    importer, file = find_importer(nsys), shown or Path(stream.name)
    if importer is None:
        raise TraceError(
            f"{file}: unfinished Nsight Systems report; this nsys has no QdstrmImporter to convert "
            "it, so install the complete Nsight Systems package"
        )
    code, output = _run([importer, "-f", "-i", stream, "-o", report])
    if code in _CANNOT_START:
        raise TraceError(f"{importer} cannot start ({_last_line(output)}); install what it needs")
    if code or not report.is_file():
        raise TraceError(
            _version_complaint(nsys, stream, file)
            or f"{file}: damaged or truncated, so nsys cannot convert it ({_last_line(output)})"
        )


def export_report(nsys: str, report: Path, database: Path, shown: Path | None = None) -> None:
    """Export a ``.nsys-rep`` to the SQLite file ``database``, which is overwritten.

    The export includes NVTX payloads if this nsys can export them; they contain the sizes of NCCL
    messages. Sampled Python stacks are added from an export as JSON. ``shown`` is the user's name
    for the report, for error messages.

    Raises:
        TraceError: nsys could not export the report.
    """
    _, usage = _run([nsys, "export", "--help"])
    blob_options = ["--include-blobs=true"] if "--include-blobs" in usage else []
    command = [nsys, "export", "--type=sqlite", "--force-overwrite=true", *blob_options]
    code, output = _run([*command, f"--output={database}", report])
    if code or not database.is_file():
        file = shown or Path(report.name)
        raise TraceError(
            _version_complaint(nsys, report, file)
            or f"{file}: nsys cannot read this report ({_last_line(output)})"
        )
    if python_stacks.are_sampled(database):
        exported = database.with_suffix(".json")
        _run([nsys, "export", "--type=json", f"--output={exported}", report])
        if exported.is_file():
            python_stacks.add_functions(database, exported)
            exported.unlink()


_TAIL_BYTES: Final = 1 << 20
_VERSION: Final = re.compile(r"(20\d\d\.\d+\.\d+)\b")
_REPORT_VERSION: Final = re.compile(rb"\b(20\d\d)[.@](\d+)[.@](\d+)[.@]\d+-[0-9a-f]+")
"""The version of nsys in a report: near its end, and in newer reports also near its start."""


def version_of_report(report: Path) -> str:
    """Return the version of nsys that recorded a report; "" if the report does not contain it."""
    with report.open("rb") as file:
        head = file.read(256)
        file.seek(max(0, report.stat().st_size - _TAIL_BYTES))
        tail = file.read()
    found = _REPORT_VERSION.findall(tail) or _REPORT_VERSION.findall(head)
    return b".".join(found[-1]).decode() if found else ""


def _version_complaint(nsys: str | Path, file: Path, shown: Path) -> str:
    """Return an error text if the file needs a newer nsys than the installed one; otherwise ""."""
    recorded, installed = version_of_report(file), _VERSION.search(_run([nsys, "--version"])[1])
    if not recorded or installed is None or _numbers(recorded) <= _numbers(installed.group(1)):
        return ""
    return (
        f"{shown}: recorded by nsys {recorded}, but the installed nsys {installed.group(1)} cannot "
        f"read it; run `{_export_command(shown, is_stream=_is_stream(file))}` with nsys {recorded} "
        "or newer, and give the .sqlite file"
    )


def _is_stream(file: Path) -> bool:
    """Return whether a file is an unfinished report, which an importer must convert first."""
    with file.open("rb") as opened:
        return STREAM in opened.read(MAGIC_WITHIN)


def _numbers(version: str) -> list[int]:
    return list(map(int, version.split(".")))


def _run(command: Sequence[str | Path]) -> tuple[int, str]:
    """Run a tool of nsys; return its exit code and its output."""
    done = subprocess.run(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        start_new_session=True,  # Ctrl-C must not kill nsys: the report would be lost
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _last_line(output: str) -> str:
    """Return the last line of the output of a tool."""
    lines = [line.rpartition("\r")[2].strip() for line in output.split("\n") if line.strip()]
    return lines[-1] if lines else "no output"


@contextmanager
def exported_report(path: Path) -> Iterator[Path]:
    """Give the SQLite export of a report; leaving the context deletes it.

    Raises:
        TraceError: nsys is not installed (the message has the command to run elsewhere), or it
            cannot read the report.
    """
    is_stream, program = _is_stream(path), shutil.which("nsys")
    if program is None:
        raise TraceError(
            f"{path}: only nsys can read Nsight Systems reports, and nsys is not installed; run "
            f"`{_export_command(path, is_stream=is_stream)}` on a machine with nsys, and give the "
            ".sqlite file"
        )
    cache, key = _cache_entry(path, program)
    kept = cache.file(key) if cache else nullcontext()
    with tempfile.TemporaryDirectory(prefix="traceprof-") as name, kept as known:
        folder = Path(name)
        database = folder / "report.sqlite"
        if known is not None:
            _link_or_copy(known, database)
            yield database
            return
        report = folder / "report.nsys-rep"
        if is_stream:
            copy = folder / f"{path.stem}.qdstrm"
            shutil.copyfile(path, copy)  # the importer changes its input file
            convert_stream(program, copy, report, path)
            copy.unlink()
        else:
            _link_or_copy(path, report)
        export_report(program, report, database, path)
        # Cache the export unless the report changed during the export.
        if cache is not None and _cache_entry(path, program)[1] == key:
            with suppress(OSError):
                cache.put_file(key, database)
        yield database


def _cache_entry(path: Path, program: str) -> tuple[Cache | None, str]:
    """Return cache and key for the export of ``path`` by this nsys; None if it cannot be cached."""
    cache = Cache.of_user()
    with suppress(OSError):
        if cache is not None and is_settled([path]):
            files = identify_file(path), identify_file(Path(program))
            return cache, digest("nsys export", identify_code(), *files)
    return None, ""


def _link_or_copy(path: Path, target: Path) -> None:
    """Make ``path`` available as ``target``, because nsys recognizes files by their suffix."""
    try:
        target.symlink_to(path.resolve())
    except OSError:  # some systems do not allow links
        shutil.copyfile(path, target)


def _export_command(path: Path, *, is_stream: bool) -> str:
    """Return the shell command that exports a report, or that converts and exports a stream."""
    source, report = shlex.quote(path.name), path.name
    first = ""
    if is_stream:
        report = path.with_suffix(".nsys-rep").name
        first = f"QdstrmImporter -i {source} -o {shlex.quote(report)} && "
    database = shlex.quote(f"{path.stem}.sqlite")
    options = f"--type=sqlite --include-blobs=true --output={database}"
    return f"{first}nsys export {options} {shlex.quote(report)}"

"""The export of a report of Nsight Systems, which nsys itself makes, and the tools of its package.

Only nsys can read these files. The export goes to a temporary folder, and a copy of it to the
user's cache: nothing appears beside the user's file, and nothing is written to it.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Final

from traceprof.cache.entries import Cache
from traceprof.cache.identity import digest, identify_code, identify_file, is_settled
from traceprof.errors import TraceError
from traceprof.formats.nsys.format import MAGIC_WITHIN, STREAM

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
    if on_path := shutil.which("QdstrmImporter"):
        return Path(on_path)
    patterns = ("host-linux*/QdstrmImporter", "*/host-linux*/QdstrmImporter")
    found = chain.from_iterable(one.glob(pattern) for one in packages for pattern in patterns)
    return next(found, None)


def _importers_beside(nsys: Path) -> Iterator[Path]:
    """Return the importers of the package that has ``nsys``, also where Debian cuts it in two."""
    for above in list(nsys.parents)[:4]:
        if above not in _TOO_HIGH:
            yield from above.glob("host-linux*/QdstrmImporter")
            yield from above.glob("nsight-systems/host-linux*/QdstrmImporter")


def convert_stream(nsys: str | Path, stream: Path, report: Path, shown: Path | None = None) -> None:
    """Convert a ``.qdstrm``, which the importer may change, to the ``.nsys-rep`` file ``report``.

    ``shown`` is what the user calls the stream.

    Raises:
        TraceError: there is no importer, it does not start, or the stream is damaged.
    """
    importer, file = find_importer(nsys), shown or Path(stream.name)
    if importer is None:
        raise TraceError(
            f"{file}: unfinished Nsight Systems report; this nsys has no QdstrmImporter to convert "
            "it, so install the complete Nsight Systems package"
        )
    code, said = _run([importer, "-f", "-i", stream, "-o", report])
    if code in _CANNOT_START:
        raise TraceError(f"{importer} cannot start ({_last_line(said)}); install what it needs")
    if code or not report.is_file():
        raise TraceError(
            _newer(nsys, stream, file)
            or f"{file}: damaged or truncated, so nsys cannot convert it ({_last_line(said)})"
        )


def export_report(nsys: str, report: Path, database: Path, shown: Path | None = None) -> None:
    """Export a ``.nsys-rep`` to the SQLite file ``database``, which is overwritten.

    With NVTX payloads where this nsys can: in them are the sizes of NCCL's messages. ``shown`` is
    what the user calls the report.

    Raises:
        TraceError: nsys could not.
    """
    _, usage = _run([nsys, "export", "--help"])
    more = ["--include-blobs=true"] if "--include-blobs" in usage else []
    command = [nsys, "export", "--type=sqlite", "--force-overwrite=true", *more]
    code, said = _run([*command, f"--output={database}", report])
    if code or not database.is_file():
        file = shown or Path(report.name)
        raise TraceError(
            _newer(nsys, report, file)
            or f"{file}: nsys cannot read this report ({_last_line(said)})"
        )


_TAIL_BYTES: Final = 1 << 20
_VERSION: Final = re.compile(r"(20\d\d\.\d+\.\d+)\b")
_OF_REPORT: Final = re.compile(rb"\b(20\d\d)[.@](\d+)[.@](\d+)[.@]\d+-[0-9a-f]+")
"""A version of nsys as its reports have it: near their end, in newer ones at the beginning, too."""


def version_of_report(report: Path) -> str:
    """Return the version of nsys that recorded a report, "" where it does not tell."""
    with report.open("rb") as file:
        head = file.read(256)
        file.seek(max(0, report.stat().st_size - _TAIL_BYTES))
        tail = file.read()
    found = _OF_REPORT.findall(tail) or _OF_REPORT.findall(head)
    return b".".join(found[-1]).decode() if found else ""


def _newer(nsys: str | Path, file: Path, shown: Path) -> str:
    """Return that a report or stream is of a newer nsys than the one here; "" where it is not."""
    with file.open("rb") as head:
        is_stream = STREAM in head.read(MAGIC_WITHIN)
    recorded, here = version_of_report(file), _VERSION.search(_run([nsys, "--version"])[1])
    if not recorded or here is None or _numbers(recorded) <= _numbers(here.group(1)):
        return ""
    return (
        f"{shown}: recorded by nsys {recorded}, but the installed nsys {here.group(1)} cannot read "
        f"it; run `{_export_command(shown, is_stream=is_stream)}` with nsys {recorded} or newer, "
        "and give the .sqlite file"
    )


def _numbers(version: str) -> list[int]:
    return list(map(int, version.split(".")))


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
    return lines[-1] if lines else "no output"


@contextmanager
def exported_report(path: Path) -> Iterator[Path]:
    """Give the SQLite export of a report, for as long as the context lasts.

    Raises:
        TraceError: nsys is not installed here (the message says what to run elsewhere), or it
            cannot read the report.
    """
    with path.open("rb") as file:
        is_stream = STREAM in file.read(MAGIC_WITHIN)
    program = shutil.which("nsys")
    if program is None:
        raise TraceError(f"{path}: {_advice(path, is_stream=is_stream)}")
    cache, key = _place_in_cache(path, program)
    kept = cache.file(key) if cache else nullcontext()
    with tempfile.TemporaryDirectory(prefix="traceprof-") as name, kept as known:
        folder = Path(name)
        database = folder / "report.sqlite"
        if known is not None:
            _stand_in(known, database)
            yield database
            return
        report = folder / "report.nsys-rep"
        if is_stream:
            copy = folder / f"{path.stem}.qdstrm"
            shutil.copyfile(path, copy)  # the importer writes to the file that it reads
            convert_stream(program, copy, report, path)
            copy.unlink()
        else:
            _stand_in(path, report)
        export_report(program, report, database, path)
        # Kept unless the report changed meanwhile.
        if cache is not None and _place_in_cache(path, program)[1] == key:
            with suppress(OSError):
                cache.put_file(key, database)
        yield database


def _place_in_cache(path: Path, program: str) -> tuple[Cache | None, str]:
    """Return where the export of ``path`` by this nsys is kept; None where it cannot be."""
    cache = Cache.of_user()
    with suppress(OSError):
        if cache is not None and is_settled([path]):
            files = identify_file(path), identify_file(Path(program))
            return cache, digest("nsys export", identify_code(), *files)
    return None, ""


def _stand_in(path: Path, report: Path) -> None:
    """Make ``path`` known under the name ``report``, because nsys goes by the suffix."""
    try:
        report.symlink_to(path.resolve())
    except OSError:  # some systems allow no links
        shutil.copyfile(path, report)


def _advice(path: Path, *, is_stream: bool) -> str:
    return (
        "only nsys can read Nsight Systems reports, and nsys is not installed; run "
        f"`{_export_command(path, is_stream=is_stream)}` on a machine with nsys, and give the "
        ".sqlite file"
    )


def _export_command(path: Path, *, is_stream: bool) -> str:
    """Return what makes a database of a report, or of a stream that is no report yet."""
    own, report = shlex.quote(path.name), path.name
    first = ""
    if is_stream:
        report = path.with_suffix(".nsys-rep").name
        first = f"QdstrmImporter -i {own} -o {shlex.quote(report)} && "
    database = shlex.quote(f"{path.stem}.sqlite")
    options = f"--type=sqlite --include-blobs=true --output={database}"
    return f"{first}nsys export {options} {shlex.quote(report)}"

"""The export of a report of Nsight Systems, which nsys itself makes.

Only nsys can read these files. The export goes to a temporary folder, and a copy of it to the
user's cache: nothing appears beside the user's file, and nothing is written to it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from traceprof.cache.entries import Cache
from traceprof.cache.identity import digest, identify_code, identify_file, is_settled
from traceprof.errors import TraceError
from traceprof.formats.nsys.reports import MAGIC_WITHIN, STREAM
from traceprof.formats.nsys.tools import convert_stream, export_report, find_importer
from traceprof.values import dataclass

__all__ = ["exported_report"]


@contextmanager
def exported_report(path: Path) -> Iterator[Path]:
    """Give the SQLite export of a report, for as long as the context lasts.

    Raises:
        TraceError: nsys is not installed here (the message says what to run elsewhere), or it
            cannot read the report.
    """
    is_stream = _is_stream(path)
    program = shutil.which("nsys")
    if program is None:
        raise TraceError(f"{path}: {_advice(path, is_stream=is_stream)}")
    kept = _Export.of(path, program)
    with tempfile.TemporaryDirectory(prefix="traceprof-") as name, kept.found() as known:
        folder = Path(name)
        database = folder / "report.sqlite"
        if known is not None:
            _stand_in(known, database)
            yield database
            return
        report = folder / "report.nsys-rep"
        if is_stream:
            _convert(path, report, program)
        else:
            _stand_in(path, report)
        export_report(program, report, database)
        kept.keep(database)
        yield database


@dataclass(frozen=True, slots=True)
class _Export:
    """The export of a report in the user's cache, by the content of the report and by this nsys."""

    path: Path
    program: str
    cache: Cache | None = None
    key: str = ""

    @classmethod
    def of(cls, path: Path, program: str) -> _Export:
        """Return the place of the export of ``path``; none where it cannot be kept."""
        cache = Cache.of_user()
        with suppress(OSError):
            if cache is not None and is_settled([path]):
                return cls(path, program, cache, _key(path, program))
        return cls(path, program)

    @contextmanager
    def found(self) -> Iterator[Path | None]:
        """Give the export that was kept; None where none is."""
        if self.cache is None:
            yield None
            return
        with self.cache.file(self.key) as known:
            yield known

    def keep(self, database: Path) -> None:
        """Keep ``database``, unless the report changed meanwhile."""
        with suppress(OSError):
            if self.cache is not None and _key(self.path, self.program) == self.key:
                self.cache.put_file(self.key, database)


def _key(path: Path, program: str) -> str:
    """Return a name for the export of ``path``, which another nsys may export otherwise."""
    return digest("nsys export", identify_code(), identify_file(path), identify_file(Path(program)))


def _stand_in(path: Path, report: Path) -> None:
    """Make ``path`` known under the name ``report``, because nsys goes by the suffix."""
    try:
        report.symlink_to(path.resolve())
    except OSError:  # some systems allow no links
        shutil.copyfile(path, report)


def _is_stream(path: Path) -> bool:
    with path.open("rb") as file:
        return STREAM in file.read(MAGIC_WITHIN)


def _convert(path: Path, report: Path, program: str) -> None:
    importer = find_importer(program)
    if importer is None:
        raise TraceError(
            f"{path}: an unfinished report of Nsight Systems, and this nsys has no "
            "QdstrmImporter: run `QdstrmImporter -i FILE.qdstrm` where the complete package is"
        )
    copy = report.with_name(f"{path.stem}.qdstrm")
    shutil.copyfile(path, copy)  # the importer writes to the file that it reads
    convert_stream(importer, copy, report)
    copy.unlink()


def _advice(path: Path, *, is_stream: bool) -> str:
    report = path.with_suffix(".nsys-rep").name if is_stream else path.name
    export = f"nsys export --type=sqlite --include-blobs=true --output={path.stem}.sqlite {report}"
    first = f"QdstrmImporter -i {path.name} -o {report} && " if is_stream else ""
    return (
        "a report of Nsight Systems, which only nsys can read, and there is no nsys here: run "
        f"`{first}{export}` where it is, and give the .sqlite file"
    )

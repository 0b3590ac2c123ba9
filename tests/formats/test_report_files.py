"""Reports of nsys, converted by the real nsys; what is said where there is none."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.requirements import nsys_in_turn, require
from traceprof.errors import TraceError
from traceprof.formats import cut, open_trace
from traceprof.formats.nsys import reports
from traceprof.formats.nsys.reports import exported_report, find_importer
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.cutting import CutRequest, no_progress
from traceprof.recording.orphans import end_processes_with

pytestmark = pytest.mark.usefixtures("times_can_be_set")

STREAM = b"U3w[END]NVIDIA Nsight Systems Stream 2022.4.2.1-df9881f!"
REPORT = b"NVIDIA Tegra Profiler Report 1..\n"


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the .qdstrm of a short program, recorded here."""
    nsys = require("nsys")
    folder = tmp_path_factory.mktemp("nsys")
    session = f"traceprof-test-{os.getpid()}"
    command = [nsys, "profile", f"--session-new={session}", "-t", "osrt", "-s", "none"]
    command += ["--cpuctxsw=none", "-o", "r", "sleep", "0.1"]
    for _ in range(3):  # nsys sometimes does not reach its own agent
        with nsys_in_turn():
            subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
            end_processes_with(session)
        for found in folder.glob("r.qdstrm"):
            return found
    pytest.skip("this nsys makes reports itself and leaves no .qdstrm")


@pytest.mark.nsys
def test_a_stream_and_its_report_read_alike(stream: Path, tmp_path: Path) -> None:
    before = _files(stream.parent)
    trace = open_trace(stream)
    assert trace.info.path == str(stream)
    assert trace.info.format == "nsys"
    assert trace.info.profiler.startswith("NVIDIA Nsight Systems")
    assert len(trace.host_ops.to_frame()) > 0
    assert _files(stream.parent) == before, "the user's folder must not change"

    importer = find_importer(require("nsys"))
    assert importer is not None
    copy = Path(shutil.copy(stream, tmp_path / "copy.qdstrm"))
    made = tmp_path / "made.nsys-rep"
    subprocess.run([importer, "-i", copy, "-o", made], capture_output=True, check=True)
    report = made.rename(tmp_path / "renamed.bin")  # recognized by content
    before = _files(tmp_path)
    again = open_trace(report)
    assert again.host_ops.to_frame().equals(trace.host_ops.to_frame())
    assert _files(tmp_path) == before


@pytest.mark.nsys
def test_nothing_stays_in_the_temporary_folder(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with exported_report(stream) as database:
        assert database.is_file()
        assert tmp_path in database.parents
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nsys
@pytest.mark.parametrize("head", [STREAM, REPORT])
def test_a_damaged_report_is_one_clear_error(tmp_path: Path, head: bytes) -> None:
    require("nsys")
    path = tmp_path / "broken"
    path.write_bytes(head + bytes(2000))
    with pytest.raises(TraceError, match=r"damaged|nsys cannot read this report"):
        open_trace(path)


@pytest.mark.parametrize(
    ("head", "command"),
    [
        (
            STREAM,
            "QdstrmImporter -i run.x -o run.nsys-rep && "
            "nsys export --type=sqlite --include-blobs=true --output=run.sqlite run.nsys-rep",
        ),
        (REPORT, "nsys export --type=sqlite --include-blobs=true --output=run.sqlite run.x"),
    ],
)
def test_without_nsys_the_command_to_run_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, command: str
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    path = tmp_path / "run.x"
    path.write_bytes(head)
    with pytest.raises(TraceError) as error:
        open_trace(path)
    assert command in str(error.value)


def _files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.nsys
def test_a_report_is_cut_as_its_export(stream: Path, tmp_path: Path) -> None:
    trace = open_trace(stream)
    part = tmp_path / "part.sqlite"
    part.touch()
    cut(stream, part, CutRequest(trace.span, span=trace.span), no_progress)
    again = open_trace(part)
    assert again.info.format == "nsys"
    assert again.host_ops.to_frame().equals(trace.host_ops.to_frame())
    assert again.span == trace.span


def test_an_export_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As long as neither the report nor nsys changes, and only where the cache is on."""
    exports: list[str] = []

    def export(_: str, report: Path, database: Path, shown: Path) -> None:
        assert shown.name == "a.nsys-rep"
        exports.append(report.name)
        write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), database)

    nsys = tmp_path / "nsys"
    nsys.write_text("1")
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(REPORT)
    os.utime(report, (1_700_000_000, 1_700_000_000))
    monkeypatch.setattr(reports.shutil, "which", lambda _: str(nsys))
    monkeypatch.setattr(reports, "export_report", export)
    monkeypatch.setenv("TRACEPROF_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        trace = open_trace(report)
        assert trace.kernels.to_frame()["name"].tolist() == ["gemm"]
        assert trace.info.path == str(report)
    assert len(exports) == 1
    (kept,) = (tmp_path / "cache").rglob("*.file")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert len(open_trace(report).kernels.to_frame()) == 1
    assert len(exports) == 2, "a damaged export is made again"
    nsys.write_text("2")
    open_trace(report)
    assert len(exports) == 3
    monkeypatch.setenv("TRACEPROF_CACHE", "0")
    open_trace(report)
    assert len(exports) == 4

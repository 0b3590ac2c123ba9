"""What a command imports: what reads the file at hand and answers, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.formats import kineto_file
from tests.formats.folders import write_tables
from tests.formats.kineto_file import kernel
from tests.formats.nvprof_database import NvprofDatabase
from tests.requirements import ROOT
from traceprof.formats.nsys.writer import write_nsys

PROGRAM = """
import sys
from traceprof.__main__ import main
try:
    main()
finally:
    sys.stderr.write(" ".join(sys.modules))
"""
READERS = {
    "nsys": "traceprof.formats.nsys.reader",
    "nvprof": "traceprof.formats.nvprof.reader",
    "kineto": "traceprof.formats.kineto.reader",
    "tables": "traceprof.formats.tables.folder",
}
OF_SEVERAL = {
    "traceprof.workers.pool",
    "traceprof.comparison.comparing",
    "multiprocessing.connection",
}
BY_NOBODY = {
    "pydantic",
    "plotly",
    "sqlite_utils",
    "dash",
    "torch",
    "distributed",
    "pyarrow.parquet",
}


def printed_by(program: str, *words: str) -> str:
    """Return what a program says on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "TRACEPROF_CACHE": "0"},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def modules_of(*words: str) -> set[str]:
    """Return what a command imports, with all that it imports."""
    return set(printed_by(PROGRAM, *words).split())


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return a trace of each format."""
    trace = TraceBuilder().kernel("gemm", 0, 10).build()
    found = {name: tmp_path / name for name in READERS}
    write_nsys(trace, found["nsys"])
    with NvprofDatabase(found["nvprof"]) as file:
        file.add("CONCURRENT_KERNEL", start=1, end=11, name=file.string("gemm"))
    kineto_file.write(found["kineto"], [kernel("gemm", 0, 10)])
    found["tables"].mkdir()
    write_tables(trace, found["tables"])
    return found


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_read_by_its_reader_alone(name: str, files: dict[str, Path]) -> None:
    modules = modules_of("breakdown", str(files[name]))
    assert {reader for reader in READERS.values() if reader in modules} == {READERS[name]}


@pytest.mark.parametrize("command", ["info", "breakdown", "analyze"])
def test_a_single_file_needs_nothing_of_several(command: str, files: dict[str, Path]) -> None:
    assert not modules_of(command, str(files["nsys"])) & (OF_SEVERAL | BY_NOBODY)


@pytest.mark.parametrize("form", [["--json"], []])
def test_info_needs_neither_facts_nor_analyses(form: list[str], files: dict[str, Path]) -> None:
    modules = modules_of("info", str(files["nsys"]), *form)
    assert not {one for one in modules if one.startswith("traceprof.measures.")}
    assert not modules & {"traceprof.session.run", "traceprof.names.kernels"}
    assert ("rich" in modules) == (not form)


def test_one_table_needs_no_other_analysis(files: dict[str, Path]) -> None:
    modules = modules_of("breakdown", str(files["nsys"]))
    others = ("collectives", "composition", "idle", "path", "quality", "ranks", "traffic")
    assert "traceprof.measures.device.times" in modules
    assert not {f"traceprof.measures.{room}" for room in others} & modules
    assert not modules & {"traceprof.comparison.scaling", "traceprof.findings"}


@pytest.mark.parametrize(
    ("command", "most"), [("--help", 20), ("info", 125), ("breakdown", 175), ("analyze", 275)]
)
def test_a_command_imports_few_modules(command: str, most: int, files: dict[str, Path]) -> None:
    """What a command imports is most of what it costs on a small trace: see `scripts/imports`."""
    words = [command] if command == "--help" else [command, str(files["nsys"])]
    modules = modules_of(*words)
    assert len({one for one in modules if one.startswith("traceprof.")}) <= most
    assert not modules & {"asyncio", "http", "multiprocessing", "unittest", "xml", "pkg_resources"}


@pytest.mark.parametrize("command", ["info", "breakdown", "analyze", "findings", "show kernels"])
def test_commands_need_no_frames(command: str, files: dict[str, Path]) -> None:
    """To import pandas, or Arrow, takes longer than all that a small command does."""
    modules = modules_of(*command.split(), str(files["nsys"]))
    assert not modules & {"pandas", "pyarrow", "numpy.random"}


@pytest.mark.parametrize("command", ["timeline", "report"])
def test_pages_need_no_frames(command: str, files: dict[str, Path], tmp_path: Path) -> None:
    modules = modules_of(command, str(files["nsys"]), "-o", str(tmp_path / "page.html"))
    assert not modules & {"pandas", "pyarrow", "sqlite_utils"}


WITHOUT = """
import sys
sys.modules["pyarrow"] = None  # as if it were not installed
from traceprof.__main__ import main
main()
"""


def without_arrow(*words: str) -> tuple[int, str]:
    """Return the exit code of a command where pyarrow is not installed, and its message."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "TRACEPROF_CACHE": "0"},
        cwd=ROOT,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("to", ["parquet", "arrow"])
def test_exports_that_need_arrow_name_its_extra(
    to: str, files: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, message = without_arrow("export", str(files["nsys"]), "--to", to, "-o", str(out))
    assert (code, out.exists()) == (2, False)
    assert f"--to {to} needs pyarrow" in message
    assert 'pip install "traceprof[arrow]"' in message


def test_folders_of_tables_name_the_extra_that_they_need(files: dict[str, Path]) -> None:
    code, message = without_arrow("analyze", str(files["tables"]))
    assert code == 2
    assert "Parquet and Arrow files need pyarrow, which is not installed: run `pip" in message


@pytest.mark.parametrize("name", ["nsys", "nvprof", "kineto"])
def test_other_traces_need_no_arrow(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    path = str(files[name])
    assert without_arrow("analyze", path) == (0, "")
    assert without_arrow("show", "kernels", path, "-w", "all")[0] == 0
    assert without_arrow("report", path, "-o", str(tmp_path / "page.html"))[0] == 0
    out = tmp_path / "trace.json"
    assert without_arrow("export", path, "--to", "perfetto", "-o", str(out))[0] == 0
    assert '"gemm"' in out.read_text()


SETTINGS = """
import gc, sys
from traceprof.__main__ import main
try:
    main()
finally:
    sys.stderr.write(str(gc.get_threshold()[0] > 10_000 and gc.get_freeze_count() > 0))
"""
OURS_IN_ANOTHER = """
import gc, os, sys
before = gc.get_threshold(), dict(os.environ)
import traceprof as tp
tp.open(sys.argv[1]).breakdown()
after = gc.get_threshold(), dict(os.environ)
sys.stderr.write(str(after == before))
"""


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [(SETTINGS, ["breakdown"], "True"), (OURS_IN_ANOTHER, [], "True")],
    ids=["command", "program of another"],
)
def test_libraries_are_set_for_commands_alone(
    program: str, words: list[str], expected: str, files: dict[str, Path]
) -> None:
    path = str(files["nsys"])
    assert printed_by(program, *words, path) == expected

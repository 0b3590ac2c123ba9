"""Every command ends with the codes of README's table: what is missing, what lacks, what fails."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.builders import TraceBuilder
from tests.requirements import ROOT
from traceprof.cli import app, main
from traceprof.cli.registry import COMMANDS
from traceprof.formats.nsys.writer import write_nsys
from traceprof.store import Store

MISSING = {
    "record": None,  # the program that it runs has a code of its own
    "doctor": None,  # reads no file
    "demo": None,  # reads the trace of the package
    "try": "--from gone.sqlite -- true",
    "watch": "gone/",
    "capture": "gone/",
    "recover": "gone/",
    "analyze": "gone.sqlite",
    "findings": "gone.sqlite",
    "show": "kernels gone.sqlite",
    "explain": "gone.sqlite slowest",
    "memory": "gone.pickle",
    "ops": "gone.sqlite",
    "query": "gone.sqlite VALUES(1)",
    "report": "gone.sqlite",
    "timeline": "gone.sqlite",
    "view": "gone.sqlite --no-browser",
    "mcp": "gone/",
    "compare": "t.sqlite gone.sqlite",
    "scaling": "gone.csv",
    "elastic": "gone.log",
    "accuracy": "gone.log",
    "nodes": "gone/",
    "runs add": "gone.sqlite",
    "runs list": "--db t.sqlite",
    "runs show": "gone",
    "runs tag": "gone a=b",
    "runs rm": "gone",
    "runs export": "gone",
    "runs import-log": "gone.log",
    "cut": "gone.sqlite -w all -o out.sqlite",
    "export": "gone.sqlite --to perfetto -o out.json",
    "info": "gone.sqlite",
}
"""What to type behind each command so that a file, a folder or a run is missing, or is none."""

LACKING = {
    "show": "memory t.sqlite",
    "memory": "t.sqlite",
    "explain": "t.sqlite slowest",
    "nodes": "t.sqlite",
    "scaling": "t.sqlite",
    "accuracy": "t.sqlite",
}
"""What asks a trace of one kernel for what it does not have."""

WRITES = {
    "analyze": "t.sqlite",
    "findings": "t.sqlite",
    "show": "kernels t.sqlite",
    "ops": "t.sqlite",
    "query --schema": "",
    "info": "t.sqlite",
    "compare": "t.sqlite t.sqlite",
    "runs list": "",
    "help": "",
    "doctor": "",
}
"""What prints an answer."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace, and a database of runs that holds none, in the folder where the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACEPROF_RUNS", str(tmp_path / "runs.sqlite"))
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), tmp_path / "t.sqlite")


def code_of(command: str, words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*command.split(), *words.split()], prog_name="traceprof")
    assert done.exit_code in (0, 2) or done.stdout == ""
    return done.exit_code, done.stderr


def test_every_command_is_here() -> None:
    names = {
        name
        for one in COMMANDS
        for name in ([f"{one.name} {below.name}" for below in one.commands] or [one.name])
    }
    assert names == {*MISSING}
    assert {*LACKING} <= names


@pytest.mark.parametrize("command", [name for name, words in MISSING.items() if words])
def test_what_is_missing_is_3(command: str) -> None:
    if command == "mcp":
        pytest.importorskip("mcp")
    code, told = code_of(command, MISSING[command] or "")
    assert (code, told.splitlines()[-1].startswith("traceprof: ")) == (3, True), told


@pytest.mark.parametrize("option", ["--rules", "--hardware", "--cluster"])
def test_a_file_of_an_option_that_is_missing_is_3(option: str) -> None:
    code, told = code_of("show", f"kernels t.sqlite {option} gone.toml")
    assert (code, told) == (
        3,
        "traceprof: gone.toml: cannot read the file: No such file or directory\n",
    )


@pytest.mark.parametrize("command", [*LACKING])
def test_what_the_trace_lacks_is_4(command: str) -> None:
    code, told = code_of(command, LACKING[command])
    assert code == 4, told


@pytest.fixture
def ranges() -> None:
    """A trace in which ranges, operators and samples were recorded, and none of use came."""
    builder = TraceBuilder().kernel("gemm", 0, 10).range("setup", 0, 30)
    builder.sample("power_watts", 5, 100.0)
    write_nsys(builder.build(), Path("ranges.sqlite"))


@pytest.mark.usefixtures("ranges")
@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("steps", "the trace contains no steps"),
        ("phases", "the trace contains no ranges of phases"),
        ("step-phases", "the trace contains no steps, or no phases within steps"),
        ("steps,kernels", "the trace contains no steps"),
        ("network", "the trace contains no network counters"),
        ("counters", "the trace contains no GPU counters"),
    ],
)
def test_a_table_without_its_data_is_4(table: str, told: str) -> None:
    for window in ("", "-w all", "-w 0ns..9ns"):
        code, said = code_of("show", f"{table} ranges.sqlite {window}")
        assert (code, told in said) == (4, True), (window, said)
    assert code_of("show", "kernels ranges.sqlite")[0] == 0


def test_a_table_whose_data_lies_outside_the_window_is_empty() -> None:
    """The recording has phases, and the window has none: nothing is missing."""
    builder = TraceBuilder().phase("forward", 0, 30)
    write_nsys(builder.kernel("gemm", 0, 10).kernel("gemm", 90, 99).build(), Path("p.sqlite"))
    assert code_of("show", "phases p.sqlite -w all")[0] == 0
    assert code_of("show", "phases p.sqlite -w 50ns..60ns")[0] == 0


@pytest.mark.parametrize("command", [*MISSING])
def test_what_makes_no_sense_is_2(command: str) -> None:
    assert code_of(command, "--no-such-option")[0] == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("command", [*WRITES])
def test_a_full_disk_is_1(command: str) -> None:
    words = [*command.split(), *WRITES[command].split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "traceprof", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            # No profiler is found that `doctor` would try.
            env={"PYTHONPATH": str(ROOT), "TRACEPROF_CACHE": "0", "HOME": ".", "PATH": "."},
            check=False,
        )
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "locked/live"), 3),
        (PermissionError(errno.EPERM, "Operation not permitted"), 1),
        (OSError(errno.ENOSPC, "No space left on device", "out"), 1),
    ],
)
def test_what_must_not_be_read_is_3(
    error: OSError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("traceprof.cli.app", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert capsys.readouterr().err.endswith(f"{error.strerror}\n")


def test_a_trace_in_a_locked_folder_is_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def lstat(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", lstat)
    done = CliRunner().invoke(app, ["info", "./t.sqlite", "--no-cache"])
    assert (done.exit_code, done.stderr) == (3, "traceprof: t.sqlite: Permission denied\n")


def test_output_that_is_no_file_is_2(tmp_path: Path) -> None:
    for output, said in (("-", "- is not a file name"), ("t.sqlite/a.json", "t.sqlite: not a")):
        done = CliRunner().invoke(app, f"export t.sqlite --to perfetto -o {output}".split())
        assert done.exit_code == 2
        assert said in done.stderr


def test_a_run_that_is_kept_is_found() -> None:
    assert code_of("runs add", "t.sqlite --name mine")[0] == 0
    assert Store.at().names() == ["mine"]
    assert code_of("runs show", "mine")[0] == 0

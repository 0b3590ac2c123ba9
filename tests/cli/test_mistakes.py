"""What is mistyped or misplaced: one line says what was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.cli.answers import print_answers
from traceprof.cli.output import Printing
from traceprof.formats.nsys.writer import write_nsys
from traceprof.session.options import Opening


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A trace in the folder where the commands run."""
    monkeypatch.chdir(tmp_path)
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), tmp_path / "t.sqlite")
    return "t.sqlite"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("show brekdown t.sqlite", "unknown table 'brekdown'; did you mean 'breakdown'?"),
        ("show kernels,brekdown t.sqlite", "unknown table 'brekdown'; did you mean 'breakdown'?"),
        ("show xyzzy t.sqlite", "unknown table 'xyzzy'; use findings, breakdown, steps, "),
        (
            "brekdown t.sqlite",
            "unknown command or trace 'brekdown'; did you mean `traceprof show breakdown TRACE`?",
        ),
        ("analyz", "unknown command or trace 'analyz'; did you mean `traceprof analyze TRACE`?"),
        ("xyzzy", "unknown command or trace 'xyzzy'; use record, try, watch, capture, recover, "),
        (
            "show t.sqlite breakdown",
            "expected the name of a table before t.sqlite, which is a file: run "
            "`traceprof show breakdown t.sqlite`",
        ),
        (
            "show t.sqlite",
            "expected the name of a table before t.sqlite, which is a file: run "
            "`traceprof show NOUN t.sqlite`",
        ),
        (
            "analyze kernels t.sqlite",
            "'kernels' is a table, not a trace: run `traceprof show kernels t.sqlite`",
        ),
        (
            "t.sqlite kernels",
            "'kernels' is a table, not a trace: run `traceprof show kernels t.sqlite`",
        ),
        (
            "t.sqlite show kernels",
            "'kernels' is a table, not a trace: run `traceprof show kernels t.sqlite`",
        ),
        ("report kernels", "'kernels' is a table, not a trace: run `traceprof show kernels TRACE`"),
        (
            "info kernls t.sqlite",
            "'kernls' is not a table or a trace: run `traceprof show kernels t.sqlite`",
        ),
        ("show kernels", "missing TRACE: run `traceprof show kernels TRACE`"),
        (
            "show kernels -- t.sqlite --json",
            "expected a trace, not '--json': put options before `--`",
        ),
        (
            "analyze -- t.sqlite --json",
            "expected a trace, not '--json': put options before `--`",
        ),
        ("t.sqlite --align sundial", "--align sundial: expected one of auto, collectives, utc, "),
        ("analyze t.sqlite --step-ranges step", "no range matches the step pattern 'step'"),
        (
            "show kernels t.sqlite --step-ranges (",
            "step pattern '(' is not a valid regular expression",
        ),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(trace: str, line: str, message: str) -> None:
    done = CliRunner().invoke(app, line.split(" "))
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith(f"traceprof: {message}")
    assert done.stderr.count("\n") == 1


def test_a_file_that_bears_the_name_of_a_table_is_a_trace(trace: str) -> None:
    Path("kernels").write_bytes(Path(trace).read_bytes())
    assert CliRunner().invoke(app, ["info", "kernels"]).exit_code == 0
    assert CliRunner().invoke(app, ["show", "kernels", "kernels"]).exit_code == 0


def test_a_name_of_a_file_that_is_not_there_is_said_to_be_missing(trace: str) -> None:
    for arguments in (["kernels.sqlite"], ["info", "kernels.sqlite"], ["show", "kernels", "x"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 3, done.output
        assert "No such file" in done.stderr


@pytest.mark.traces
def test_a_trace_before_and_one_after_are_no_run(real_trace: Callable[[str], Path]) -> None:
    before = real_trace("nsys/2026.2-2gpu-nccl-before.sqlite")
    after = real_trace("nsys/2026.2-2gpu-nccl-after.sqlite")
    # Of `report` and `timeline` they are the base and the new one of a comparison.
    for command in (["analyze"], ["show", "kernels"], ["info"], ["findings"]):
        done = CliRunner().invoke(app, [*command, str(before), str(after)])
        assert done.exit_code == 2, done.output
        assert done.stderr == (
            "traceprof: 2026.2-2gpu-nccl-before.sqlite and 2026.2-2gpu-nccl-after.sqlite look like "
            "two runs, not like ranks of one run (they were not recorded at the same time); "
            f"run `traceprof view {before} {after}` to see them side by side, or `traceprof "
            "compare` for the differences; use --run or a manifest to treat them as one run\n"
        )


def test_a_terminal_obeys_nothing_of_a_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    write_nsys(TraceBuilder().kernel("a\x1b[2Jb", 0, 10).build(), tmp_path / "x.sqlite")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_answers(["kernels"], [tmp_path / "x.sqlite"], Opening(), "all", Printing(as_csv=True))
    printed = capfdbinary.readouterr().out
    assert b"\x1b" not in printed
    assert b"a\\u001b[2Jb" in printed

"""What is known of where we print, without rich where it has nothing to tell."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.cli.output import terminal_options
from traceprof.formats.nsys.writer import write_nsys


def as_rich_tells() -> tuple[int, str]:
    console = Console()
    return max(40, console.width), console.color_system or "" if console.is_terminal else ""


@pytest.mark.parametrize("columns", [None, "", "60", "80", "132", "0", "-1", "x"])
@pytest.mark.parametrize("colors", [{}, {"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}], ids=str)
@pytest.mark.parametrize("terminal", [None, 0, 100])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_terminal_is_as_rich_tells_and_a_pipe_has_no_width_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
    columns: str | None,
    colors: dict[str, str],
    terminal: int | None,
    is_terminal: bool,
) -> None:
    def size(stream: int) -> os.terminal_size:
        if terminal is None or stream != 2:
            raise OSError
        return os.terminal_size((terminal, 25))

    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (colors | ({} if columns is None else {"COLUMNS": columns})).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(os, "get_terminal_size", size)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    options = terminal_options(3)
    is_told = columns in ("60", "80", "132")
    if is_terminal or colors:
        assert (options.width, options.colors) == as_rich_tells()
    else:
        assert (options.width, options.colors) == (int(columns or 0) if is_told else 80, "")
    assert options.is_whole == (not is_terminal and not is_told)
    assert terminal_options(wide=True).is_whole
    assert options.rows == 3


def test_nothing_is_printed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere: Any = None
    monkeypatch.setattr(sys, "stdout", nowhere)
    monkeypatch.setattr(sys, "stderr", nowhere)
    assert terminal_options().colors == ""


NAME = f"void a::very::long::{'x' * 300}::kernel<int, float>"
ANSWERS = (
    *("analyze {}", "findings {}", "show kernels,steps,breakdown,summary {}", "explain {} slowest"),
    *("info {}", "compare {} {} --full", "runs list", "runs show r", "nodes {}"),
    "query {} SELECT/**/name/**/FROM/**/kernels",
)


@pytest.fixture
def long_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace, and a kept run, whose names are longer than any terminal is wide."""
    builder = TraceBuilder()
    for n in range(4):
        at = 100 * n
        builder.step(at, at + 90, n).kernel(f"{NAME}{n % 2}", at + 1, at + 60)
    write_nsys(builder.build(), tmp_path / "t.sqlite")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACEPROF_RUNS", str(tmp_path / "runs.sqlite"))
    invoked(f"runs add t.sqlite --name {'r' * 120}")
    return tmp_path / "t.sqlite"


def invoked(line: str, columns: str = "") -> list[str]:
    done = CliRunner(env={"COLUMNS": columns}).invoke(app, line.format(*["t.sqlite"] * 2).split())
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.mark.parametrize("line", ANSWERS)
def test_nothing_is_cut_or_wrapped_in_a_pipe(long_names: Path, line: str) -> None:
    """Only very long names in tables are shortened, unless full names are requested."""
    is_full = " --full-names" * line.startswith(("show", "compare", "explain"))
    text = "\n".join(invoked(line + is_full))
    assert "…" not in text
    assert "not shown" not in text
    if "kernels" in line:
        assert f"{'x' * 300}::kernel" in text


@pytest.mark.parametrize("line", ANSWERS)
@pytest.mark.parametrize("columns", [40, 61, 79])
def test_a_narrow_terminal_has_no_line_that_is_wider(
    long_names: Path, line: str, columns: int
) -> None:
    whole = ("Next ", "   Profile ")  # commands, which are pasted
    wide = [own for own in invoked(line, str(columns)) if len(own) > columns]
    assert not [own for own in wide if not own.startswith(whole)]

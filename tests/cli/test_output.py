"""What is known of where we print, without rich where it has nothing to tell."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from rich.console import Console

from traceprof.cli.output import terminal_options


def as_rich_tells() -> tuple[int, str]:
    console = Console()
    return max(40, console.width), console.color_system or "" if console.is_terminal else ""


@pytest.mark.parametrize("columns", [None, "", "60", "80", "132", "0", "-1", "x"])
@pytest.mark.parametrize("colours", [{}, {"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}], ids=str)
@pytest.mark.parametrize("terminal", [None, 0, 100])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_terminal_is_as_rich_tells_and_a_pipe_has_no_width_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
    columns: str | None,
    colours: dict[str, str],
    terminal: int | None,
    is_terminal: bool,
) -> None:
    def size(stream: int) -> os.terminal_size:
        if terminal is None or stream != 2:
            raise OSError
        return os.terminal_size((terminal, 25))

    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (colours | ({} if columns is None else {"COLUMNS": columns})).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(os, "get_terminal_size", size)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    options = terminal_options(3)
    is_told = columns in ("60", "80", "132")
    if is_terminal or colours:
        assert (options.width, options.colours) == as_rich_tells()
    else:
        assert (options.width, options.colours) == (int(columns or 0) if is_told else 80, "")
    assert options.is_whole == (not is_terminal and not is_told)
    assert terminal_options(wide=True).is_whole
    assert options.rows == 3


def test_nothing_is_printed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere: Any = None
    monkeypatch.setattr(sys, "stdout", nowhere)
    monkeypatch.setattr(sys, "stderr", nowhere)
    assert terminal_options().colours == ""

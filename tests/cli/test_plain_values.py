"""Values that are read without typer's validators: the same as with them, right or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from traceprof.cli import app as cli
from traceprof.cli.commands import PlainCommand


def read(cls: type[typer.core.TyperCommand], words: list[str]) -> tuple[int, str, list[Any]]:
    """Return the exit code, what was said, and the values that a command of this class gets."""
    given: list[Any] = []

    def command(
        files: Annotated[list[Path], typer.Argument()],
        count: Annotated[int, typer.Option(min=1, max=100)] = 5,
        depth: int | None = None,
        clamped: Annotated[int, typer.Option(min=0, max=3, clamp=True)] = 1,
        share: Annotated[float, typer.Option(min=0.0)] = 0.5,
        name: str | None = None,
        label: Annotated[list[str] | None, typer.Option()] = None,
        kind: Literal["kernel", "copy"] | None = None,
        folder: Annotated[Path | None, typer.Option(file_okay=False, exists=True)] = None,
        upper: Annotated[str, typer.Option(callback=str.upper)] = "a",
        is_all: Annotated[bool, typer.Option("--all/--some")] = False,
    ) -> None:
        given.extend(
            [files, count, depth, clamped, share, name, label, kind, folder, upper, is_all]
        )

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=cls)(command)
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.output, given


NUMBERS = (
    *("7", "-7", "+7", "007", "0", "-0", " 7", "7 ", "1_0", "7.0", "1e2", "٧", "x", ""),
    "9" * 19,
)


@pytest.mark.parametrize(
    "words",
    [
        ["a"],
        ["a", "b", "."],
        [],
        ["a\udcff"],
        *([option, number, "a"] for option in ("--count", "--depth") for number in NUMBERS),
        *(["--share", number, "a"] for number in [*NUMBERS, "0.25", "-0.5", ".5", "inf", "nan"]),
        ["--count", "100", "a"],
        ["--count", "101", "a"],
        ["--clamped", "9", "a"],
        ["--name", "x", "--label", "k=v", "--label", "l=w", "a"],
        ["--name", "", "a"],
        ["--name", "\udcff", "a"],
        ["--kind", "copy", "a"],
        ["--kind", "other", "a"],
        ["--folder", ".", "a"],
        ["--folder", "nowhere", "a"],
        ["--upper", "x", "a"],
        ["--all", "a"],
        ["--all", "--some", "a"],
    ],
    ids=ascii,
)
def test_they_are_what_typer_reads(words: list[str]) -> None:
    expected = read(typer.core.TyperCommand, words)
    assert repr(read(PlainCommand, words)) == repr(expected)
    assert bool(expected[2]) == (expected[0] == 0)


def test_a_file_that_may_not_be_read_is_left_to_the_reader_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The exit code of an unreadable file is 3, whatever command reads it; see test_exit_codes."""
    path = tmp_path / "trace"
    path.touch()
    of_readable_file = read(PlainCommand, [str(path)])
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    assert read(PlainCommand, [str(path)]) == of_readable_file
    assert of_readable_file[0] != 2


def test_an_empty_path_is_refused_and_not_the_current_folder() -> None:
    done = CliRunner().invoke(cli, ["info", ""])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "a path is empty" in done.stderr

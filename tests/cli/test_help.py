"""Help pages, completion, and the names of 0.1."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from tests.builders import TraceBuilder
from tests.conftest import Run
from tests.requirements import ROOT
from tests.summaries import make_summary
from traceprof import measures
from traceprof.cli import app, completion
from traceprof.cli.registry import COMMANDS, Command
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures import ANALYSES, FORMER_NAMES
from traceprof.store import Store

OPENING = (
    "--warmup",
    "--step-ranges",
    "--rules",
    "--align",
    "--gpu",
    "--link",
    "--hardware",
    "--rack",
    "--cluster",
)
LINES = 45
"""So many lines of 80 columns does a screen have."""
NAMES = [
    *((command.name,) for command in COMMANDS if not command.commands),
    *((command.name, below.name) for command in COMMANDS for below in command.commands),
]
OPENS_TRACES = (
    *("analyze", "findings", "show", "explain", "compare"),
    *("report", "timeline", "view", "info"),
)


def help_of(*arguments: str) -> str:
    narrow = CliRunner(env={"COLUMNS": "80"})
    done = narrow.invoke(app, [*arguments, "--help"], prog_name="traceprof")
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_help_fits_a_screen_and_groups_the_commands() -> None:
    lines = help_of().splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= 80
    groups = dict.fromkeys(one.group for one in COMMANDS)
    expected = [
        line
        for group in groups
        for line in (f"{group}:", *(f"  {c.name}" for c in COMMANDS if c.group == group))
    ]
    first = lines.index(expected[0])
    found = lines[first : first + len(expected)]
    assert [own[: len(line)] for own, line in zip(found, expected, strict=True)] == expected
    assert all(groups)


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_every_command_has_a_help_that_fits_a_screen(names: tuple[str, ...]) -> None:
    lines = help_of(*names).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"Usage: traceprof {' '.join(names)} ")
    text = "\n".join(lines)
    assert not [word for word in ("list[", "<str>", "Path", "x>=") if word in text]
    assert CliRunner().invoke(app, ["help", *names]).stdout == text + "\n"


def command_words(command: Command) -> list[str]:
    """Return what one types to call a command."""
    return [command.name] if command in COMMANDS else ["runs", command.name]


def all_commands() -> list[Command]:
    return [*COMMANDS, *(below for one in COMMANDS for below in one.commands)]


@pytest.mark.parametrize("command", all_commands(), ids=lambda one: one.examples[0])
def test_the_two_examples_of_a_command_are_understood(command: Command) -> None:
    assert len(command.examples) == 2
    for example in command.examples:
        words = shlex.split(example)
        assert f"  traceprof {example}" in help_of(*command_words(command))
        found: Any = typer.main.get_command(app)
        context = found.make_context("traceprof", list(words))
        while hasattr(found, "resolve_command"):  # nothing is run, all options are read
            rest = [*context._protected_args, *context.args]
            name, found, rest = found.resolve_command(context, rest)
            context = found.make_context(name, rest, parent=context)


@pytest.mark.parametrize("name", OPENS_TRACES)
def test_every_command_that_opens_traces_takes_the_same_options(name: str) -> None:
    named = help_of(name).partition("Options for reading traces")[2].split()
    assert {*OPENING} <= {*named}


def test_what_all_commands_take_is_explained_once() -> None:
    text = CliRunner().invoke(app, ["help", "options"]).stdout
    for option in (*OPENING, "-q, --quiet", "-v, --verbose", "--columns LIST"):
        assert f"  {option} " in text
    assert "the ranks of [hosts], the hosts of [racks]" in " ".join(text.split())
    assert "r1=node[1-4],node9" in text
    assert "range:/regex/" in CliRunner().invoke(app, ["help", "windows"]).stdout
    missing = CliRunner().invoke(app, ["help", "cook"])
    assert (missing.exit_code, missing.stdout) == (2, "")


def test_tables_are_no_commands_of_the_help_but_still_work(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), path)
    listed = {line.split()[0] for line in help_of().splitlines() if line.startswith("  ")}
    own = {command.name for command in COMMANDS}
    for name in [*(entry.name for entry in ANALYSES), *FORMER_NAMES]:
        if name not in own:
            assert name not in listed
            assert name in help_of(name).splitlines()[0]
    shown = CliRunner().invoke(app, ["show", "kernels", str(path)])
    assert CliRunner().invoke(app, ["kernels", str(path)]).stdout == shown.stdout
    old = CliRunner().invoke(app, ["messages", str(path)])
    new = CliRunner().invoke(app, ["show", "collective-events", str(path)])
    assert (old.exit_code, old.stderr) == (new.exit_code, new.stderr)


def test_show_alone_lists_what_to_type_for_every_table() -> None:
    listed = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["show"]).stdout.splitlines()
    typed = [line.split("  ")[0] for line in listed]
    assert sorted(typed) == sorted(one.words for one in ANALYSES if one.name != "findings")
    for line in typed:
        noun, _, way = line.partition(" --by ")
        assert measures.names_shown(noun, way or None) == [
            entry.name for entry in ANALYSES if entry.words == line
        ]
    assert len(nouns_listed := {line.split()[0] for line in typed}) <= 24, nouns_listed


def completed(words: str, run_in: Path) -> list[str]:
    """Return what bash would offer for the last of ``words``."""
    done = subprocess.run(
        [sys.executable, "-m", "traceprof"],
        capture_output=True,
        text=True,
        cwd=run_in,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "_TRACEPROF_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_shell_completes_commands_and_tables(tmp_path: Path) -> None:
    assert completed("traceprof re", tmp_path) == ["record", "recover", "report"]
    assert completed("traceprof show step", tmp_path) == ["steps"]
    assert completed("traceprof show kernels,br", tmp_path) == ["kernels,breakdown"]
    assert completed("traceprof show kernels --by cl", tmp_path) == ["class"]
    assert completed("traceprof kernels --by class,sh", tmp_path) == ["class,shape"]
    assert completed("traceprof show kernels x --columns name,tot", tmp_path) == ["name,total_ns"]
    assert completed("traceprof show kernels x --window st", tmp_path) == ["steady", "step:1.."]
    assert "--warmup" in completed("traceprof report --war", tmp_path)
    assert "kernels" not in completed("traceprof ", tmp_path)


def test_the_shell_completes_the_runs_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPROF_RUNS", str(tmp_path / "runs.sqlite"))
    assert completed("traceprof compare r", tmp_path) == []
    for name in ("resnet-1", "resnet-2", "bert"):
        Store.at().add(make_summary(name))
    assert completed("traceprof compare r", tmp_path) == ["resnet-1", "resnet-2"]
    assert completed("traceprof compare resnet-1 b", tmp_path) == ["bert"]
    assert completed("traceprof runs show resnet-2", tmp_path) == ["resnet-2"]


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """What is offered for the last of some words; a busy machine may take as long as it does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(completion, "_READING_TIMEOUT_S", 600.0)

    def words_offered(line: str) -> list[str]:
        place = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        environment = {"_TRACEPROF_COMPLETE": "complete_bash", **place}
        told = CliRunner().invoke(app, [], prog_name="traceprof", env=environment)
        assert told.exit_code == 0
        return told.stdout.split()

    return words_offered


def test_the_shell_completes_the_steps_of_the_trace_that_was_typed(
    offered: Callable[[str], list[str]], tmp_path: Path
) -> None:
    builder = TraceBuilder()
    for i, length in enumerate((10, 12, 30, *[11] * 9)):
        at = 1000 * i
        builder.step(at, at + 999, number=i)
        builder.kernel("k", at + 1, at + 1 + length, launched_ns=(at, at + 1))
    write_nsys(builder.build(), tmp_path / "a.sqlite")
    steps = offered("traceprof explain a.sqlite ")
    assert steps[0] == "slowest"
    assert sorted(steps[1:]) == sorted(f"step:{i}" for i in range(12))
    assert offered("traceprof explain a.sqlite sl") == ["slowest"]
    with_one = ["step:1", "step:10", "step:11"]
    assert sorted(offered("traceprof explain a.sqlite step:1")) == with_one
    assert sorted(offered("traceprof explain a.sqlite step:2 --against step:1")) == with_one
    # bash breaks words at colons, and puts what it is given behind them.
    assert sorted(offered("traceprof explain a.sqlite step : 1")) == ["1", "10", "11"]
    for words in ("traceprof explain ", "traceprof explain a"):  # files are the shell's
        assert offered(words) == []


def test_of_what_is_no_trace_no_step_is_completed(
    offered: Callable[[str], list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "run").mkdir()
    for converted in ("old.nsys-rep", "run/old.qdrep"):  # nsys would have to read them
        (tmp_path / converted).write_bytes(b"\0" * 64)
    for trace in ("notes.txt", "old.nsys-rep", "run", "gone.sqlite"):
        assert offered(f"traceprof explain {trace} ") == []
    assert capfd.readouterr() == ("", "")


def test_a_trace_that_takes_long_holds_no_shell_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **given: Any) -> None:
        assert command[-1] == str(tmp_path)
        raise subprocess.TimeoutExpired(command, given["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    typed = SimpleNamespace(params={"trace": [tmp_path], "window": None}, args=[])
    assert completion.steps(cast("typer.Context", typed), "") == []


def test_the_shell_can_be_told_how_to_complete(run_traceprof: Run) -> None:
    # Nothing says that a shell stands above the tests: the shell is named instead of found.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = run_traceprof("--show-completion", "bash", **named)
    assert done.returncode == 0, done.stderr
    assert "_TRACEPROF_COMPLETE=complete_bash" in done.stdout

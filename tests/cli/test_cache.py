"""The cache seen from the command line: the same output, sooner; off, cleared, in a bad place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.measures.generated_run import Plan, make_run
from tests.requirements import ROOT
from traceprof.cli import app
from traceprof.formats.nsys.writer import write_nsys

Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.usefixtures("times_can_be_set")

LONG_AGO_S = 1_700_000_000
COMMANDS = (
    ("analyze",),
    ("analyze", "--json"),
    ("findings", "--markdown"),
    ("show", "kernels", "--csv"),
    ("info",),
    ("explain", "slowest"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "rank0.sqlite"
    write_nsys(make_run(Plan(n_ranks=1, n_steps=6)).members[0].trace, found)
    os.utime(found, (LONG_AGO_S, LONG_AGO_S))
    return found


LATER = "import time\nnow = time.time_ns\ntime.time_ns = lambda: now() + 10**11\n"
"""Lets a program run a minute and more after the files were made that it reads."""


def words_of(command: tuple[str, ...], path: Path) -> list[str]:
    first = 2 if command[0] == "show" else 1
    return [*command[:first], str(path), *command[first:]]


def printed(monkeypatch: pytest.MonkeyPatch, cache: str, words: Sequence[str]) -> str:
    monkeypatch.setenv("TRACEPROF_CACHE", cache)
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return str(done.stdout)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_second_time_says_the_same(
    monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    words, cache = words_of(command, path), str(tmp_path / "cache")
    expected = printed(monkeypatch, "0", words)
    assert printed(monkeypatch, cache, words) == expected
    assert printed(monkeypatch, cache, words) == expected


def test_the_first_time_imports_what_reads_and_the_second_nothing(
    path: Path, tmp_path: Path
) -> None:
    program = (
        f"import sys, traceprof.cli\n{LATER}"
        "try: traceprof.cli.app()\n"
        "except SystemExit: pass\n"
        "few = {'pandas', 'numpy', 'pyarrow', 'rich', 'traceprof.formats'}\n"
        "none = {'plotly', 'dash', 'torch', 'sqlite_utils', 'pydantic'}\n"
        "none |= {'traceprof.formats.nsys.cut'}\n"
        "heavy = (few | none) & set(sys.modules)\n"
        "sys.stderr.write(' '.join(sorted(heavy)))\n"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program, "analyze", str(path)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "COLUMNS": "80", "TRACEPROF_CACHE": str(tmp_path / "cache")},
            cwd=ROOT,
            check=False,
        )
        for _ in range(2)
    )
    assert second.stdout == first.stdout
    assert (first.stderr, second.stderr) == ("numpy rich traceprof.formats", "")


@pytest.mark.parametrize("command", ["report", "timeline"])
def test_pages_are_the_same(
    monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path, command: str
) -> None:
    pages = []
    for number, cache in enumerate(("0", str(tmp_path), str(tmp_path))):
        out = tmp_path / f"{number}.html"
        printed(monkeypatch, cache, [command, str(path), "-o", str(out)])
        pages.append(out.read_bytes())
    assert pages[0] == pages[1] == pages[2]


def test_no_cache(monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path) -> None:
    printed(monkeypatch, str(tmp_path / "cache"), ["info", str(path), "--no-cache"])
    assert not (tmp_path / "cache").exists()


def test_another_option_is_another_question(
    monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path
) -> None:
    asked = (("--rows", "1"), ("--rows", "3"), ("--json",), ("--window", "step:1"))
    for more in (*asked, *reversed(asked)):
        words = ("show", "kernels", str(path), *more)
        assert printed(monkeypatch, str(tmp_path), words) == printed(monkeypatch, "0", words)


def test_a_home_that_cannot_be_written_to(run_traceprof: Run, path: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file, so that nobody, root neither, can write below it")
    expected = run_traceprof("analyze", path)
    said = {"HOME": str(home), "TRACEPROF_CACHE": "", "XDG_CACHE_HOME": ""}
    done = run_traceprof("analyze", path, **said)
    assert (done.stdout, done.stderr) == (expected.stdout, "")


def test_the_cache_is_cleared(run_traceprof: Run, path: Path, tmp_path: Path) -> None:
    cache, hook = tmp_path / "cache", tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(LATER)
    later = {"PYTHONPATH": os.pathsep.join((str(hook), str(ROOT)))}
    run_traceprof("show", "kernels", path, TRACEPROF_CACHE=str(cache), **later)
    kept = list((cache / "traceprof").iterdir())
    assert kept
    done = run_traceprof("doctor", "--clear-cache", TRACEPROF_CACHE=str(cache))
    assert done.returncode == 0
    assert done.stderr.startswith(f"traceprof: cleared {len(kept)} results and exports (")
    assert list((cache / "traceprof").iterdir()) == []
    assert "the cache is off" in run_traceprof("doctor", "--clear-cache").stderr

"""The commands of README's first screen: what they set up, and in which order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import NOT_QUICK, ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="scripts are for bash")

QUICK = "-m pytest --numprocesses=3 --dist=loadgroup --no-loadscope-reorder --quiet"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment only tells what it is asked for."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("test", "demo", "check"):
        shutil.copy2(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    told = {
        "scripts/environment": 'echo "set up: $1"',
        "scripts/lint": "echo lint",
        ".venv/bin/python": 'echo "quick=${TRACEPROF_QUICK:-no} $*"',
        ".venv/bin/traceprof": 'echo "ran $1"',
    }
    for name, line in told.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def printed(folder: Path, command: str, **environment: str) -> list[str]:
    known = {name: value for name, value in os.environ.items() if name[:10] != "TRACEPROF_"}
    done = subprocess.run(
        [*command.split()],
        cwd=folder,
        env={**known, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("command", "environment", "extras", "run"),
    [
        ("scripts/test", {}, "dev", f"quick=1 {QUICK}"),
        ("scripts/test", {"TRACEPROF_REQUIRE": "torch"}, "record,dev", f"quick=no {QUICK}"),
        ("scripts/test --all", {}, "record,dev", f"quick=no {QUICK}"),
        ("scripts/test tests/model -x", {}, "dev", "quick=no -m pytest tests/model -x"),
    ],
)
def test_the_quick_tests_are_the_default_and_ci_runs_all(
    checkout: Path, command: str, environment: dict[str, str], extras: str, run: str
) -> None:
    assert printed(checkout, command, **environment) == [f"set up: {extras}", run]


def test_check_runs_all_and_ci_names_what_must_be_there(checkout: Path) -> None:
    assert printed(checkout, "scripts/check")[-2:] == ["set up: record,dev", f"quick=no {QUICK}"]
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    assert ci.index("export TRACEPROF_REQUIRE=") < ci.index("\nscripts/test\n")


def test_what_is_set_up_is_not_set_up_again_for_less(tmp_path: Path) -> None:
    for name in ("scripts/environment", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    for name in ("formats/compiled/a.c", "recording/cupti/a.h"):
        (tmp_path / "traceprof" / name).parent.mkdir(parents=True)
        (tmp_path / "traceprof" / name).touch()
    python, log = tmp_path / ".venv" / "bin" / "python", tmp_path / "log"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$*" >>{log}\n')
    python.chmod(0o755)
    for extras in ("dev,docs", "dev", "", "view"):
        subprocess.run([tmp_path / "scripts" / "environment", extras], check=True)
    asked = [line.split()[-1] for line in log.read_text().splitlines()]
    assert asked == [".[dev,docs]", ".[view]"]


def test_the_demo_shows_a_page_before_anything_is_recorded(checkout: Path) -> None:
    lines = printed(checkout, "scripts/demo")
    kept = [line for line in lines if line.startswith(("ran ", "set up"))]
    shown = ["ran fixtures/traces/h100-cnn.sqlite.gz", "ran timeline", "ran report"]
    assert kept[:5] == ["set up: ", *shown, "set up: record"]
    assert kept[5:] == ["ran record", "ran demo/run.sqlite", "ran timeline"]
    assert (ROOT / "fixtures" / "traces" / "h100-cnn.sqlite.gz").is_file()
    alone = printed(checkout, "scripts/demo --no-record")
    assert [line for line in alone if line.startswith(("ran ", "set up"))] == kept[:4]


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_what_is_left_out_is_said(workers: str) -> None:
    """Of one test that is not quick, one that is, and one with more cases than are quick."""
    assert {"nsys", "torch", "slow"} <= set(NOT_QUICK)
    ours = "tests/test_notebook.py"
    chosen = (
        f"{ours}::test_its_figures_are_as_wide_as_the_page_and_send_nothing",
        f"{ours}::test_no_way_of_showing_a_figure_offers_the_upload",
        "tests/names/test_classes.py::test_public_names",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", workers, "-q", "-p", "no:randomly", *chosen],
        cwd=ROOT,
        env={**os.environ, "TRACEPROF_QUICK": "1", "TRACEPROF_REQUIRE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    said = done.stdout[done.stdout.index("skipped, and why") :].splitlines()
    n_cases, _, reason = said[1].strip().partition(" ")
    assert int(n_cases) > 100
    assert reason == "further cases of a test, not among the quick tests: scripts/test --all"
    assert said[2] == "     1 not among the quick tests: scripts/test --all"
    assert "4 passed, 1 skipped" in said[3]

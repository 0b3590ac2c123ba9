"""`traceprof demo` needs no trace of the user's, and overwrites nothing of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.requirements import ROOT
from traceprof.cli import app, demo
from traceprof.errors import TraceError

SAMPLE = ROOT / "fixtures" / "traces" / demo.SAMPLE_NAME


def run_demo(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["demo", "--no-browser", *arguments])
    return done.exit_code, done.output


def test_it_prints_the_page_of_the_sample_and_writes_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, said = run_demo()
    assert status == 0
    page = CliRunner().invoke(app, ["analyze", f"traceprof-demo/{demo.SAMPLE_NAME}"])
    assert page.stdout and page.stdout in said
    assert "traceprof record -- python train.py" in said
    assert (tmp_path / "traceprof-demo" / demo.SAMPLE_NAME).read_bytes() == SAMPLE.read_bytes()
    report = (tmp_path / "traceprof-demo" / "report.html").read_text("utf-8")
    assert report.startswith("<!doctype html>")
    assert run_demo()[0] == 0, "a second demo replaces the files of the first"


@pytest.mark.parametrize(
    ("options", "is_ci", "opens"),
    [((), False, True), ((), True, False), (("--browser",), True, True)],
)
def test_it_opens_the_report_but_not_in_ci(
    options: tuple[str, ...],
    is_ci: bool,
    opens: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(demo.typer, "launch", lambda address: opened.append(address) or 0)
    monkeypatch.delenv("CI", raising=False)
    if is_ci:
        monkeypatch.setenv("CI", "true")
    done = CliRunner().invoke(app, ["demo", "-o", str(tmp_path / "a b"), *options])
    assert done.exit_code == 0
    assert opened == ([(tmp_path / "a b" / "report.html").as_uri()] if opens else [])
    assert "Try it on your program or trace:" in done.stdout.splitlines()[-4]


def test_files_of_others_are_kept_unless_forced(tmp_path: Path) -> None:
    theirs = tmp_path / "report.html"
    theirs.write_text("mine")
    status, said = run_demo("-o", str(tmp_path))
    assert status == 2
    assert "report.html exists" in said
    assert theirs.read_text() == "mine"
    assert not (tmp_path / demo.SAMPLE_NAME).exists()
    assert run_demo("-o", str(tmp_path), "--force")[0] == 0
    assert theirs.read_text("utf-8") != "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, said = run_demo("-o", str(tmp_path / "file" / "demo"))
    assert status == 2
    assert "cannot be created" in said


def test_the_wheel_and_the_clone_have_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert demo.find_sample() == SAMPLE
    assert SAMPLE.stat().st_size <= 500_000
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'"fixtures/traces/{demo.SAMPLE_NAME}" = "traceprof/{demo.SAMPLE_NAME}"' in text
    monkeypatch.setattr(demo, "_PLACES", (tmp_path,))
    with pytest.raises(TraceError, match="does not contain h100-cnn"):
        demo.find_sample()

"""`traceprof accuracy` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import traceprof as tp
from traceprof.cli import app

LOG = "".join(f"Epoch {i} took 10.0 loss: 2.0 accuracy: 0.{i + 4}\n" for i in range(4))


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "a.log"
    path.write_text(LOG)
    return str(path)


def said(*arguments: str, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["accuracy", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def test_a_log_is_held_against_a_target(log: str) -> None:
    text = said(log, "--to", "60%")
    assert "a reached top1 0.6 first, after 30.0 s." in text


def test_python_says_the_same(log: str) -> None:
    table = tp.accuracy(log, to=0.6).to_frame("reached")
    assert table["time_ns"].tolist() == [30e9]


def test_a_page_is_written(log: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said(log, "--to", "0.6", "-o", str(page))
    assert "top1" in page.read_text()


def test_what_cannot_be_is_said_in_one_line(log: str) -> None:
    assert "expected a number" in said(log, "--to", "good", code=2)
    assert "top1 is at most 1" in said(log, "--to", "60", code=2)
    assert "no run has metric" in said(log, "--metric", "bleu", code=2)

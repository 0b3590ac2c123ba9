"""docs/python.md: its blocks run as they stand, and what it names is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import traceprof as tp
from tests.measures.generated_run import Plan, make_run
from tests.requirements import ROOT
from traceprof.formats.nsys.writer import write_nsys
from traceprof.integrations.profiler import handler
from traceprof.integrations.training import TrainingRecorder

PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_reading_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_nsys(make_run(Plan(n_ranks=1)).members[0].trace, tmp_path / "run.sqlite")
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[0], "docs/python.md", "exec"), {})
    assert "[9 rows x " in capsys.readouterr().out


def test_recording_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        for _ in range(25):
            with tp.step():
                pass

    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[1], "docs/python.md", "exec"), {"tp": tp, "train": train})
    assert "run.sqlite  recorded by traceprof" in capsys.readouterr().out
    steps = tp.open("run.sqlite").within("all").steps().table.to_frame()["step"]
    assert steps.tolist() == list(range(10, 21))


def test_everything_that_it_names_is_there() -> None:
    named = {name for _, name in re.findall(r"\b(run|tp\.Run)\.(\w+)", PAGE)} - {"sqlite", "json"}
    assert {"page", "figures", "ops", "export", "kernels"} <= named
    assert not {name for name in named if not hasattr(tp.Run, name)}
    assert not {name for name in re.findall(r"\btp\.(\w+)", PAGE) if not hasattr(tp, name)}
    taken = {*inspect.signature(tp.record).parameters, *inspect.signature(handler).parameters}
    taken |= {*inspect.signature(tp.open).parameters, *inspect.signature(tp.Run.ops).parameters}
    taken |= {"by", *inspect.signature(TrainingRecorder).parameters}
    given = re.findall(r"`(\w+)=[^`]*`", PAGE)
    assert given
    assert not {*given} - taken

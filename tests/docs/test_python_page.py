"""docs/python.md: its blocks run as they stand, and what it names is there."""

from __future__ import annotations

import gzip
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import traceprof as tp
from tests.measures.generated_run import Plan, make_run
from tests.requirements import ROOT
from traceprof.formats.nsys.writer import write_nsys
from traceprof.integrations.profiler import handler
from traceprof.integrations.training import TrainingRecorder
from traceprof.model.activity import PARTS

PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_reading_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_nsys(make_run(Plan(n_ranks=1)).members[0].trace, tmp_path / "run.sqlite")
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[0], "docs/python.md", "exec"), {})
    assert "[9 rows x " in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_example_on_the_trace_of_the_readme(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is the one that README shows, no duration is negative, and parts add up to steps."""
    packed = ROOT / "fixtures" / "traces" / "h100-cnn.sqlite.gz"
    (tmp_path / "run.sqlite").write_bytes(gzip.decompress(packed.read_bytes()))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    text = (ROOT / page).read_text("utf-8")
    block = re.findall(r"```python\n(import traceprof as tp\n.*?)```", text, re.S)[0]
    exec(compile(block, page, "exec"), names)
    run, printed = names["run"], " ".join(capsys.readouterr().out.split())
    shown = (ROOT / "README.md").read_text("utf-8").split("\nStep time", 1)[1].split("\n\n")[0]
    assert " ".join(shown.split()).split(" █")[0] in printed
    for name in ("steps", "breakdown", "idle", "kernels", "copies", "ranges", "summary"):
        frame = run.result(name).to_frame()
        times = frame[[column for column in frame if column.endswith("_ns")]].dropna()
        assert len(frame)
        assert (times >= 0).all(axis=None), name
    steps, figures = names["run"].steps().to_frame(), run.figures()
    assert steps["period_ns"].dropna().gt(0).all()
    parts = run.breakdown().to_frame("total").iloc[0]
    assert sum(parts[f"{part}_ns"] for part in PARTS) == parts["duration_ns"]
    assert parts["compute_ratio"] == figures["compute_ratio"]


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

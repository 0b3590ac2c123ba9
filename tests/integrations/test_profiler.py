"""The handler for ``on_trace_ready``, called by torch's own profiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import traceprof as tp
from tests.requirements import ROOT, require
from traceprof.errors import UsageError

PROGRAM = """
import torch, traceprof as tp
from torch.profiler import ProfilerActivity, profile, schedule

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
handler = tp.handler("traces", keep=True)
cycles = schedule(wait=1, warmup=1, active=3, repeat=2)
with profile(activities=[ProfilerActivity.CPU], schedule=cycles, on_trace_ready=handler) as own:
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        own.step()
print([path.name for path in handler.files])
print(tp.runs().list()["name"].tolist())
"""


def ran(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(ROOT), "TRACEPROF_RUNS": str(folder / "runs.sqlite")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **own, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.torch
def test_each_cycle_is_a_file_a_kept_run_and_a_few_lines(tmp_path: Path) -> None:
    require("torch")
    lines = ran(tmp_path).stdout.splitlines()
    heads = [line for line in lines if line.startswith("traceprof: ")]
    assert heads == [f"traceprof: traces/rank0-step{step}.pt.trace.json.gz" for step in (5, 10)]
    assert sum(line.startswith("  Training, no GPU recorded") for line in lines) == 2
    assert lines[-2] == str([Path(head.split()[1]).name for head in heads])
    assert len(eval(lines[-1])) == 2
    run = tp.open(tmp_path / "traces")
    assert len(run.operators().table) > 0


@pytest.mark.torch
def test_other_ranks_write_and_are_silent(tmp_path: Path) -> None:
    require("torch")
    found = ran(tmp_path, RANK="1").stdout.splitlines()
    assert len(found) == 2
    assert {path.name for path in (tmp_path / "traces").iterdir()} == {
        "rank1-step5.pt.trace.json.gz",
        "rank1-step10.pt.trace.json.gz",
    }


def test_what_cannot_be_written_or_read_does_not_stop_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is not a folder"):
        tp.handler(tmp_path / "file")
    written: list[str] = []

    def damaged(path: str) -> None:
        written.append(path)
        Path(path).write_text("{")

    profile = SimpleNamespace(step_num=3, export_chrome_trace=damaged)
    handler = tp.handler(tmp_path / "traces", compress=False)
    assert handler(profile) is None
    assert handler(profile) is None
    assert [Path(one).name for one in written] == [
        "rank0-step3.pt.trace.json",
        "rank0-step3-2.pt.trace.json",
    ]
    said = capsys.readouterr().err
    assert said.count("traceprof: cannot write the torch.profiler trace: ") == 2

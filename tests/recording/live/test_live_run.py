"""A real program with a live status: two ranks of which one is slow, watched and captured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recording.conftest import ENVIRONMENT, TORCHRUN
from tests.requirements import require
from traceprof.formats.runs.manifest import read_manifest

PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stop = sys.argv[1]
for step in range(100_000):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).mean()
    time.sleep(0.01 + 0.04 * dist.get_rank())
    loss.backward()
    optimizer.step()
    must_stop = torch.tensor(float(os.path.exists(stop)))
    dist.all_reduce(must_stop)
    if must_stop:
        break
dist.destroy_process_group()
"""


def traceprof(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traceprof", *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def watched(run: Path) -> dict[str, Any]:
    done = traceprof("watch", run, "--once", "--json")
    return json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.fixture
def live_run(tmp_path: Path) -> Iterator[tuple[Path, Path, subprocess.Popen[bytes]]]:
    """Yield the folder of a run, the file that ends it, and its launcher."""
    require("torch")
    program, stop, run = tmp_path / "train.py", tmp_path / "stop", tmp_path / "run"
    program.write_text(PROGRAM)
    command = [*TORCHRUN, "--master-port=29611", str(program), str(stop)]
    record = [sys.executable, "-m", "traceprof", "record", "--live", "-o", f"{run}/", "--"]
    launcher = subprocess.Popen([*record, *command], env=ENVIRONMENT)
    try:
        yield run, stop, launcher
    finally:
        stop.touch()
        launcher.wait(120)


def test_watch_names_the_slow_rank_and_capture_leaves_its_trace(live_run):
    run, stop, launcher = live_run
    view: dict[str, Any] = {}
    while launcher.poll() is None and not view.get("straggler"):
        view = watched(run)
    assert view["straggler"]["rank"] == 1
    captured = traceprof("capture", run, "--steps", 8)
    assert captured.returncode == 0, captured.stderr
    assert launcher.poll() is None  # the program goes on
    assert "Step time" in captured.stdout
    manifest = read_manifest(next((run / "capture-1").glob("manifest-*.json")))
    assert manifest is not None
    only = traceprof("capture", run, "--ranks", "1", "--no-page")
    assert only.returncode == 0, only.stderr
    assert [path.name for path in (run / "capture-2").glob("*.sqlite")] == ["rank1.sqlite"]
    unknown = traceprof("capture", run, "--ranks", "7")
    assert (unknown.returncode, "running ranks: 0, 1" in unknown.stderr) == (2, True)
    assert not list((run / "live").glob("capture-*"))
    stop.touch()
    assert launcher.wait(120) == 0
    assert {rank["state"] for rank in watched(run)["ranks"]} == {"finished"}
    over = traceprof("capture", run)
    assert (over.returncode, "no process runs" in over.stderr) == (2, True)


def test_options_that_exclude_each_other_are_refused(tmp_path):
    for options, reason in (
        (("--live", "-o", tmp_path / "a.sqlite"), "need a folder"),
        (("--live", "--steps", "1..2", "-o", f"{tmp_path}/a/"), "cannot be combined"),
        (("--live", "--with", "nsys", "-o", f"{tmp_path}/a/"), "do not support"),
        (("--capture-when", "slow"), "needs --live"),
        (("--live", "--capture-when", "fast", "-o", f"{tmp_path}/a/"), "capture-when"),
    ):
        done = traceprof("record", *options, "--", sys.executable, "-c", "pass")
        assert done.returncode == 2
        assert reason in done.stderr
    assert "no live status" in traceprof("watch", tmp_path).stderr


def test_a_folder_with_another_run_is_not_overwritten(tmp_path):
    record = ("record", "--live", "-o", f"{tmp_path}/run/")
    program = ("--", sys.executable, "-c", "pass")
    assert traceprof(*record, *program).returncode == 0
    again = traceprof(*record, *program)
    assert (again.returncode, "another run" in again.stderr) == (2, True)
    assert traceprof(*record, "--force", *program).returncode == 0


def test_launchers_of_one_job_share_a_folder(tmp_path, monkeypatch):
    record = ("record", "--live", "-o", f"{tmp_path}/run/", "--", sys.executable, "-c", "pass")
    monkeypatch.setitem(ENVIRONMENT, "SLURM_JOB_ID", "77")
    assert traceprof(*record).returncode == 0
    assert traceprof(*record).returncode == 0
    monkeypatch.setitem(ENVIRONMENT, "SLURM_JOB_ID", "78")
    assert traceprof(*record).returncode == 2

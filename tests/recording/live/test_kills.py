"""The history of a run can be read after a kill -9 of its launcher, its watcher, and a rank."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from traceprof.recording.live.history import read_history
from traceprof.recording.live.status import LiveRun
from traceprof.recording.live.view import view_of

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
PROGRAM = """
import os
import sys
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(400, 8))
while not os.path.exists(sys.argv[1]):
    for batch, in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
"""


def begin(*arguments):
    command = [sys.executable, "-m", "traceprof", *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)


def wait_for_steps(run, more_than, launcher):
    """Return the process of a run, once it has recorded more steps."""
    while True:
        folder = run / "live"
        found = LiveRun(run).refresh() if any(folder.glob("status.*")) else []
        if found and found[0].header.n_steps > more_than:
            return found[0]
        assert launcher is None or launcher.poll() is None


def test_a_run_survives_its_watcher_and_launcher_and_its_history_the_rank(tmp_path):
    program, stop, run = tmp_path / "train.py", tmp_path / "stop", tmp_path / "run"
    program.write_text(PROGRAM)
    launcher = begin("record", "--always", "-o", f"{run}/", "--", sys.executable, program, stop)
    rank = None
    try:
        rank = wait_for_steps(run, 100, launcher)
        watcher = begin("watch", run, "--interval", "0.2")
        rank = wait_for_steps(run, rank.header.n_steps, launcher)
        watcher.kill()
        watcher.wait()
        rank = wait_for_steps(run, rank.header.n_steps, launcher)
        launcher.kill()
        launcher.wait()
        rank = wait_for_steps(run, rank.header.n_steps + 100, None)  # the program goes on
        os.kill(rank.header.pid, signal.SIGKILL)
        (view,) = view_of(LiveRun(run).refresh()).ranks
        while view.state == "running":
            (view,) = view_of(LiveRun(run).refresh()).ranks
        assert view.state == "killed"
        history = read_history(run)
        assert history.n_steps >= rank.header.n_steps
        assert (history.step_ns > 0).all()
        assert (history.samples_per_step == 4).all()
    finally:
        stop.touch()
        launcher.kill()
        if rank is not None and rank.state == "running":
            os.kill(rank.header.pid, signal.SIGKILL)

"""The history of a run can be read after a kill -9 of its launcher, its watcher, and a rank."""

import itertools
import os
import random
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


@pytest.mark.parametrize("seed", range(12 if os.environ.get("TRACEPROF_THOROUGH") else 2))
def test_kills_at_random_points_lose_nothing_that_was_written(tmp_path, seed):
    """In a random order, each process is killed after a random number of steps."""
    chance = random.Random(seed)
    mode = chance.choice(["--always", "--live"])
    program, stop, run = tmp_path / "train.py", tmp_path / "stop", tmp_path / "run"
    program.write_text(PROGRAM)
    launcher = begin("record", mode, "-o", f"{run}/", "--", sys.executable, program, stop)
    watcher, rank = None, None
    try:
        rank = wait_for_steps(run, 0, launcher)
        watcher = begin("watch", run, "--interval", "0.2")
        victims = {"launcher": launcher.pid, "watcher": watcher.pid, "rank": rank.header.pid}
        order = chance.sample(sorted(victims), 3)
        for victim in itertools.takewhile(lambda one: one != "rank", order):
            wanted = rank.header.n_steps + chance.randrange(400)
            rank = wait_for_steps(run, wanted, None)  # no kill stops the program
            os.kill(victims[victim], signal.SIGKILL)
        rank = wait_for_steps(run, rank.header.n_steps + chance.randrange(400), None)
        os.kill(rank.header.pid, signal.SIGKILL)
        while view_of(LiveRun(run).refresh()).ranks[0].state == "running":
            pass
        found = LiveRun(run)
        (process,) = found.refresh()
        assert found.n_damaged == 0
        assert process.header.n_steps >= rank.header.n_steps
        numbers = process.column("index").tolist()
        assert numbers == list(range(process.header.n_steps))[-len(numbers) :]
        history = read_history(run)
        assert history.n_steps == process.header.n_steps
        assert (history.step_ns > 0).all()
    finally:
        stop.touch()
        for started in filter(None, (launcher, watcher)):
            started.kill()
            started.wait()
        if rank is not None and rank.state == "running":
            os.kill(rank.header.pid, signal.SIGKILL)

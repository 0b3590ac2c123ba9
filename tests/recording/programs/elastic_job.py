"""A real elastic job on this machine: two agents of torchrun, one is killed, a third one joins."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.recording.conftest import PROGRAMS, environment_of_test

__all__ = ["Agent", "Printed", "run_elastic_job"]

_PATIENCE_S = 120
_EPOCH = re.compile(r"epoch (\d+) took ([\d.]+) s world (\d+)")
_LOST = re.compile(r"lost ([\d.]+) s before epoch (\d+)")
_TOTAL = re.compile(r"total ([\d.]+) s")


@dataclass(frozen=True)
class Printed:
    """What the program said of itself: seconds and world size by epoch, seconds lost by epoch."""

    epochs: dict[int, tuple[float, int]]
    lost: dict[int, float]
    total_s: float
    exit_codes: list[int]


@dataclass
class Agent:
    """One launcher under ``traceprof record``, and the lines that came from it."""

    process: subprocess.Popen[str]
    stderr: Path
    lines: list[str] = field(default_factory=list)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self.lines.append(line.strip())


class _Job:
    def __init__(self, folder: Path, tool: str) -> None:
        self.folder, self.tool = folder, tool
        self.port = _free_port()
        self.agents: list[Agent] = []

    def start(self) -> Agent:
        command = [
            *(sys.executable, "-m", "traceprof", "record", "--with", self.tool),
            *("-o", f"{self.folder}/run/", "--", sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes=1:2", "--nproc-per-node=1", "--local-addr=127.0.0.1"),
            *("--monitor-interval=0.1", "--rdzv-backend=c10d", "--rdzv-id=job"),
            *(f"--rdzv-endpoint=127.0.0.1:{self.port}", "--max-restarts=5"),
            # Quiet for 8 s is lost: on a busy machine 3 made two jobs of one.
            "--rdzv-conf=join_timeout=60,last_call_timeout=1,keep_alive_interval=1"
            ",keep_alive_max_attempt=8",
            *(str(PROGRAMS / "train_elastic.py"), str(self.folder / "checkpoint.pt")),
            *("--epochs=4", "--until", str(self.folder / "enough")),
        ]
        # With a store that is shared a node that comes later waits for an address for ever.
        environment = environment_of_test(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        path = self.folder / f"stderr{len(self.agents)}"
        with path.open("w") as stderr:
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        agent = Agent(process, path)
        agent.thread.start()
        self.agents.append(agent)
        return agent

    def count(self, text: str) -> int:
        return sum(text in line for agent in self.agents for line in agent.lines)

    def wait_for(self, text: str, more: int = 1) -> None:
        """Wait until so many more lines that hold ``text`` have come."""
        enough = self.count(text) + more
        self._wait(lambda: self.count(text) >= enough, text)

    def wait_for_store(self) -> None:
        """Wait until the first agent answers: the one that is killed must not be the host."""
        self._wait(lambda: _answers(self.port), "the first agent")

    def end(self) -> list[int]:
        codes = [agent.process.wait(_PATIENCE_S) for agent in self.agents]
        for agent in self.agents:
            agent.thread.join(_PATIENCE_S)
        return codes

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not is_so():
            have_ended = all(agent.process.poll() is not None for agent in self.agents)
            if have_ended or time.monotonic() > until:
                said = "\n".join(agent.stderr.read_text()[-2000:] for agent in self.agents)
                raise AssertionError(f"waited for {what}\n{said}")
            time.sleep(0.02)


def run_elastic_job(folder: Path, tool: str) -> Printed:
    """Record the job into ``folder``/run, and return what the program printed."""
    job = _Job(folder, tool)
    try:
        job.start()
        job.wait_for_store()
        second = job.start()
        job.wait_for("start world 2")
        job.wait_for("took", 2)
        _kill_node(second)
        job.wait_for("start world 1")
        job.wait_for("took", 2)
        job.start()
        job.wait_for("start world 2")
        job.wait_for("took", 2)
        (folder / "enough").touch()
        codes = job.end()
    finally:
        for agent in job.agents:
            agent.process.terminate()
    return _printed([line for agent in job.agents for line in agent.lines], codes)


def _kill_node(agent: Agent) -> None:
    """Kill an agent and its workers at once, as a node that is lost does; not what records it."""
    pids = [pid for pid in _descendants(agent.process.pid) if _is_of_program(pid)]
    assert len(pids) > 1
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    return found + [below for child in found for below in _descendants(child)]


def _is_of_program(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").samefile(sys.executable)
    except OSError:
        return False  # it has ended


def _children(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started."""
    told = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(text) for text in " ".join(told).split()]


def _printed(lines: list[str], codes: list[int]) -> Printed:
    said = "\n".join(lines)
    epochs = {int(e): (float(s), int(w)) for e, s, w in _EPOCH.findall(said)}
    lost = {int(e): float(s) for s, e in _LOST.findall(said)}
    (total,) = _TOTAL.findall(said)
    return Printed(epochs, lost, float(total), codes)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0

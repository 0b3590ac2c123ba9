"""Recordings that are made once per test session, with the real tools."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from tests.forking import READ_ONCE, run_forked
from tests.requirements import ROOT, require
from traceprof.formats import open_trace
from traceprof.model.trace import Trace

PROGRAMS = ROOT / "fixtures" / "programs"
CNN = [sys.executable, str(PROGRAMS / "train_cnn.py"), "--steps", "12", "--batch", "4"]
NAMED_STEPS = [sys.executable, str(PROGRAMS / "named_steps.py")]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "TRACEPROF_FLUSH_S": "0.1",  # programs that are killed need not live long
}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
DDP = [*TORCHRUN, str(PROGRAMS / "train_ddp.py"), "--steps", "12", "--batch", "4"]


TOOLS = ["torch", pytest.param("nsys", marks=pytest.mark.nsys)]


@dataclass(frozen=True)
class Recorded:
    """A finished run of ``traceprof record``."""

    done: subprocess.CompletedProcess[str]
    path: Path

    @cached_property
    def trace(self) -> Trace:
        return open_trace(self.path)

    @property
    def printed_samples_per_s(self) -> float:
        match = re.search(r"throughput ([\d.]+) samples/s", self.done.stdout)
        assert match, self.done.stdout + self.done.stderr
        return float(match.group(1))


def require_tool(tool: str) -> None:
    """Skip the test where the profiler that ``--with`` names is not here."""
    if tool != "torch":
        require(tool)


def on_small_disk(folder: Path, size: str) -> list[str]:
    """Return what to put before a command so that ``folder`` is a disk of that size for it.

    What is on the disk in the end lies in ``folder`` with ".copy" at the end of its name.
    """
    mount = f'mount -t tmpfs -o size={size} tmpfs "$0"'
    folder.mkdir()
    script = f'{mount} && {{ "$@"; code=$?; cp -r "$0" "$0.copy"; exit $code; }}'
    return [*in_own_mounts(), script, str(folder)]


def in_own_mounts() -> list[str]:
    """Return what runs a shell script that may mount things which nobody else sees."""
    prefix = ["unshare", "-rm", "sh", "-c"]
    trial = [*prefix, "mount -t tmpfs tmpfs /mnt"]
    if not shutil.which("unshare") or subprocess.run(trial, check=False).returncode:
        pytest.skip("nothing can be mounted here without being root")
    return prefix


_MARKER = "TRACEPROF_TEST"
"""A variable that every process of a test has in its environment."""

_RUN = "TRACEPROF_TEST_RUN"
"""A variable that every process of a run of ``traceprof record`` has in its environment."""

_TIMEOUT_S = 600.0


def end_what_is_left(tmp_path: Path) -> None:
    """End the processes that a test has started."""
    variable = f"{_MARKER}={tmp_path}"
    end_processes_marked(variable, signal.SIGTERM, 5)
    end_processes_marked(variable, signal.SIGKILL, 5)


@pytest.fixture(autouse=True)
def no_orphans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process that a test has started, however it ended, is left behind."""
    resource_tracker.ensure_running()  # of this process: it lives as long as the tests
    monkeypatch.setenv(_MARKER, str(tmp_path))
    yield
    variable = f"{_MARKER}={tmp_path}"
    until = time.monotonic() + 10
    while (left := _processes_with(variable)) and time.monotonic() < until:
        time.sleep(0.1)
    if left:  # what one test leaves must not make the next ones fail
        end_what_is_left(tmp_path)
    assert not left, list(left.values())


def _processes_with(variable: str) -> dict[int, str]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                found[int(folder.name)] = command
        except OSError:
            continue
    return found


def nsys_of(recorder: subprocess.Popen[str]) -> list[int]:
    """Return the process of the nsys that a recorder has started, none where it has ended."""
    children = Path(f"/proc/{recorder.pid}/task/{recorder.pid}/children").read_text().split()
    return [pid for pid in map(int, children) if b"profile" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def environment_of_test(**more: str) -> dict[str, str]:
    """Return the environment for a recorder that a test starts."""
    return {**ENVIRONMENT, _MARKER: os.environ.get(_MARKER, ""), **more}


def record(
    path: Path, command: list[str], *options: str, prefix: Sequence[str] = (), **environment: str
) -> Recorded:
    """Record ``command`` as a user would; ``prefix`` goes before the whole command."""
    arguments = ["record", "-o", str(path), *options, "--", *command]
    cwd = path.parent if path.parent.is_dir() else path.parent.parent
    env = environment_of_test(**environment)
    if prefix or environment.keys() & READ_ONCE:
        whole = [*prefix, sys.executable, "-m", "traceprof", *arguments]
        return Recorded(finished(whole, cwd=cwd, env=env), path)
    mark = str(uuid.uuid4())

    def end(recorder: int) -> None:
        os.kill(recorder, signal.SIGTERM)
        _end_run(mark)
        os.kill(recorder, signal.SIGKILL)

    done = run_forked(arguments, cwd, {**env, _RUN: mark}, _TIMEOUT_S, end)
    if done is None:
        pytest.fail(f"not done after {_TIMEOUT_S:g} s: {arguments}")
    return Recorded(done, path)


def finished(
    command: list[str], cwd: Path, env: dict[str, str], timeout_s: float = _TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a recorder to its end; one that takes too long is ended with all that it started.

    An agent of nsys leaves the process group of its recorder, and the file that it shares with
    all others broken when it is killed: so the recorder is told to end everything first, and then
    whatever has the mark of this run in its environment is.
    """
    mark = str(uuid.uuid4())
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        command, cwd=cwd, env={**env, _RUN: mark}, text=True, start_new_session=True, **streams
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end_run(mark)
        stdout, stderr = process.communicate()
        pytest.fail(f"not done after {timeout_s:g} s: {command}\n{stdout}\n{stderr}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _end_run(mark: str) -> None:
    for number, patience_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        end_processes_marked(f"{_RUN}={mark}", number, patience_s)


def end_processes_marked(variable: str, number: int, patience_s: float) -> None:
    """Send a signal to all processes with ``variable`` in their environment; wait for their end."""
    for pid in _processes_with(variable):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    until = time.monotonic() + patience_s
    while _processes_with(variable) and time.monotonic() < until:
        time.sleep(0.1)


def _recorded(tmp_path_factory: pytest.TempPathFactory, command: list[str], tool: str) -> Recorded:
    require("torch")
    if tool == "nsys":
        require("nsys")
    path = tmp_path_factory.mktemp("recorded") / "run.sqlite"
    recorded = record(path, command, "--with", tool)
    assert recorded.done.returncode == 0, recorded.done.stderr
    return recorded


@pytest.fixture(scope="session")
def cnn_with_torch(tmp_path_factory):
    return _recorded(tmp_path_factory, CNN, "torch")


@pytest.fixture(scope="session")
def cnn_with_nsys(tmp_path_factory):
    return _recorded(tmp_path_factory, [*CNN, "--workers", "1"], "nsys")


@pytest.fixture(scope="session")
def ddp_with_torch(tmp_path_factory):
    return _recorded(tmp_path_factory, DDP, "torch")


@pytest.fixture(scope="session")
def ddp_with_nsys(tmp_path_factory):
    return _recorded(tmp_path_factory, DDP, "nsys")


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory):
    program = [*TORCHRUN[:-1], "--nproc-per-node=3", str(PROGRAMS / "pipeline_gloo.py")]
    return _recorded(tmp_path_factory, program, "torch")


@pytest.fixture(params=["torch", pytest.param("nsys", marks=pytest.mark.nsys)])
def cnn(request):
    return request.getfixturevalue(f"cnn_with_{request.param}")


@pytest.fixture(params=["torch", pytest.param("nsys", marks=pytest.mark.nsys)])
def ddp(request):
    return request.getfixturevalue(f"ddp_with_{request.param}")

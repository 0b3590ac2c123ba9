"""Recordings that are made once per test session, with the real tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.requirements import ROOT, require
from traceprof.formats import open_trace
from traceprof.model.trace import Trace

PROGRAMS = ROOT / "fixtures" / "programs"
CNN = [sys.executable, str(PROGRAMS / "train_cnn.py"), "--steps", "12", "--batch", "4"]
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
    script = f'{mount} && {{ "$@"; code=$?; cp -r "$0" "$0.copy"; exit $code; }}'
    folder.mkdir()
    if (
        not shutil.which("unshare")
        or subprocess.run(
            ["unshare", "-rm", "sh", "-c", mount, str(folder)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("no disk can be mounted here without being root")
    return ["unshare", "-rm", "sh", "-c", script, str(folder)]


def record(
    path: Path, command: list[str], *options: str, prefix: Sequence[str] = (), **environment: str
) -> Recorded:
    """Record ``command`` as a user would; ``prefix`` goes before the whole command."""
    traceprof = [*prefix, sys.executable, "-m", "traceprof"]
    folder_of_test = path if path.is_dir() else path.parent
    done = subprocess.run(
        [*traceprof, "record", "-o", str(path), *options, "--", *command],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=path.parent if path.parent.is_dir() else path.parent.parent,
        env={**ENVIRONMENT, MARKER: str(folder_of_test), **environment},
        check=False,
    )
    return Recorded(done, path)


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


@pytest.fixture(params=["torch", pytest.param("nsys", marks=pytest.mark.nsys)])
def cnn(request):
    return request.getfixturevalue(f"cnn_with_{request.param}")


@pytest.fixture(params=["torch", pytest.param("nsys", marks=pytest.mark.nsys)])
def ddp(request):
    return request.getfixturevalue(f"ddp_with_{request.param}")

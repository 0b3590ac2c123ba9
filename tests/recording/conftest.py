"""Recordings that are made once per test session, with the real tools."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


def record(path: Path, command: list[str], *options: str, **environment: str) -> Recorded:
    """Record ``command`` as a user would."""
    done = subprocess.run(
        [sys.executable, "-m", "traceprof", "record", "-o", str(path), *options, "--", *command],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=path.parent if path.parent.is_dir() else path.parent.parent,
        env={**ENVIRONMENT, **environment},
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

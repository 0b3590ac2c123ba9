"""The recorder's library and the stand-in for libcupti, compiled anew; programs that use them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.recording.cupti.libraries import Libraries, compiled_in, compiler
from tests.requirements import require
from traceprof.model.table import Table
from traceprof.model.tables import stack
from traceprof.recording.cupti.records import activity_tables
from traceprof.recording.cupti.spool import DeviceActivity, read_activities

WRITTEN = """
import glob, os, time
def written(n_bytes):
    \"\"\"Wait until so many bytes are on the disk: the recorder writes when it is time.\"\"\"
    spools = os.path.join(os.environ["TRACEPROF_DIR"], "cupti.*.spool")
    end_s = time.monotonic() + 60
    while sum(map(os.path.getsize, glob.glob(spools))) < n_bytes and time.monotonic() < end_s:
        time.sleep(0.005)
"""
_PRELUDE = """
import ctypes, os, sys, threading, time
from ctypes import c_long, c_uint64
cupti = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
recorder = ctypes.CDLL(sys.argv[2])
recorder.traceprof_why.restype = ctypes.c_char_p
def start():
    recorder.traceprof_plan(1)
    assert recorder.traceprof_start() == 0, recorder.traceprof_why()
def launch(n, by_driver=0, n_nodes=0):
    cupti.standin_launch(n, by_driver, n_nodes)
def finish(n=1 << 40):
    cupti.standin_finish(c_long(n))
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    if not compiler():
        require("compiled")
        is_required = "compiled" in os.environ.get("TRACEPROF_REQUIRE", "").split(",")
        (pytest.fail if is_required else pytest.skip)("there is no C compiler")
    return compiled_in(tmp_path_factory.mktemp("cupti"))


@dataclass(frozen=True)
class Left:
    """What a program left, and what it printed."""

    activities: list[DeviceActivity]
    printed: str

    @property
    def one(self) -> DeviceActivity:
        (activity,) = self.activities
        return activity

    @property
    def tables(self) -> Mapping[str, Table]:
        parts = list(activity_tables(self.one, {}, lambda times: times, str))
        names = ("kernels", "kernel_shapes", "copies", "api_calls", "syncs", "overheads")
        return {name: stack(name, [part[name] for part in parts if name in part]) for name in names}


Program = Callable[..., Left]


@pytest.fixture
def program(libraries: Libraries, tmp_path: Path) -> Program:
    """Return a function that runs a program which uses both, and gives what it left."""

    def run(code: str, **environment: str) -> Left:
        given = {**os.environ, **libraries.environment, "TRACEPROF_DIR": str(tmp_path)}
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _PRELUDE + WRITTEN + code,
                libraries.standin,
                libraries.recorder,
            ],
            env={**given, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not done.returncode, done.stderr
        return Left(read_activities(tmp_path), done.stdout + done.stderr)

    return run

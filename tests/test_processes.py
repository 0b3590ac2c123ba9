import os
import platform
import subprocess
import sys

import pytest

from tests.requirements import ROOT
from traceprof import processes
from traceprof.processes import n_processors


@pytest.mark.parametrize(
    ("told", "expected"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("nonsense", 8), (None, 8)],
)
def test_a_container_may_have_fewer_processors(tmp_path, monkeypatch, told, expected):
    quota = tmp_path / "cpu.max"
    if told is not None:
        quota.write_text(told)
    monkeypatch.setattr(processes, "_CPU_QUOTA_FILE", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert n_processors() == expected


_FAULTS = """
import resource, sys
import numpy as np
from traceprof.processes import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(80_000_000, np.int8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print([faults() for _ in range(3)][-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries do as they do")
def test_pages_of_freed_memory_serve_again() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _FAULTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < 10

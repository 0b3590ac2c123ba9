import os

import pytest

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
    monkeypatch.setattr(processes, "_QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert n_processors() == expected

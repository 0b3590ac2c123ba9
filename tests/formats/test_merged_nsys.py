"""Exports of nsys with several processes: each is a rank, on a device of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.builders import TraceBuilder
from traceprof.formats import open_trace, outline
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures.host.launches import launches_of
from traceprof.render.formatting import note_text
from traceprof.session.run import open_run

MS = 1_000_000


def export(path: Path, n: int, *, on_one: bool, name: str = "ncclDevKernel_AllReduce_x") -> Path:
    """Write n processes in lockstep, the last one of which computes the longest of 40 ms."""
    builder = TraceBuilder()
    for rank in range(n):
        process, device = 4000 + rank, 0 if on_one else rank
        ready = 32 if rank == n - 1 else 12 + rank
        for step in range(6):
            at = (100 + step * 40) * MS
            builder.range(f"ProfilerStep#{step}", at, at + 39 * MS, process=process)
            for work, start, end in (("gemm", 1, ready), (name, ready, 35)):
                builder.kernel(
                    work,
                    at + start * MS,
                    at + end * MS,
                    launched_ns=(at + 10, at + 20),
                    device=device,
                    process=process,
                    thread=process,
                )
    write_nsys(builder.build(), path)
    return path


@pytest.mark.parametrize("on_one", [False, True], ids=["own numbers", "all device 0"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_each_process_has_a_device_of_its_own(tmp_path: Path, n: int, on_one: bool) -> None:
    path = export(tmp_path / "t.sqlite", n, on_one=on_one)
    trace = open_trace(path)
    kernels = trace.kernels
    assert launches_of(trace, "kernels").is_known.all()
    pairs = sorted(set(zip(kernels["process"].tolist(), kernels["device"].tolist(), strict=True)))
    assert pairs == [(4000 + rank, rank) for rank in range(n)]
    used = outline(path).trace.devices
    assert used["device"][used["used"] == 1].tolist() == list(range(n))


def test_one_gpu_that_serves_processes_without_nccl_stays_one(tmp_path: Path) -> None:
    trace = open_trace(export(tmp_path / "t.sqlite", 3, on_one=True, name="softmax"))
    assert np.unique(trace.kernels["device"]).tolist() == [0]


@pytest.mark.parametrize("on_one", [False, True], ids=["own numbers", "all device 0"])
def test_who_waits_least_is_to_blame(tmp_path: Path, on_one: bool) -> None:
    found = open_run([export(tmp_path / "t.sqlite", 4, on_one=on_one)]).result("findings").table
    titles = dict(zip(found["rule"], map(note_text, found["title"]), strict=True))
    assert "4003" in titles["straggler"]

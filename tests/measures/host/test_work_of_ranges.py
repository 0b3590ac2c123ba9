import csv
import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.requirements import require
from traceprof.formats import open_trace
from traceprof.measures.host.launches import innermost, launches_of
from traceprof.measures.host.range_work import sum_work
from traceprof.measures.host.ranges import find_parents
from traceprof.model.trace import DEVICE_TABLES

FILES = (
    "2025.1-llm-17k-kernels",
    "2024.6-llm-2.7b-nvtx-a100",
    "2026.2-windows-laptop",
)


@pytest.mark.nsys
@pytest.mark.traces
@pytest.mark.parametrize("name", FILES)
def test_ranges_projected_onto_the_device_are_those_of_nsys(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nsys = require("nsys")
    path = real_trace(f"nsys/{name}.sqlite")
    copy = Path(shutil.copy(path, tmp_path / "copy.sqlite"))
    printed = subprocess.run(
        [nsys, "stats", "-q", "-f", "csv", "-r", "nvtxgpuproj", "-o", "-", copy],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    keys = ("TID", "Orig Start (ns)", "Orig Duration (ns)")
    values = ("Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps")
    expected = {
        tuple(int(row[key]) for key in keys): tuple(int(row[value]) for value in values)
        for row in csv.DictReader(io.StringIO(printed.lstrip()))
    }
    trace = open_trace(path)
    spans = trace.ranges.to_frame()[trace.ranges.to_frame()["kind"] == "push_pop"].reset_index(
        drop=True
    )
    owners = {}
    for table in DEVICE_TABLES:
        own = launches_of(trace, table)
        inner = innermost(spans, own.process, own.thread, own.start_ns)
        owners[table] = np.where(own.is_known, inner, -1)
    work = sum_work(trace, owners, *find_parents(spans))
    lengths = spans["end_ns"] - spans["start_ns"]
    found = {
        (int(thread), int(start), int(length)): (
            int(work.first_ns[row]),
            int(work.last_ns[row] - work.first_ns[row]),
            int(work.work_count[row]),
        )
        for row, (thread, start, length) in enumerate(
            zip(spans["thread"], spans["start_ns"], lengths, strict=True)
        )
        if work.work_count[row]
    }
    assert len(found) > 20
    assert found == expected

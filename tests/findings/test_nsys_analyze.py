"""The rows behind our rules are those of the rules of the real ``nsys analyze``.

NVIDIA's rules join copies and calls on the correlation alone, so that rows come twice in a trace
of several processes: sets are compared.
"""

import csv
import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.requirements import require
from traceprof.findings.context import Context, CopyFilter
from traceprof.findings.copies import (
    are_asynchronous,
    are_blocking_copies,
    are_blocking_memsets,
    are_pageable,
)
from traceprof.findings.gaps import long_gaps
from traceprof.formats import open_trace
from traceprof.measures.host.states import is_synchronization
from traceprof.measures.traffic.copies import copies_with_calls
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.timing import TimeWindow

pytestmark = [pytest.mark.nsys, pytest.mark.traces]

FILES = (
    "2021-quadro-cuda",
    "2022.2-saxpy-mpi-a100",
    "2022.4-copies-only-8gpu-host",
    "2024.5-cloverleaf-a100",
    "2024.6-llm-2.7b-nvtx-a100",
    "2025.1-fuser-nvtx-h200",
    "2025.1-many-copies",
    "2026.2-2gpu-nccl-before",
)

Rows = set[tuple[int, int]]
"""(start, duration) of each row."""


def _copies(context: Context, choose: CopyFilter) -> Table:
    (part,) = context.ranks
    copies = copies_with_calls(part)
    return copies.take(choose(copies))


def _pageable(copies: Table) -> npt.NDArray[np.bool_]:
    return are_asynchronous(copies) & are_pageable(copies)


def _sync_calls(context: Context) -> Table:
    (part,) = context.ranks
    names = part.api_calls["name"]
    # NVIDIA's rule leaves out waits for events.
    events = names.by_text(["Event" in name for name in names.texts])
    return part.api_calls.take(is_synchronization(names) & ~events)


RULES: dict[str, Callable[[Context], Table]] = {
    "cuda-async-memcpy": lambda context: _copies(context, _pageable),
    "cuda-sync-memcpy": lambda context: _copies(context, are_blocking_copies),
    "cuda-sync-memset": lambda context: _copies(context, are_blocking_memsets),
    "cuda-sync-api": _sync_calls,
    "gpu-starv": long_gaps,
}


@pytest.mark.parametrize("name", FILES)
def test_our_rows_are_those_of_nsys_analyze(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nsys = require("nsys")
    path = real_trace(f"nsys/{name}.sqlite")
    copy = Path(shutil.copy(path, tmp_path / "copy.sqlite"))
    trace = open_trace(path)
    window = TimeWindow(trace.span.start_ns, trace.span.end_ns + 1)
    context = Context(Ranks.of(trace.within(window)))
    found = {}
    for rule, rows_of in RULES.items():
        rows = rows_of(context)
        lengths = rows["end_ns"] - rows["start_ns"]
        found[rule] = set(zip(rows["start_ns"], lengths, strict=True))
    assert found == _of_nsys(nsys, copy)


def _of_nsys(nsys: str, path: Path) -> dict[str, Rows]:
    """Return the rows of each rule; all rules in one call, their tables one after the other."""
    results: dict[str, Rows] = {}
    for rule in RULES:
        printed = subprocess.run(
            [nsys, "analyze", "-q", "-f", "csv", "-r", f"{rule}:rows=-1", "-o", "-", path],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        ).stdout
        results[rule] = {
            (int(row["Start (ns)"]), int(row["Duration (ns)"]))
            for row in csv.DictReader(io.StringIO(printed.lstrip()))
            if row.get("Duration (ns)")
        }
    return results

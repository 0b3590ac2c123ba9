"""Sums by name must be those of the real ``nsys stats``, to the nanosecond and the byte."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests import real_traces
from tests.requirements import require
from traceprof.formats import open_trace
from traceprof.formats.nsys.split import copy_processes
from traceprof.model.trace import Trace

pytestmark = [pytest.mark.nsys, pytest.mark.traces]

# These files were cut from longer ones and lost the rows that name NVTX domains; we know NCCL's
# by its contents, nsys shows its ranges without a domain.
WITHOUT_DOMAIN_ROWS = (
    "nsys/2026.2-2gpu-nccl-after.sqlite",
    "nsys/2026.2-2gpu-nccl-before.sqlite",
)

OF_SEVERAL_PROCESSES = (
    "nsys/2024.6-llm-2.7b-nvtx-a100.sqlite",
    "nsys/2025.1-fuser-nvtx-h200.sqlite",
    "nsys/2026.2-2gpu-nccl-after.sqlite",
)

Sums = dict[str, tuple[int, int]]
"""Name → (total, number of rows)."""


@pytest.mark.parametrize("name", real_traces.NSYS)
def test_sums_by_name_are_those_of_nsys_stats(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nsys = require("nsys")
    path = real_trace(name)
    # nsys makes an index inside the file that it reads.
    copy = Path(shutil.copy(path, tmp_path / "copy.sqlite"))
    _assert_agree(nsys, open_trace(path), copy, with_domain=name not in WITHOUT_DOMAIN_ROWS)


@pytest.mark.parametrize("name", OF_SEVERAL_PROCESSES)
def test_what_one_process_did_is_what_nsys_says_of_its_file(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nsys = require("nsys")
    path = real_trace(name)
    whole = open_trace(path)
    process = int(whole.kernels.to_frame()["process"].mode()[0])
    part = tmp_path / "part.sqlite"
    copy_processes(path, part, [process], others=False)
    trace = open_trace(part)
    assert (
        len(trace.kernels.to_frame()) == (whole.kernels.to_frame()["process"] == process).sum() > 0
    )
    _assert_agree(nsys, trace, part, with_domain=name not in WITHOUT_DOMAIN_ROWS)


def _assert_agree(nsys: str, trace: Trace, copy: Path, *, with_domain: bool) -> None:
    assert _kernels(trace) == _stats(nsys, copy, "gpukernsum", "Total Time (ns)", "Name")
    assert _copies(trace, by_bytes=False) == _stats(
        nsys, copy, "gpumemtimesum", "Total Time (ns)", "Operation"
    )
    assert _copies(trace, by_bytes=True) == _stats(
        nsys, copy, "gpumemsizesum", "Total (B)", "Operation"
    )
    ranges = _ranges(trace, with_domain=with_domain)
    assert ranges == _stats(nsys, copy, "nvtxppsum", "Total Time (ns)", "Range")


def _stats(nsys: str, path: Path, report: str, total: str, name: str) -> Sums:
    """Return what a report of nsys says; nothing where the file lacks the tables."""
    printed = subprocess.run(
        [nsys, "stats", "-q", "-f", "csv:mem=B", "-r", report, "-o", "-", path],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    sums: Sums = {}
    for row in csv.DictReader(io.StringIO(printed.lstrip())):
        count = row.get("Instances") or row["Count"]
        old = sums.get(row[name], (0, 0))
        # The kernel report has a row per grid and block; we sum over them.
        sums[row[name]] = (old[0] + int(float(row[total])), old[1] + int(count))
    return sums


def _sums(frame: pd.DataFrame, names: pd.Series, values: pd.Series) -> Sums:
    grouped = values.groupby(names.astype(str).to_numpy())
    return {
        str(name): (int(total), int(count))
        for name, total, count in zip(
            grouped.sum().index, grouped.sum(), grouped.size(), strict=True
        )
    }


def _kernels(trace: Trace) -> Sums:
    # A graph that was traced whole is no kernel to nsys.
    kernels = trace.kernels.to_frame()[trace.kernels.to_frame()["activity"] != "cuda_graph"]
    return _sums(kernels, kernels["name"], kernels["end_ns"] - kernels["start_ns"])


def _copies(trace: Trace, *, by_bytes: bool) -> Sums:
    labels = {
        "h2d": "[CUDA memcpy HtoD]",
        "d2h": "[CUDA memcpy DtoH]",
        "d2d": "[CUDA memcpy DtoD]",
        "p2p": "[CUDA memcpy PtoP]",
        "memset": "[CUDA memset]",
    }
    copies = trace.copies.to_frame()
    values = copies["n_bytes"] if by_bytes else copies["end_ns"] - copies["start_ns"]
    titles = copies["direction"].map(labels).astype(str)
    migrated = (copies["src_kind"] == "managed") & (copies["dst_kind"] == "managed")
    titles = titles.mask(migrated, titles.str.replace("CUDA", "CUDA Unified Memory"))
    return _sums(copies, titles, values)


def _ranges(trace: Trace, *, with_domain: bool) -> Sums:
    ranges = trace.ranges.to_frame()[trace.ranges.to_frame()["kind"] == "push_pop"]
    names, domains = ranges["name"].astype(str), ranges["domain"].astype(str)
    titles = domains.where(domains == "", domains + ":") + names if with_domain else names
    return _sums(ranges, titles, ranges["end_ns"] - ranges["start_ns"])

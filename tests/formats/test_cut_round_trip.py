"""Parts of real traces: analyses of a part are those of the whole in that window, to the ns.

Not compared is what rests on what lies outside a window, as docs/cut.md says: causes of gaps at
the border (idle, gaps, findings, what-if), steps that are not whole, their numbers, and what was
launched in the window and ran after it (collectives).
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import real_traces
from tests.requirements import require
from traceprof.errors import TraceprofError
from traceprof.formats import ReadOptions, cut, open_trace
from traceprof.formats.sqlite.schema import quoted
from traceprof.model.cutting import CutRequest, no_progress
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, Unit
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.session.run import Run, run_of

pytestmark = pytest.mark.traces

ANALYSES = (
    *("breakdown", "bandwidth", "kernels", "classes", "occupancy", "summary", "copies"),
    *("transfers", "launches", "streams", "operators", "range-work", "ranges", "memory", "network"),
    *("network-time", "quality"),
)
OF_CLIPPED = ("breakdown", "kernels", "streams")
"""What does not ask how long an operation was that the window cuts."""
SHARES = ((0.05, 0.2), (0.45, 0.46), (0.8, 1.0))
EVERYTHING = ReadOptions(tables=frozenset(TABLES))
KINETO = tuple(name for name in real_traces.KINETO if name.count("/") == 1)


def windows(trace: Trace) -> Iterator[TimeWindow]:
    """Yield windows of the recording, the second often without any work of a device."""
    first, duration = trace.span.start_ns, trace.span.duration_ns
    for share, until in SHARES:
        yield TimeWindow(first + int(share * duration), first + int(until * duration))


def with_work(trace: Trace) -> Iterator[TimeWindow]:
    """Yield the windows in which kernels ran."""
    starts, ends = (trace.kernels.to_frame()[name].to_numpy() for name in ("start_ns", "end_ns"))
    yield from (window for window in windows(trace) if window.overlaps(starts, ends).any())


def told(run: Run, name: str) -> Result | None:
    """Return a result; what recording a file cost is an estimate for the whole file."""
    try:
        found = run.result(name)
    except TraceprofError:
        return None
    if name != "quality" or not len(found.table):
        return found
    rows = ["itself took" not in repr(message) for message in found.table["message"]]
    empty = found.spec.tables[0].of_rows()
    kept = found.table.take(np.array(rows, np.bool_)) if any(rows) else empty
    return replace(found, tables={found.spec.tables[0].name: kept})


@pytest.mark.parametrize("name", [*real_traces.NSYS, *KINETO, *real_traces.NVPROF])
def test_analyses_of_a_part_are_those_of_the_window(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    path = real_trace(name)
    trace = open_trace(path, EVERYTHING)
    for number, window in enumerate(windows(trace)):
        whole = run_of(Ranks.of(trace)).within(_named(window))
        for clip in (False, True)[: 1 + (number == 1)]:
            part = tmp_path / f"{number}-{clip}{path.suffix}"
            part.touch()
            report = cut(path, part, CutRequest(window, clip=clip, span=trace.span), no_progress)
            # The clock of a part of a Kineto trace or of nvprof begins where the part does.
            moved_ns = _epoch(part) - report.zero_ns
            own = open_trace(part, EVERYTHING)
            alone = run_of(Ranks.of(own)).within(
                _named(TimeWindow(window.start_ns - moved_ns, window.end_ns - moved_ns))
            )
            shift_ns = (own.span.start_ns + moved_ns) - trace.span.start_ns
            for analysis in OF_CLIPPED if clip else ANALYSES:
                expected, found = told(whole, analysis), told(alone, analysis)
                assert (expected is None) == (found is None), analysis
                if expected is not None and found is not None:
                    assert values_of(found, shift_ns) == values_of(expected, 0), analysis


def _named(window: TimeWindow) -> str:
    return f"@{window.start_ns}..@{window.end_ns}"


def _epoch(part: Path) -> int:
    """Return what the clock of a part counts from, in times of the file."""
    scratch = part.with_name("scratch")
    scratch.touch()
    zero_ns = cut(part, scratch, CutRequest(TimeWindow(0, 1)), no_progress).zero_ns
    scratch.unlink()
    return zero_ns


def values_of(result: Result, shift_ns: int) -> dict[str, Any]:
    """Return all numbers and texts, instants after the start of the whole trace."""
    values: dict[str, Any] = {}
    for table in result.spec.tables:
        frame = result.tables.get(table.name, ())  # some are there only where there are rows
        for column in table:
            if column.name in frame:
                own = frame[column.name].tolist()
                moved = column.unit is Unit.AT_NS
                values[f"{table.name}.{column.name}"] = [
                    str(one + shift_ns if moved else one) for one in own
                ]
    return values


SUMS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "gpukernsum",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "cudaapisum",
}


@pytest.mark.nsys
@pytest.mark.parametrize("program", ["nsys", "newer_nsys"])
@pytest.mark.parametrize("name", real_traces.NSYS)
def test_nsys_stats_gives_the_sums_of_the_window(
    program: str, name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nsys = require(program)
    nsys = shutil.which("nsys", path=nsys) or nsys
    path = real_trace(name)
    trace = open_trace(path)
    for window in with_work(trace):
        part = tmp_path / f"{window.start_ns}.sqlite"
        part.touch()
        cut(path, part, CutRequest(window), no_progress)
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        inside = f"start < {window.end_ns} AND [end] > {window.start_ns}"
        with closing(sqlite3.connect(path)) as connection:
            sql = f"SELECT total([end] - start), count(*) FROM {quoted(table)} WHERE {inside}"
            ((total, count),) = connection.execute(sql)
        rows = _stats(nsys, part, SUMS[table])
        _check_analyze(nsys, part)
        assert sum(int(float(row["Total Time (ns)"])) for row in rows) == int(total)
        assert sum(int(row["Instances"]) for row in rows) == count  # none where all are graphs
        assert count or "graphs" in name
        assert _stats(nsys, part, SUMS["CUPTI_ACTIVITY_KIND_RUNTIME"])


def _check_analyze(nsys: str, path: Path) -> None:
    """Check that the rules of nsys can be asked about a part."""
    command = [nsys, "analyze", "-q", "-f", "csv", "-o", "-"]
    done = subprocess.run([*command, path], capture_output=True, text=True, timeout=120, check=True)
    assert "ERROR" not in done.stdout + done.stderr


def _stats(nsys: str, path: Path, report: str) -> list[dict[str, str]]:
    command = [nsys, "stats", "-q", "-f", "csv", "-r", report, "-o", "-", str(path)]
    printed = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, env=dict(os.environ)
    )
    assert "ERROR" not in printed.stderr
    return list(csv.DictReader(io.StringIO(printed.stdout.lstrip())))


@pytest.mark.nvprof
@pytest.mark.parametrize("name", real_traces.NVPROF)
def test_nvprof_gives_the_sums_of_the_window(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nvprof = require("nvprof")
    path = real_trace(name)
    trace = open_trace(path)
    for window in with_work(trace):
        part = tmp_path / f"{window.start_ns}.nvprof"
        part.touch()
        cut(path, part, CutRequest(window), no_progress)
        printed = subprocess.run(
            [nvprof, "-i", part, "--print-gpu-trace", "--csv", "-u", "ns"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        shown = printed.stdout + printed.stderr
        rows = [line for line in shown.splitlines() if line[:1].isdigit()]
        work = (trace.kernels.to_frame(), trace.copies.to_frame())
        count = sum(
            int(window.overlaps(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()).sum())
            for frame in work
        )
        assert len(rows) == count > 0

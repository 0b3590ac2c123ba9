"""Rows at times that no clock has are in no number, and every entrance says so and why."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import traceprof
from tests.formats.test_contract import EXECUTION, WRITERS, planes_of
from tests.formats.xplane_file import write_xplane
from tests.reliability.workplace import make_trace as make_training
from traceprof.cli import app
from traceprof.errors import TraceprofError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace, make_trace

LATE_NS = 1 << 62
"""146 years after 0: two such times apart do not fit into 64 bits."""
SAID = {
    "nsys": r"2 rows of CUPTI_ACTIVITY_KIND_KERNEL .* \(time more than 146 years from 0: 2\)",
    "nvprof": r"2 rows of \w+_CONCURRENT_KERNEL .* \(time more than 146 years from 0: 2\)",
    "tables": r"2 rows of CUPTI_ACTIVITY_KIND_KERNEL .* \(time more than 146 years from 0: 2\)",
    "kineto": r"ignored \d+ events whose time or duration is missing or invalid",
    "rocprofv3-json": r"ignored \d+ rows that end before they start or have no valid time",
    "rocpd": r"ignored \d+ rows that end before they start or have no valid time",
    "xplane": r"ignored \d+ events without a valid time",
    "xplane-json": r"ignored \d+ events without a valid time",
}
SQL = "SELECT count(*) FROM kernels"
ENTRANCES: dict[str, list[str]] = {
    "page": ["RUN"],
    "json": ["analyze", "RUN", "--json"],
    "show": ["show", "kernels", "RUN"],
    "csv": ["show", "kernels", "RUN", "--csv"],
    "query": ["query", "RUN", SQL],
    "ops": ["ops", "RUN"],
    "compare": ["compare", "RUN", "RUN"],
    "report": ["report", "RUN", "-o", "OUT"],
    "timeline": ["timeline", "RUN", "-o", "OUT"],
    "info": ["info", "RUN"],
}


def shifted(*names: str) -> Trace:
    """Return the execution with the rows of some tables at impossible times."""
    tables = {}
    for name in TABLES:
        table = EXECUTION.table(name)
        for column in ("start_ns", "end_ns"):
            if name in names and column in table and len(table):
                table = table.assign(**{column: table[column] + LATE_NS})
        tables[name] = table
    return make_trace(EXECUTION.info, tables, EXECUTION.recorded)


def write_late_planes(trace: Trace, path: Path) -> None:
    """Write planes with a line for each event, which it begins with."""
    write_xplane(
        path,
        [
            replace(
                plane,
                lines=[
                    replace(line, events=[event], base_ns=int(event[1]))
                    for line in plane.lines
                    for event in line.events
                ],
            )
            for plane in planes_of(trace)
        ],
    )


WRITE: dict[str, Callable[[Trace, Path], object]] = {**WRITERS, "xplane": write_late_planes}


def said_by(entrance: str, path: Path) -> str:
    """Return all that a command prints."""
    places = {"RUN": str(path), "OUT": str(path.with_name("out.html"))}
    command = [places.get(word, word) for word in ENTRANCES[entrance]]
    found = CliRunner().invoke(app, [*command, "--no-cache"])
    out = path.with_name("out.html")
    page = out.read_text("utf-8") if out.exists() else ""
    return " ".join((found.output + found.stderr + page).split())


def test_every_format_is_tried() -> None:
    assert set(SAID) == set(WRITERS)


@pytest.mark.parametrize("known", WRITE)
def test_a_trace_of_impossible_times_says_why_it_holds_no_events(
    known: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    WRITE[known](shifted(*TABLES), path)
    with pytest.raises(TraceprofError, match=SAID[known]) as error:
        traceprof.open(path).breakdown()
    assert "events" in str(error.value)
    assert "record it again" not in str(error.value)


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_every_entrance_says_why_there_are_no_events(entrance: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    WRITE["nsys"](shifted(*TABLES), path)
    said = said_by(entrance, path)
    assert "2 rows of CUPTI_ACTIVITY_KIND_KERNEL are damaged" in said
    assert "time more than 146 years from 0: 2" in said


@pytest.mark.parametrize("known", WRITE)
def test_kernels_at_impossible_times_are_no_kernels_that_were_not_recorded(
    known: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    WRITE[known](shifted("kernels"), path)
    trace = traceprof.open(path)
    assert not trace.kernels().table
    said = said_by("show", path)
    assert "ignored" in said
    assert "no kernels recorded" not in said


def written(path: Path, *statements: str) -> Path:
    """Write a training run of 20 steps, changed by SQL statements."""
    write_nsys(make_training(), path)
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path


def long_first_kernel(path: Path) -> Path:
    """Write a run whose first kernel outlasts all steps: 31.7 years."""
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    first = f"(SELECT min(start) FROM {kernels})"
    return written(
        path, f"UPDATE {kernels} SET end = end + 1000000000000000000 WHERE start = {first}"
    )


def one_correlation_id(path: Path) -> Path:
    """Write a run whose kernels all belong to the first launch: no step of the window is whole."""
    names = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")
    return written(path, *(f"UPDATE {name} SET correlationId = 1" for name in names))


@pytest.mark.parametrize("entrance", ["page", "json", "show"])
def test_a_kernel_that_outlasts_all_steps_leaves_them_no_duration(
    entrance: str, tmp_path: Path
) -> None:
    said = said_by(entrance, long_first_kernel(tmp_path / "trace"))
    assert "The steps after warm-up have no duration" in said
    assert "Step time" not in said


def test_one_id_of_all_launches_and_kernels(tmp_path: Path) -> None:
    said = said_by("page", one_correlation_id(tmp_path / "trace"))
    assert "GPU time in the window: idle 100.0%" in said
    assert "per step" not in said


@pytest.mark.parametrize("write", [long_first_kernel, one_correlation_id])
def test_a_report_of_steps_without_times_is_written(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    path, out = write(tmp_path / "trace"), tmp_path / "out.html"
    command = ["report", str(path), "-o", str(out), "--no-cache"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert out.exists()

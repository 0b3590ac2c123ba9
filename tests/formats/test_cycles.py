"""Recordings of one process, one after the other: one trace with windows, and nothing between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.formats import kineto_file
from tests.formats.kineto_file import HOST, complete
from tests.formats.rocpd_database import RocpdDatabase
from tests.measures.host.test_host_alone import write_cycle
from traceprof.formats.runs import ranks
from traceprof.formats.runs.files import open_run, outline_run
from traceprof.model.trace import Trace
from traceprof.session.run import open_run as open_session

US = 1_000
SECOND_NS = 10**9
STEPS = 4


def write_busy(path: Path, first: int, begins_ns: int, **header: Any) -> Path:
    """Write a cycle of four steps of 1 ms with a kernel of 600 µs each; correlations begin at 1."""
    events = []
    for number in range(STEPS):
        at = begins_ns + number * 1_000 * US
        step = f"ProfilerStep#{first + number}"
        events.append(complete("user_annotation", step, at, at + 1_000 * US))
        called = {"correlation": number + 1}
        events.append(complete("cuda_runtime", "cudaLaunchKernel", at, at + 10 * US, args=called))
        events.append(kineto_file.kernel("gemm", at + 100 * US, at + 700 * US, **called))
    return kineto_file.write(path, events, baseTimeNanoseconds=10**18, **header)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(2):
        name = f"host_{HOST}.{number}.pt.trace.json"
        write_busy(tmp_path / name, 10 * number, number * SECOND_NS)
    return tmp_path


def test_two_cycles_are_windows_of_one_trace(folder: Path) -> None:
    found = open_run([folder])
    (member,) = found.members
    trace = member.trace
    assert len(trace.kernels) == 2 * STEPS
    assert trace.kernels["start_ns"][STEPS] == SECOND_NS + 100 * US
    assert trace.span.duration_ns == SECOND_NS + STEPS * 1_000 * US
    # Each kernel has its own launch, though both cycles number them from 1.
    assert sorted(trace.kernels["correlation"]) == sorted(trace.api_calls["correlation"])
    assert len(set(trace.kernels["correlation"].tolist())) == 2 * STEPS
    (warning,) = found.warnings
    assert "2 consecutive recordings of one process" in warning
    assert "traceprof joins them into one trace" in warning


def test_the_time_between_is_no_idle_time_and_no_step(folder: Path) -> None:
    run = open_session([folder]).within("all")
    breakdown = run.result("breakdown")
    assert breakdown is not None
    (device,) = breakdown.table.rows()
    # Each cycle is seen from its first event to its last.
    assert device["compute_ns"] == 2 * STEPS * 600 * US
    assert device["duration_ns"] == 2 * STEPS * 1_000 * US
    assert device["idle_ns"] == 2 * STEPS * 400 * US
    steps = run.result("steps")
    assert steps is not None
    assert steps.table["step"].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert max(steps.table["duration_ns"]) <= 1_000 * US
    assert max(steps.table["period_ns"]) <= 1_000 * US
    gaps = run.result("gaps")
    assert gaps is not None
    assert max(gaps.table["duration_ns"]) <= 400 * US


def test_an_outline_counts_all_of_them(folder: Path) -> None:
    run, outlines = outline_run([folder])
    (member,) = run.members
    outline = outlines[member.trace.info.path]
    assert outline.n_rows["kernels"] == 2 * STEPS
    assert outline.device_rows["kernels"] == {(HOST, 0): 2 * STEPS}
    assert member.trace.span.duration_ns == SECOND_NS + STEPS * 1_000 * US
    assert member.trace.devices["used"].tolist() == [1]


def test_ranks_may_have_any_number_of_cycles(tmp_path: Path) -> None:
    for rank in range(2):
        for number in range(3 - rank):  # the first rank went on for one more
            told = {"distributedInfo": {"rank": rank, "world_size": 2}}
            path = tmp_path / f"host_{HOST}.{rank}{number}.pt.trace.json"
            write_busy(path, 10 * number, number * SECOND_NS + rank, **told)
    found = open_run([tmp_path])
    assert [one.rank for one in found.members] == [0, 1]
    assert [len(one.trace.kernels) for one in found.members] == [3 * STEPS, 2 * STEPS]
    assert not any("ignored" in warning for warning in found.warnings)


def test_cycles_of_a_host_alone(tmp_path: Path) -> None:
    for number in range(2):
        name = f"host_{HOST}.{number}.pt.trace.json"
        write_cycle(tmp_path / name, 10 * number, number * SECOND_NS)
    phases = open_session([tmp_path]).within("all").result("phases")
    assert phases is not None
    rows = {row["phase"]: row["host_ns"] for row in phases.table.rows()}
    assert rows["data"] == 8 * 100 * US
    assert sum(rows.values()) == 2 * 3_990 * US  # of each cycle from its first event to its last


def test_where_others_hold_the_events_one_cycle_is_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trace, "is_remote", True)
    claims = [ranks.RankClaim(one.member, one.path) for one in _claims_of(folder)]
    kept, files, warnings = ranks.with_cycles(claims)
    assert [one.path.name for one in kept] == [f"host_{HOST}.1.pt.trace.json"]
    assert files == {}
    assert "analyzes only number 2" in warnings[0]


def _claims_of(folder: Path) -> list[ranks.RankClaim]:
    found = []
    for path in sorted(folder.iterdir()):
        (member,) = open_run([path]).members
        found.append(ranks.RankClaim(member, path))
    return found


def test_files_without_a_clock_or_that_overlap_are_ranks(tmp_path: Path) -> None:
    for number in range(2):
        with RocpdDatabase(tmp_path / f"{number}.db") as file:
            file.kernel("gemm", (number * SECOND_NS, number * SECOND_NS + 5), 1)
    assert len(open_run([tmp_path]).members) == 2
    for number in range(2):
        (tmp_path / f"{number}.db").unlink()
        write_busy(tmp_path / f"x{number}.json", 0, number)
    assert len(open_run([tmp_path]).members) == 2

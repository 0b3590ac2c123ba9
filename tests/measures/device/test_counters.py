"""What counters of the GPUs say: sums by hand, links, kernels that leave SMs idle, lost work."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.findings.found import findings_of
from tests.requirements import require
from tests.running import run
from traceprof.formats import cut, open_trace, outline
from traceprof.formats.contract import ReadOptions
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.cutting import CutRequest, no_progress
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text

MS = 1_000_000
SMS = "SM Active [Throughput %]"
SHARED = "nsys/2022.2-pytorch-a100-gpu-metrics-sampling.sqlite.gz"


def sampled(values: dict[str, list[float]], busy_ms: list[tuple[int, int]]) -> Trace:
    """Return a trace with a sample of each counter every ms, and kernels of these ms."""
    builder = TraceBuilder()
    for start, end in busy_ms:
        builder.kernel("gemm", start * MS, end * MS)
    for metric, every in values.items():
        for number, value in enumerate(every):
            builder.sample(metric, number * MS, value, source="gpu:0")
    return builder.build()


def test_means_are_over_time_and_over_kernels() -> None:
    trace = sampled(
        {SMS: [0, 40, 40, 0, 0], "SYS Clock Frequency": [1e9] * 5, "power_watts": [70] * 5},
        [(0, 2)],
    )
    (row,) = run("counters", trace).table.rows()
    assert (row["device"], row["counter"], row["count"]) == (0, SMS, 4)
    assert row["duration_ns"] == 4 * MS
    assert row["mean_ratio"] == pytest.approx(0.2)  # 2 of 4 ms at 40%
    assert row["kernel_ratio"] == pytest.approx(0.4)  # 0.8 ms of 2 ms of kernels
    assert row["top_ratio"] == pytest.approx(0.4)


def test_a_pause_of_the_sampler_is_not_known() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 50 * MS)
    for at in (0, 1, 2, 3, 40, 41):
        builder.sample(SMS, at * MS, 100, source="gpu:0")
    (row,) = run("counters", builder.build()).table.rows()
    assert row["duration_ns"] == 4 * MS


def test_counters_of_links_are_shares_of_their_speed() -> None:
    trace = sampled(
        {
            "NVLink TX Requests User Data [Throughput %]": [0, 30, 0],
            "NVLink TX Responses User Data [Throughput %]": [0, 10, 20],
            "PCIe RX Throughput": [0, 50, 0],
        },
        [(0, 2)],
    )
    found = run("network", trace)
    rows = {(row["link"], row["direction"]): row for row in found.tables["links"].rows()}
    assert set(rows) == {("nvlink", "sent"), ("pcie", "received")}
    assert rows["nvlink", "sent"]["mean_ratio"] == pytest.approx((40 + 20) / 200)
    assert rows["nvlink", "sent"]["top_ratio"] == pytest.approx(0.4)
    assert rows["pcie", "received"]["mean_ratio"] == pytest.approx(0.25)
    assert found.notes == ()
    of_links = [row["kernel_ratio"] for row in run("counters", trace).table.rows()]
    assert np.isnan(of_links).all()


def test_without_counters_it_says_so() -> None:
    trace = TraceBuilder().kernel("gemm", 0, 10).sample("power_watts", 5, 70).build()
    (note,) = run("counters", trace).notes
    assert "--gpu-metrics" in note_text(note)


def test_kernels_that_leave_sms_idle_are_found() -> None:
    narrow = sampled({SMS: [0, *[25] * 8]}, [(0, 8)])
    (finding,) = (one for one in findings_of(narrow) if one.rule == "unfilled_kernels")
    assert finding.kind == "estimated"
    assert finding.saving_ratio == pytest.approx(0.75)
    assert "25.0% of the SMs are active" in finding.title
    full = sampled({SMS: [0, *[97] * 8]}, [(0, 8)])
    assert not [one for one in findings_of(full) if one.rule == "unfilled_kernels"]


def test_work_that_counters_saw_and_the_recording_has_not_is_said() -> None:
    (note,) = run("counters", sampled({SMS: [0, *[90] * 8]}, [(0, 1)])).notes
    assert "Another program used this GPU, or kernels are missing" in note_text(note)
    assert run("counters", sampled({SMS: [0, 90, 0, 0]}, [(0, 1)])).notes == ()


def export(
    path: Path, events: list[tuple[int | None, int, Any]], source: str = "GpuMetrics"
) -> Path:
    """Write an export with generic events: timestamp, raw timestamp, what they count."""
    write_nsys(TraceBuilder().kernel("gemm", 0, 100).build(), path)
    fields = [{"Name": name} for name in ("SM Active", "DRAM Read Throughput")]
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(
            "CREATE TABLE GENERIC_EVENTS (rawTimestamp INT, timestamp INT, typeId INT, data TEXT)"
        )
        file.execute("CREATE TABLE GENERIC_EVENT_TYPES (typeId INT, sourceId INT, data TEXT)")
        file.execute("CREATE TABLE GENERIC_EVENT_SOURCES (sourceId INT, data TEXT)")
        told = json.dumps({"Name": source, "TimeSource": "SessionNs"})
        file.execute("INSERT INTO GENERIC_EVENT_SOURCES VALUES (9, ?)", (told,))
        file.execute(
            "INSERT INTO GENERIC_EVENT_TYPES VALUES (513, 9, ?)", (json.dumps({"Fields": fields}),)
        )
        file.executemany(
            "INSERT INTO GENERIC_EVENTS VALUES (?, ?, 513, ?)",
            [
                (raw, at, one if isinstance(one, str) else json.dumps(one))
                for at, raw, one in events
            ],
        )
    return path


def test_events_of_old_exports_are_samples(tmp_path: Path) -> None:
    both = {"SM Active": "50", "DRAM Read Throughput": "7"}
    path = export(
        tmp_path / "a.sqlite",
        [(None, -20, both), (30, 999, {"SM Active": 60}), (None, 60, "no JSON"), (None, 90, both)],
    )
    trace = open_trace(path)
    samples = trace.samples
    assert samples["start_ns"].tolist() == [-20, -20, 30, 30, 60, 60, 90, 90]
    assert list(samples["metric"][:2]) == ["SM Active", "DRAM Read Throughput"]
    assert set(samples["source"]) == {"gpu:1"}
    values = [50, 7, 60, np.nan, np.nan, np.nan, 50, 7]
    np.testing.assert_array_equal(samples["value"], values)
    known = outline(path)
    assert known.n_rows["samples"] == len(samples)
    assert known.trace.span == trace.span == TimeWindow(-20, 100)
    part = tmp_path / "part.sqlite"
    part.touch()
    cut(path, part, CutRequest(TimeWindow(60, 95)), no_progress)
    assert open_trace(part).samples["start_ns"].tolist() == [60, 60, 90, 90]
    inside = open_trace(path, ReadOptions(window=TimeWindow(0, 50))).samples
    assert inside["start_ns"].tolist() == [30, 30]


def test_other_generic_events_are_no_samples(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", [(None, 5, {"SM Active": "1"})], source="Ftrace")
    trace = open_trace(path)
    assert trace.samples.empty
    assert outline(path).n_rows["samples"] == 0


@pytest.mark.traces
def test_the_sums_of_a_real_file_are_those_of_sql(tmp_path: Path) -> None:
    packed = Path(require("traces")) / SHARED
    path = tmp_path / "a.sqlite"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    trace = open_trace(path)
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute(
            "SELECT key, count(*), sum(CAST(value AS INTEGER)), min(rawTimestamp), "
            "max(rawTimestamp) FROM GENERIC_EVENTS, json_each(data) GROUP BY key"
        ).fetchall()
    assert len(rows) == 22
    for metric, count, total, first, last in rows:
        own = trace.samples.take(trace.samples["metric"] == metric)
        assert (len(own), int(own["value"].sum())) == (count, total)
        assert (own["start_ns"][0], own["start_ns"][-1]) == (first, last)
    counters = {row["counter"]: row for row in run("counters", trace).table.rows()}
    # The engine is active while kernels and memsets run: two measurements of one thing.
    assert counters["GR Active"]["kernel_ratio"] == pytest.approx(1.05, abs=0.05)
    assert 0.8 < counters["SM Active"]["kernel_ratio"] < 0.9

"""What `info` tells: without reading events, and the same as a full read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.real_traces import ALL, KINETO
from tests.requirements import TRACES, require
from traceprof.errors import TraceprofError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.sqlite.database import Database
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.trace import Trace
from traceprof.session.contents import Contents, describe
from traceprof.session.opening import open_files, place_files
from traceprof.session.options import Align, Opening


def counted(table: Table, column: str, value: int) -> int:
    return int((table[column] == value).sum())


def check_against_full_read(paths: list[Path]) -> Contents:
    """Compare with what the tables hold when all of them are read."""
    found = describe(paths, Opening())
    trace: Trace = place_files(open_files(paths, Opening()), Opening()).merged()
    assert (found.span, found.info.warnings) == (trace.span, trace.info.warnings)
    assert (found.info.profiler, found.info.host) == (trace.info.profiler, trace.info.host)
    assert found.info.utc_epoch_ns == trace.info.utc_epoch_ns
    assert found.rows == {
        name: len(trace.table(name)) if name in trace.recorded else None
        for name, table in TABLES.items()
        if table.has_times and not table.detail_of
    }
    used = trace.devices.take(trace.devices["used"] == 1)
    assert found.n_unused_devices == len(trace.devices) - len(used)
    assert [(d.device, d.name, d.memory_bytes or ABSENT) for d in found.devices] == list(
        zip(used["device"], used["name"], used["memory_bytes"], strict=True)
    )
    for device in found.devices:
        assert device.kernels == counted(trace.kernels, "device", device.device)
        assert device.copies == counted(trace.copies, "device", device.device)
    assert {p.process for p in found.processes} == set(trace.processes["process"])
    for process in found.processes:
        for name in ("api_calls", "ranges", "host_ops"):
            assert getattr(process, name) == counted(trace.table(name), "process", process.process)
    named = zip(trace.environment["name"], trace.environment["value"], strict=True)
    assert found.environment == dict(named)
    return found


@pytest.mark.traces
@pytest.mark.parametrize("name", ALL)
def test_it_says_of_every_real_trace_what_a_full_read_says(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    require("traces")
    is_packed = name.endswith(".gz") and name not in KINETO
    found = check_against_full_read([real_trace(name) if is_packed else TRACES / name])
    assert [rank.rank for rank in found.ranks] == list(range(len(found.ranks)))


def written(path: Path, n_kernels: int, rank: int = 0) -> Path:
    builder = TraceBuilder().device(0, "H100").process(1, rank=rank).step(0, 100 * n_kernels, 0)
    for i in range(n_kernels):
        at = 100 * i
        builder.kernel(f"k{i % 3}", at + 20, at + 90, launched_ns=(at, at + 5))
        builder.copy("h2d", at + 90, at + 99, launched_ns=(at + 6, at + 9), n_bytes=5)
        builder.range("forward", at + 1, at + 8).host_op("aten::mm", at + 2, at + 7)
    write_nsys(builder.build(), path)
    return path


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the rows that become Python's, or columns."""
    counts: list[int] = []
    rows, columns, each = Database.rows, Database.read_columns, Database.rows_of_each

    def counting_rows(self: Database, *arguments: Any) -> list[tuple[Any, ...]]:
        found = rows(self, *arguments)
        is_schema = "sqlite_schema" in arguments[0] or "pragma" in arguments[0].lower()
        counts.append(0 if is_schema else len(found))
        return found

    def counting_columns(self: Database, *arguments: Any, **more: Any) -> dict[str, Any]:
        found = columns(self, *arguments, **more)
        counts.append(max(map(len, found.values()), default=0))
        return dict(found)

    def counting_each(self: Database, queries: Any) -> list[list[tuple[Any, ...]]]:
        found = each(self, queries)
        counts.extend(map(len, found))
        return found

    monkeypatch.setattr(Database, "rows", counting_rows)
    monkeypatch.setattr(Database, "read_columns", counting_columns)
    monkeypatch.setattr(Database, "rows_of_each", counting_each)
    return counts


def test_the_rows_that_it_reads_do_not_grow_with_the_events(
    tmp_path: Path, fetched: list[int]
) -> None:
    read = {}
    for n_kernels in (10, 3_000):
        fetched.clear()
        found = describe([written(tmp_path / f"{n_kernels}.sqlite", n_kernels)], Opening())
        assert (found.rows["kernels"], found.devices[0].copies) == (n_kernels, n_kernels)
        read[n_kernels] = sum(fetched)
    assert 0 < read[10] == read[3_000] < 150


def test_a_run_of_database_files_is_told_without_its_events(
    tmp_path: Path, fetched: list[int]
) -> None:
    paths = []
    for rank in range(2):
        builder = TraceBuilder().process(1, rank=rank, world_size=3).device(0)
        for i in range(500):
            builder.kernel("gemm", 10 * i, 10 * i + 5)
        path = tmp_path / f"some{rank}.sqlite"
        write_nsys(builder.build(), path)
        paths.append(path)
    fetched.clear()
    found = describe([tmp_path], Opening())
    assert sum(fetched) < 300
    assert [(d.device, d.kernels) for d in found.devices] == [
        (0, 500),
        (1, 500),
    ]
    assert [(r.rank, r.detected_by, Path(r.path)) for r in found.ranks] == [
        (0, "trace", paths[0]),
        (1, "trace", paths[1]),
    ]
    assert "no trace of 1 of the 3 ranks: 2" in found.info.warnings
    check_against_full_read([tmp_path])


def test_what_is_said_of_opening_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "rank0.sqlite", 3)
    written(tmp_path / "rank1.sqlite", 3, rank=1)
    described = describe([tmp_path], Opening(racks=["r1=node1"], cluster=cluster(tmp_path)))
    assert [(r.host, r.rack) for r in described.ranks] == [("node1", "r1"), ("node2", "")]
    for opening, message in (
        (Opening(rules=tmp_path / "none.toml"), "cannot read the file"),
        (Opening(gpu="abacus"), "abacus"),
        (Opening(racks=["r1"]), "expected RACK=HOSTS"),
    ):
        with pytest.raises(TraceprofError, match=message):
            describe([path], opening)
    assert describe([path], Opening(align=Align.NONE)).rows["kernels"] == 3


def cluster(folder: Path) -> Path:
    path = folder / "cluster.toml"
    path.write_text('[hosts]\nnode1 = "0"\nnode2 = "1"\n')
    return path

"""SQL about runs: the same numbers as the analyses, nothing that is secret, nothing invented."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import Plan, make_run
from tests.requirements import ROOT, TRACES, require
from traceprof.errors import NotRecordedError, UsageError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.tables import TABLES
from traceprof.query.engine import Limits
from traceprof.session import querying
from traceprof.session.querying import query, views
from traceprof.session.run import open_run

SECRET = "hunter2-and-more"
MS = 1_000_000
SHAPE = {"grid_x": 2, "grid_y": 1, "grid_z": 1, "block_x": 64, "block_y": 1, "block_z": 1}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder().process(1, rank=3, world_size=4).setting("token", SECRET)
    for step in range(4):
        start = (1 + step * 10) * MS
        builder.range(f"step {step}", start, start + 9 * MS)
        launched = (start, start + 10)
        builder.kernel("gemm", start + MS, start + 5 * MS, launched_ns=launched, shape=SHAPE)
        builder.kernel("gelu", start + 6 * MS, start + 7 * MS)
        builder.copy("h2d", start + 7 * MS, start + 8 * MS, n_bytes=1000, src_kind="pinned")
    write_nsys(builder.build(span=(0, 50 * MS)), tmp_path / "t.sqlite")
    return tmp_path / "t.sqlite"


def rows(path: Path, sql: str, window: str | None = None) -> list[tuple[Any, ...]]:
    return query(open_run([path]).within(window), sql).rows.rows


def test_views_are_the_tables_and_the_steps() -> None:
    assert [view.name for view in views()] == [*TABLES, "steps"]
    for name, view in zip(TABLES, views(), strict=False):
        assert set(TABLES[name].columns) <= set(view.names)
        assert len(set(view.names)) == len(view.names)


@pytest.mark.parametrize("view", [view.name for view in views()])
def test_every_view_has_its_columns(view: str, trace: Path) -> None:
    found = query(open_run([trace]), f"SELECT {view}.* FROM {view}, processes AS other").rows
    assert found.columns == next(one.names for one in views() if one.name == view)


def test_times_are_after_the_start_of_the_run_and_ranks_those_of_processes(trace: Path) -> None:
    sql = "SELECT start_ns, end_ns, duration_ns, rank FROM kernels ORDER BY start_ns LIMIT 2"
    assert rows(trace, sql) == [(MS, 5 * MS, 4 * MS, 3), (6 * MS, 7 * MS, MS, 3)]


def test_what_is_not_known_is_null(trace: Path) -> None:
    sql = "SELECT count(*), count(correlation), count(graph_node) FROM kernels"
    assert rows(trace, sql) == [(8, 4, 0)]


def test_what_was_not_recorded_is_said(tmp_path: Path) -> None:
    write_nsys(TraceBuilder().range("a", 0, 5).build(), tmp_path / "t.sqlite")
    run = open_run([tmp_path / "t.sqlite"])
    found = query(run, "SELECT count(*) FROM kernels, ranges")
    assert found.rows.rows == [(0,)]
    (remark,) = found.remarks
    assert "no kernels recorded" in remark
    for sql, lacking in (("FROM kernels, steps", "kernels"), ("FROM steps", "steps")):
        with pytest.raises(NotRecordedError, match=rf"no {lacking}"):
            query(run, f"SELECT count(*) {sql}")
    assert query(run, "SELECT 1 FROM processes").remarks == ()


def test_a_window_clips_and_shares_bytes_out(trace: Path) -> None:
    window = "3ms..7500us"
    sql = "SELECT name, start_ns, duration_ns FROM kernels"
    assert rows(trace, sql, window) == [("gemm", 3 * MS, 2 * MS), ("gelu", 6 * MS, MS)]
    assert rows(trace, "SELECT sum(n_bytes) FROM copies", window) == [(500,)]


def test_steps_are_those_of_show(trace: Path) -> None:
    shown = open_run([trace]).within("all").result("steps").table.to_frame()
    sql = "SELECT step, start_ns, end_ns - start_ns, duration_ns, rank FROM steps"
    assert rows(trace, sql) == [
        (one.step, one.at_ns, one.duration_ns, one.duration_ns, 3) for one in shown.itertuples()
    ]
    assert len(shown) == 4


def test_ranks_of_a_run_stand_in_one_view(tmp_path: Path) -> None:
    for member in make_run(Plan(n_ranks=2)):
        write_nsys(member.trace, tmp_path / f"rank{member.rank}.sqlite")
    run = open_run([tmp_path]).within("all")
    table = run.result("kernels").table.to_frame()
    found = query(run, "SELECT rank, count(*), sum(duration_ns) FROM kernels GROUP BY rank").rows
    assert [row[0] for row in found.rows] == [0, 1]
    assert sum(row[1] for row in found.rows) == table["count"].sum()
    assert sum(row[2] for row in found.rows) == table["total_ns"].sum()


def test_secrets_are_masked(trace: Path) -> None:
    with closing(sqlite3.connect(trace)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT)")
        connection.executemany(
            "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
            [
                ("PROCESS_0:ENVIRONMENT_VARIABLE", f"API_KEY={SECRET}"),
                ("PROCESS_0:COMMAND_LINE", f"python train.py --password={SECRET}"),
            ],
        )
    for view in views():
        found = query(
            open_run([trace]), f"SELECT {view.name}.* FROM {view.name}, processes AS other"
        )
        assert SECRET not in repr(found.rows.rows)


QUERIES = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "query.md").read_text("utf-8"), re.S)


def test_the_docs_have_queries() -> None:
    assert len(QUERIES) >= 10


@pytest.mark.parametrize("sql", QUERIES)
def test_queries_of_the_docs_answer(sql: str, trace: Path) -> None:
    assert rows(trace, sql)


def test_the_median_of_the_docs_is_one(trace: Path) -> None:
    (sql,) = (one for one in QUERIES if "p99_ns" in one)
    assert sorted(rows(trace, sql)) == [("gelu", 4, MS, MS), ("gemm", 4, 4 * MS, 4 * MS)]


@pytest.mark.parametrize(
    "name",
    [
        "nsys/2025.1-llm-17k-kernels.sqlite",
        "nvprof/v16-nccl-4gpu.nvvp",
        "kineto/resnet18-2ranks-v100",
    ],
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_sums_are_those_of_show_kernels(name: str, is_cut: bool) -> None:
    require("traces")
    run = open_run([TRACES / name])
    window = "all"
    if is_cut:
        ((first, last),) = query(run, "SELECT min(start_ns), max(end_ns) FROM kernels").rows.rows
        window = f"{first + (last - first) // 4}ns..{last - (last - first) // 4}ns"
    table = run.within(window).result("kernels").table.to_frame()
    shown = table.groupby("name", observed=True)[["total_ns", "count"]].sum()
    sql = "SELECT name, sum(duration_ns), count(*) FROM kernels GROUP BY name"
    asked = query(open_run([TRACES / name]).within(window), sql).rows.rows
    assert asked
    assert {row[0]: row[1:] for row in asked} == {
        str(kernel): (int(total), int(count))
        for kernel, total, count in shown.itertuples(name=None)
    }


def test_a_window_that_is_none_is_an_error(trace: Path) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        rows(trace, "SELECT 1 FROM kernels", "nonsense")


SPACES = "replace(printf('%999d', 1) || printf('%999d', 1), ' ', printf('%400d', 1))"
OTHERS = "replace(printf('%999d', 1), ' ', printf('%080d', 1))"
NESTED = ", ".join(f"t{n} AS (SELECT a.x FROM t{n - 1} a, t{n - 1} b)" for n in range(1, 40))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT printf('%.*c', 2000000000, 'x')",  # a loop in one call of one function
        f"SELECT trim({SPACES}, {OTHERS} || ' ')",
        "SELECT count(*) FROM ranges a, ranges b, ranges c, ranges d, ranges e, ranges f, ranges g,"
        " ranges h, ranges i, ranges j, ranges k, ranges l, ranges m, ranges n, ranges o, ranges p"
        " WHERE a.name || p.name = 'x'",
    ],
)
def test_a_query_is_stopped_in_the_middle_of_a_call(sql: str, trace: Path) -> None:
    with pytest.raises(UsageError, match=r"stopped after 0\.1 s"):
        query(open_run([trace]), sql, Limits(seconds=0.1))


def test_a_statement_that_takes_for_ever_to_prepare_is_stopped(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(querying, "_PREPARING_S", 5.0)
    sql = f"WITH t0(x) AS (SELECT 1), {NESTED} SELECT count(*) FROM t39"
    with pytest.raises(UsageError, match=r"stopped|memory"):
        query(open_run([trace]), sql, Limits(seconds=0.1))

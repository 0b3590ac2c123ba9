"""Generated exports: what was planted is found, in the layout that nsys writes."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from scripts.generate_nsys import Job, Planted, generate
from scripts.nsys_export.samples import BYTES_PER_S, GPU_MEMORY_BYTES
from tests.requirements import TRACES, require
from traceprof.cli import app

EVENTS = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)
STRAGGLER = 1
RANKS = 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Planted]:
    folder = tmp_path_factory.mktemp("generated") / "run"
    return folder, generate(folder, 2000, Job(n_ranks=2, straggler=STRAGGLER))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Planted]:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    return folder, generate(folder, 500, Job(n_ranks=RANKS), samples_per_s=100)


def table(run: Path, name: str) -> pd.DataFrame:
    printed = CliRunner().invoke(app, ["show", name, str(run), "--window", "all", "--csv"])
    assert printed.exit_code == 0, printed.output
    return pd.read_csv(io.StringIO(printed.stdout))


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


def test_every_kernel_is_found(run: tuple[Path, Planted]) -> None:
    folder, planted = run
    assert abs(planted.kernels - 2000) < 100
    assert table(folder, "kernels")["count"].sum() == 2 * planted.kernels


def test_every_step_is_found(run: tuple[Path, Planted]) -> None:
    folder, planted = run
    steps = table(folder, "steps")
    assert steps.groupby("rank").size().tolist() == [planted.steps] * 2
    assert steps["step"].max() == planted.steps - 1


def test_copies_have_their_bytes(run: tuple[Path, Planted]) -> None:
    folder, planted = run
    found = table(folder, "copies").groupby("direction")[["count", "size_bytes"]].sum()
    assert found["count"].to_dict() == {name: 2 * n for name, n in planted.copies.items()}
    assert found["size_bytes"].to_dict() == {
        name: 2 * n for name, n in planted.copied_bytes.items()
    }


def test_ranks_meet_in_every_collective(run: tuple[Path, Planted]) -> None:
    folder, planted = run
    shared = table(folder, "shared")
    assert len(shared) == planted.collectives
    assert (shared["ranks"] == 2).all()
    assert shared["spread_ns"].max() < 2000


def test_the_straggler_is_named(run: tuple[Path, Planted]) -> None:
    stragglers = table(run[0], "stragglers")
    named = stragglers[stragglers["is_straggler"]]
    assert named[["rank", "phase"]].to_numpy().tolist() == [[STRAGGLER, "backward"]]


def test_one_file_holds_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "all.sqlite"
    planted = generate(path, 500, Job(n_ranks=2))
    sql = "SELECT count(*), count(DISTINCT correlationId) FROM {} GROUP BY globalPid"
    n_kernels = planted.kernels
    assert rows(path, sql.format(EVENTS[0])) == [(n_kernels, n_kernels)] * 2


def test_the_same_options_give_the_same_events(tmp_path: Path) -> None:
    files = [tmp_path / "a.sqlite", tmp_path / "b.sqlite"]
    for path in files:
        generate(path, 500, Job(n_ranks=2), seed=3)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_without_a_recorder_it_is_a_plain_export(run: tuple[Path, Planted]) -> None:
    folder, planted = run
    sql = "SELECT name FROM sqlite_master WHERE name LIKE 'TRACEPROF%'"
    assert rows(folder / "rank0.sqlite", sql) == []
    assert planted.operators == 0


def test_operators_of_a_recording_are_found(recording: tuple[Path, Planted]) -> None:
    folder, planted = recording
    operators = table(folder, "operators")
    assert planted.operators > 0
    assert operators["count"].sum() == RANKS * planted.operators
    assert (operators["source"] == "cpu_op").all()


def test_counters_of_a_recording_grow_as_planted(recording: tuple[Path, Planted]) -> None:
    traffic = table(recording[0], "network")
    by_kind = traffic.assign(kind=traffic["source"].str.partition(":")[0]).groupby(["kind", "link"])
    rate = by_kind["rate_bytes_per_s"].agg(["count", "min", "max"])
    planted = {
        ("gpu", "nvlink"): (RANKS, "nvlink"),
        ("gpu", "pcie"): (RANKS, "pcie"),
        ("nic", "network"): (1, "nic"),
        ("process", "tcp"): (RANKS, "tcp"),
        ("rdma", "network"): (RANKS, "rdma"),
    }
    assert rate["count"].to_dict() == {kind: 2 * n for kind, (n, _) in planted.items()}
    for kind, (_, name) in planted.items():
        assert rate.loc[kind].to_numpy()[1:] == pytest.approx(BYTES_PER_S[name], rel=1e-5), kind


def test_memory_of_a_recording_is_that_planted(recording: tuple[Path, Planted]) -> None:
    memory = table(recording[0], "memory")
    devices = memory[memory["metric"] == "memory_used_bytes"]
    assert devices["source"].tolist() == ["gpu:0", "gpu:1"]
    assert (devices["peak_bytes"] == GPU_MEMORY_BYTES).all()


@pytest.mark.traces
def test_columns_are_those_of_a_genuine_export(run: tuple[Path, Planted]) -> None:
    require("traces")
    genuine = TRACES / "nsys" / "2026.2-2gpu-nccl-before.sqlite"
    layout = "SELECT name, type, \"notnull\" FROM pragma_table_info('{}')"
    for name in EVENTS:
        with closing(sqlite3.connect(f"file:{genuine}?immutable=1", uri=True)) as database:
            wanted = database.execute(layout.format(name)).fetchall()
        assert rows(run[0] / "rank0.sqlite", layout.format(name)) == wanted, name


def test_files_are_the_same_however_many_processes_write_them(tmp_path: Path) -> None:
    job = Job(3, straggler=1)
    alone = generate(tmp_path / "alone", 300, job)
    assert generate(tmp_path / "shared", 300, job, n_jobs=2) == alone
    for path in (tmp_path / "alone").iterdir():
        assert (tmp_path / "shared" / path.name).read_bytes() == path.read_bytes()

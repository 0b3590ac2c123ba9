"""Runs of many ranks of few events: what is printed fits a screen, and names the slow rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.formats.kineto_file import complete, kernel, write
from traceprof.cli import app
from traceprof.model.trace import merge_similar_warnings

N_RANKS, SLOW, N_STEPS = 64, 17, 6
US = 1000
KERNEL_NS = 200 * US
STEP_NS = 2000 * US
BROKEN = (3, 30, 55)
runner = CliRunner()


def events_of(rank: int) -> list[dict[str, Any]]:
    """Return steps of five kernels and an all-reduce, which ends on all ranks at once."""
    events: list[dict[str, Any]] = []
    taken = KERNEL_NS * 8 // 5 if rank == SLOW else KERNEL_NS
    for step in range(N_STEPS):
        begin, numbers = STEP_NS * (step + 1), range(6 * step + 1, 6 * step + 7)
        place = {"pid": 100 + rank, "tid": 100 + rank}
        for n, correlation in enumerate(numbers):
            at = begin + n * 8 * US
            args = {"correlation": correlation}
            events.append(
                complete("cuda_runtime", "cudaLaunchKernel", at, at + 4 * US, args=args, **place)
            )
        starts = [begin + 20 * US + n * taken for n in range(6)]
        events += [
            kernel(f"gemm_{n}", start, start + taken, correlation=correlation)
            for n, (start, correlation) in enumerate(zip(starts[:5], numbers, strict=False))
        ]
        told: dict[str, Any] = {
            "Collective name": "allreduce",
            "dtype": "Float",
            "Process Group Name": "0",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "Group size": N_RANKS,
            "stream": 20,
            "correlation": numbers[5],
        }
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        events.append(kernel(name, starts[5], begin + 1900 * US, **told))
        name = f"ProfilerStep#{step}"
        events.append(complete("user_annotation", name, begin, begin + STEP_NS - US, **place))
    return events


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    folder.mkdir()
    for rank in range(N_RANKS):
        write(
            folder / f"rank{rank}.json",
            events_of(rank),
            distributedInfo={"backend": "nccl", "rank": rank, "world_size": N_RANKS},
            baseTimeNanoseconds=1_700_000_000_000_000_000,
        )
    return folder


@pytest.fixture(scope="module")
def broken(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same run; of its files one in twenty is cut off, empty, or something else."""
    folder = tmp_path_factory.mktemp("broken") / "run"
    folder.mkdir()
    for path in whole.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    cut, empty, other = (folder / f"rank{rank}.json" for rank in BROKEN)
    cut.write_bytes(cut.read_bytes()[:3000])
    empty.write_bytes(b"")
    other.write_text("no JSON", encoding="utf-8")
    return folder


def printed(*command: str | Path) -> str:
    done = runner.invoke(app, list(map(str, command)), env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_page_names_the_slow_rank(whole: Path) -> None:
    page = printed(whole)
    assert f"Straggler: the other ranks wait for rank {SLOW}" in page
    assert "warning:" not in page


def test_the_page_of_a_run_with_broken_files_names_it(broken: Path) -> None:
    page = printed(broken, "--allow-missing")
    assert f"Straggler: the other ranks wait for rank {SLOW}" in page
    told = " ".join(page.split())
    assert f"traceprof ignored a file: {broken}/rank30.json: empty file" in told
    assert "rank 3: the file is truncated after" in told
    assert "no trace of 2 of the 64 ranks: 30, 55" in told


def test_broken_files_are_an_error_unless_they_may_be_missing(broken: Path) -> None:
    done = runner.invoke(app, [str(broken)])
    assert done.exit_code == 3
    assert "use --allow-missing" in done.stderr


def test_info_prints_a_screen_of_many_ranks(whole: Path) -> None:
    lines = printed("info", whole).splitlines()
    assert len(lines) <= 40
    assert sum("56 more" in line for line in lines) == 3  # GPUs, processes, files
    assert len(printed("info", whole, "--rows", "2").splitlines()) == len(lines) - 3 * 6
    every = printed("info", whole, "--rows", "64")
    assert all(f"rank{rank}.json" in every for rank in range(N_RANKS))
    assert "more GPU" not in every
    contents = json.loads(printed("info", whole, "--json"))
    assert [row["rank"] for row in contents["ranks"]] == list(range(N_RANKS))
    assert contents["rows"]["kernels"] == N_RANKS * N_STEPS * 6


def test_info_says_what_many_files_say_alike_once(whole: Path, tmp_path: Path) -> None:
    for rank in range(12):
        text = (whole / f"rank{rank}.json").read_bytes()
        (tmp_path / f"rank{rank}.json").write_bytes(text[: 3000 + 200 * rank])
    lines = printed("info", tmp_path).splitlines()
    told = [line for line in lines if "is truncated after" in line]
    assert len(told) == 1
    assert "rank 0:" in told[0]
    assert "(and 11 similar warnings: `traceprof info --json` lists all)" in " ".join(lines)
    warnings = json.loads(printed("info", tmp_path, "--json"))["info"]["warnings"]
    assert sum("is truncated after" in text for text in warnings) == 12


def test_of_many_warnings_that_differ_in_numbers_alone_the_first_is_told() -> None:
    few = [f"rank {rank}: lost {rank * 7} events" for rank in range(8)]
    assert merge_similar_warnings([*few, "other"]) == (*few, "other")
    many = [f"rank {rank}: lost {rank * 7} events" for rank in range(1234)]
    first = "rank 0: lost 0 events (and 1233 similar warnings: `traceprof info --json` lists all)"
    assert merge_similar_warnings(["other", *many]) == ("other", first)

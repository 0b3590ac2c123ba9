"""``traceprof timeline`` as a user runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.requirements import ROOT, require

pytestmark = pytest.mark.traces
TRACE = "nsys/2026.2-2gpu-nccl-before.sqlite"


def test_it_writes_one_file_and_says_so(
    run_traceprof: Run, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    trace = real_trace(TRACE)
    before = trace.read_bytes()
    done = run_traceprof("timeline", trace, "-o", "out.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "wrote out.html (2." in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html"]
    assert (tmp_path / "out.html").read_text("utf-8").startswith("<!doctype html>")
    assert trace.read_bytes() == before


def test_it_never_overwrites_unasked(
    run_traceprof: Run, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "out.html").write_text("mine")
    done = run_traceprof("timeline", real_trace(TRACE), "-o", "out.html")
    assert done.returncode == 2
    assert (tmp_path / "out.html").read_text() == "mine"
    done = run_traceprof("timeline", real_trace(TRACE), "-o", "out.html", "--force")
    assert done.returncode == 0
    assert (tmp_path / "out.html").stat().st_size > 1_000_000


def test_a_window_is_named_on_the_page(
    run_traceprof: Run, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    done = run_traceprof("timeline", real_trace(TRACE), "-o", "w.html", "--window", "10ms..20ms")
    assert done.returncode == 0, done.stderr
    assert "window 10ms..20ms" in (tmp_path / "w.html").read_text("utf-8")


def test_without_a_name_the_file_is_called_after_the_trace(
    run_traceprof: Run, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    trace = real_trace(TRACE)
    assert run_traceprof("timeline", trace).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"{trace.stem}.timeline.html"]


def test_hosts_and_racks_that_the_user_names_are_read(run_traceprof: Run, tmp_path: Path) -> None:
    run = Path(require("traces"), "kineto") / "resnet18-2ranks-v100"
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('[hosts]\nleft = "0"\nright = "1"\n[racks]\nr1 = "elsewhere"\n')
    done = run_traceprof("timeline", run, "--cluster", cluster, "-o", "a.html")
    assert done.returncode == 2
    assert "left, right" in done.stderr
    done = run_traceprof("timeline", run, "--cluster", cluster, "--rack", "r1=left", "-o", "a.html")
    assert done.returncode == 0, done.stderr


def test_two_runs_come_side_by_side(run_traceprof: Run, tmp_path: Path) -> None:
    before, after = (ROOT / "fixtures" / "traces" / f"{n}.sqlite.gz" for n in ("before", "after"))
    done = run_traceprof("timeline", before, after, "-o", "two.html", "--window", "step:3..4")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "two.html").read_text("utf-8")
    assert "<h1>before.sqlite.gz vs after.sqlite.gz</h1>" in page
    assert "A: before.sqlite.gz, 2 steps" in page
    done = run_traceprof("timeline", before, "vs", after, "-o", "two.png")
    assert done.returncode == 2
    assert "two timelines side by side need an HTML page" in done.stderr


def test_two_ranks_of_a_run_come_side_by_side(run_traceprof: Run, tmp_path: Path) -> None:
    run = Path(require("traces"), "kineto") / "resnet18-2ranks-v100"
    done = run_traceprof("timeline", run, "--ranks", "0,1", "-o", "ranks.html")
    assert done.returncode == 0, done.stderr
    assert f"{run.name}: rank 0 vs rank 1" in (tmp_path / "ranks.html").read_text("utf-8")
    for ranks, said in (("0,7", "no rank 7 in the trace; ranks: 0, 1"), ("0", "different ranks")):
        done = run_traceprof("timeline", run, "--ranks", ranks, "-o", "no.html")
        assert (done.returncode, said in done.stderr) == (2, True)

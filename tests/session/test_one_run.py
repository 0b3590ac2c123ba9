"""Files that were named one by one: ranks of one run, or several runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from traceprof.errors import UsageError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.ranks import RankTrace, RunFiles
from traceprof.model.tables import ABSENT
from traceprof.model.trace import TraceInfo
from traceprof.session.opening import check_one_run, open_files
from traceprof.session.options import Opening
from traceprof.session.run import open_run

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, rank: int = ABSENT, epoch_ns: int | None = None) -> Path:
        builder = TraceBuilder().process(1, rank=rank).kernel("gemm", 0, 1_000)
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        write_nsys(builder.build(info=TraceInfo(utc_epoch_ns=epoch_ns)), path)
        return path

    return write


def opened(*paths: Path) -> RunFiles:
    return open_files(paths, Opening())


def test_files_that_nothing_numbers_are_refused(write: Write) -> None:
    before, after = write("before.sqlite"), write("after.sqlite")
    with pytest.raises(UsageError) as caught:
        opened(before, after)
    assert str(caught.value) == (
        "before.sqlite and after.sqlite look like two runs, not like ranks of one (no file says "
        f"its rank): `traceprof view {before} {after}` shows them side by side, "
        "`traceprof compare` what differs; a manifest makes them one run"
    )
    with pytest.raises(UsageError, match=r"b.sqlite, c.sqlite and a.sqlite look like several runs"):
        opened(write("b.sqlite"), write("c.sqlite"), write("a.sqlite"))
    with pytest.raises(UsageError, match=r"trace1.sqlite and trace7.sqlite look like two runs"):
        opened(write("trace1.sqlite"), write("trace7.sqlite"))
    with pytest.raises(UsageError, match="look like two runs"):
        open_run([before, after]).breakdown()


def test_files_of_equal_names_are_told_apart_by_their_folders(write: Write) -> None:
    one, two = write("one/trace.sqlite"), write("two/trace.sqlite")
    with pytest.raises(UsageError, match=f"{one} and {two} look like two runs"):
        opened(one, two)


def test_ranks_by_number_or_by_what_they_say_are_a_run(write: Write) -> None:
    assert opened(write("node0.sqlite"), write("node1.sqlite")).ranks == (0, 1)
    assert opened(write("x.sqlite", rank=1), write("y.sqlite", rank=0)).ranks == (0, 1)
    assert opened(write("rank3.sqlite"), write("rank5.sqlite")).ranks == (3, 5)


def test_two_files_of_one_rank_are_two_runs(write: Write) -> None:
    with pytest.raises(UsageError, match=r"\(b.sqlite has the same rank as another file\)"):
        opened(write("a.sqlite", rank=0), write("b.sqlite", rank=0))


def test_ranks_that_ran_at_different_times_are_two_runs(write: Write) -> None:
    hour_ns = 3_600_000_000_000
    early, late = write("a.sqlite", 0, hour_ns), write("b.sqlite", 1, 2 * hour_ns)
    with pytest.raises(UsageError, match="not recorded at the same time"):
        opened(early, late)
    assert opened(early, write("c.sqlite", 1, hour_ns + 500)).ranks == (0, 1)
    assert opened(early, write("d.sqlite", 1)).ranks == (0, 1)


def manifest(path: Path, label: str, *files: Path) -> None:
    ranks = [{"rank": rank, "file": file.name} for rank, file in enumerate(files)]
    path.write_text(json.dumps({"traceprof_run": 1, "label": label, "ranks": ranks}))


def test_manifests_beside_the_files_say_which_run_they_belong_to(write: Write) -> None:
    one, two = write("one/rank0.sqlite"), write("two/rank1.sqlite")
    manifest(one.with_name("run.json"), "monday", one)
    manifest(two.with_name("run.json"), "tuesday", two)
    with pytest.raises(UsageError, match=r"\(they belong to monday, tuesday\)"):
        opened(one, two)
    both = write("both/x.sqlite"), write("both/y.sqlite")
    manifest(both[0].with_name("run.json"), "wednesday", *both)
    assert opened(*both).ranks == (0, 1)


@pytest.mark.parametrize("name", ["TRACEPROF_RUN", "env.TRACEPROF_RUN", "SLURM_JOB_ID"])
def test_the_environment_says_which_run_they_belong_to(write: Write, name: str) -> None:
    paths = write("rank0.sqlite"), write("rank1.sqlite")

    def run(*labels: str) -> RunFiles:
        members = [
            RankTrace(TraceBuilder().setting(name, label).build(info=TraceInfo(path=str(path))), i)
            for i, (path, label) in enumerate(zip(paths, labels, strict=True))
        ]
        return RunFiles("r", tuple(members))

    check_one_run(paths, run("a", "a"))
    with pytest.raises(UsageError, match=r"\(they belong to a, b\)"):
        check_one_run(paths, run("a", "b"))


def test_what_says_itself_that_it_is_a_run_is_taken_as_one(write: Write, tmp_path: Path) -> None:
    before, after = write("before.sqlite"), write("after.sqlite")
    for paths in ([tmp_path], [tmp_path / "*.sqlite"], [str(tmp_path), before]):
        run = open_files(paths, Opening())
        assert run.ranks == (0, 1)
        assert any("no file says its rank" in warning for warning in run.warnings)
    told = replace(Opening(), is_one_run=True)
    assert open_files([before, after], told).ranks == (0, 1)
    manifest(tmp_path / "run.json", "night", before, after)
    assert opened(tmp_path / "run.json").ranks == (0, 1)


def test_one_file_twice_is_one_file(write: Write) -> None:
    path = write("a.sqlite")
    assert len(opened(path, path)) == 1

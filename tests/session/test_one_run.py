"""Files, folders and patterns that were named: ranks of one run, or several runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from traceprof.errors import SeveralRunsError, UsageError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.ranks import RunFiles
from traceprof.model.tables import ABSENT
from traceprof.model.trace import TraceInfo
from traceprof.session.opening import open_files
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
        "before.sqlite and after.sqlite look like two runs, not like ranks of one run (no file "
        f"contains its rank); run `traceprof view {before} {after}` to see them side by side, or "
        "`traceprof compare` for the differences; use --run or a manifest to treat them as one run"
    )
    with pytest.raises(UsageError, match=r"b.sqlite, c.sqlite and a.sqlite look like several runs"):
        opened(write("b.sqlite"), write("c.sqlite"), write("a.sqlite"))
    with pytest.raises(UsageError, match=r"trace1.sqlite and trace7.sqlite look like two runs"):
        opened(write("trace1.sqlite"), write("trace7.sqlite"))
    with pytest.raises(UsageError, match="look like two runs"):
        open_run([before, after]).of_ranks()


def test_files_of_equal_names_are_told_apart_by_their_folders(write: Write) -> None:
    one, two = write("one/trace.sqlite"), write("two/trace.sqlite")
    with pytest.raises(UsageError, match=f"{one} and {two} look like two runs"):
        opened(one, two)


def test_ranks_by_number_or_by_what_they_say_are_a_run(write: Write) -> None:
    assert opened(write("node0.sqlite"), write("node1.sqlite")).ranks == (0, 1)
    assert opened(write("x.sqlite", rank=1), write("y.sqlite", rank=0)).ranks == (0, 1)
    assert opened(write("rank3.sqlite"), write("rank5.sqlite")).ranks == (3, 5)


def test_two_files_of_one_rank_are_two_runs(write: Write) -> None:
    with pytest.raises(UsageError, match=r"\(a.sqlite and b.sqlite both have rank 0\)"):
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
def test_the_environment_says_which_run_they_belong_to(tmp_path: Path, name: str) -> None:
    def write(file: str, told: str) -> Path:
        trace = TraceBuilder().kernel("gemm", 0, 10).setting(name, told).build()
        write_nsys(trace, tmp_path / file)
        return tmp_path / file

    one, alike, other = write("x0.sqlite", "a"), write("x1.sqlite", "a"), write("x2.sqlite", "b")
    assert opened(one, alike).ranks == (0, 1)
    with pytest.raises(UsageError, match=r"\(they belong to a, b\)"):
        opened(one, other)


def test_a_folder_and_a_pattern_are_judged_as_their_files_are(write: Write, tmp_path: Path) -> None:
    before, after = write("before.sqlite"), write("after.sqlite")
    named: list[list[Path]] = [
        [tmp_path],
        [tmp_path / "*.sqlite"],
        [tmp_path, before],
        [before, after],
    ]
    for paths in named:
        with pytest.raises(
            SeveralRunsError, match=r"two runs.*\(no file contains its rank\)"
        ) as caught:
            open_files(paths, Opening())
        assert sorted(map(list, caught.value.runs)) == [[after], [before]]
    told = replace(Opening(), is_one_run=True)
    for paths in ([before, after], [tmp_path]):
        run = open_files(paths, told)
        assert run.ranks == (0, 1)
        assert any("no file contains its rank" in warning for warning in run.warnings)
    manifest(tmp_path / "run.json", "night", before, after)
    assert opened(tmp_path / "run.json").ranks == (0, 1)
    assert opened(tmp_path).ranks == (0, 1)


def test_what_nothing_numbers_was_recorded_together_in_one_folder(
    write: Write, tmp_path: Path
) -> None:
    at_ns = 3_600_000_000_000
    one, other = write("a/x.sqlite", epoch_ns=at_ns), write("a/y.sqlite", epoch_ns=at_ns + 500)
    assert opened(tmp_path / "a").ranks == opened(one, other).ranks == (0, 1)
    elsewhere = write("b/x.sqlite", epoch_ns=at_ns)
    with pytest.raises(SeveralRunsError, match="no file contains its rank"):
        opened(one, elsewhere)
    write("a/z.sqlite", epoch_ns=at_ns + 5_000)
    with pytest.raises(SeveralRunsError, match="not recorded at the same time") as caught:
        opened(tmp_path / "a")
    assert [len(run) for run in caught.value.runs] == [2, 1]


def test_ranks_that_say_who_they_are_may_have_clocks_that_differ(
    write: Write, tmp_path: Path
) -> None:
    second_ns = 1_000_000_000
    write("a/rank0.sqlite", 0, 1_000 * second_ns)
    write("b/rank1.sqlite", 1, 1_050 * second_ns)
    assert opened(tmp_path / "a", tmp_path / "b").ranks == opened(tmp_path).ranks == (0, 1)
    write("b/rank1.sqlite", 1, 1_070 * second_ns)
    with pytest.raises(SeveralRunsError, match="not recorded at the same time"):
        opened(tmp_path)


def test_the_message_names_what_belongs_together(write: Write, tmp_path: Path) -> None:
    for name in ("new", "old"):
        for rank in (0, 1):
            write(f"{name}_rank{rank}.sqlite", rank)
    with pytest.raises(SeveralRunsError) as caught:
        opened(tmp_path)
    assert caught.value.runs == [(tmp_path / f"{name}_rank*.sqlite",) for name in ("new", "old")]
    assert f"`traceprof view '{tmp_path}/new_rank*.sqlite' '{tmp_path}/old_" in str(caught.value)
    assert "(new_rank0.sqlite and old_rank0.sqlite both have rank 0)" in str(caught.value)
    for own in caught.value.runs:
        assert open_files(own, Opening()).ranks == (0, 1)
    for path in tmp_path.iterdir():
        path.unlink()
    for name, rank in (("aa", 0), ("ab", 1), ("ac", 0)):
        write(f"{name}_{rank}.sqlite", rank)
    with pytest.raises(SeveralRunsError, match="move the files of each run into a separate folder"):
        opened(tmp_path)


def test_folders_below_are_named_as_wholes(write: Write, tmp_path: Path) -> None:
    for name in ("one", "two"):
        for rank in (0, 1):
            write(f"{name}/rank{rank}.sqlite", rank)
    for paths in ([tmp_path], [tmp_path / "two", tmp_path / "one"]):
        with pytest.raises(SeveralRunsError) as caught:
            open_files(paths, Opening())
        folders = [own for (own,) in caught.value.runs]
        assert folders == (paths if len(paths) > 1 else [tmp_path / "one", tmp_path / "two"])
    for rank in (2, 3):  # the ranks of another node
        (tmp_path / "two" / f"rank{rank - 2}.sqlite").unlink()
        write(f"two/rank{rank}.sqlite", rank)
    assert opened(tmp_path / "one", tmp_path / "two").ranks == (0, 1, 2, 3)


def test_a_folder_without_a_manifest_beside_one_with_is_not_passed_over(
    write: Write, tmp_path: Path
) -> None:
    manifest(tmp_path / "a.json", "monday", write("one/rank0.sqlite"))
    (tmp_path / "a.json").rename(tmp_path / "one" / "a.json")
    write("two/rank0.sqlite")
    with pytest.raises(SeveralRunsError, match=r"rank0.sqlite both have rank 0") as caught:
        opened(tmp_path)
    assert caught.value.runs == [(tmp_path / "one",), (tmp_path / "two",)]
    write("one/others.sqlite")  # what no manifest lists beside those that it does is no rank
    assert opened(tmp_path / "one").ranks == (0,)


def test_runs_of_equal_labels_in_folders_of_their_own(write: Write, tmp_path: Path) -> None:
    """The label is the name of the folder where nobody names a run; a job has a name."""

    def put(folder: str, ranks: list[int], **more: str) -> Path:
        listed = [{"rank": n, "file": write(f"{folder}/rank{n}.sqlite").name} for n in ranks]
        text = json.dumps({"traceprof_run": 1, "label": "run", "ranks": listed, **more})
        (tmp_path / folder / "manifest.json").write_text(text)
        return tmp_path / folder

    first, second, third = put("a", [0, 1]), put("b", [0, 1]), put("c", [2])
    with pytest.raises(SeveralRunsError, match="both have rank 0"):
        opened(first, second)
    assert opened(first, third).ranks == (0, 1, 2)
    first, second = put("a", [0], job="mine"), put("b", [1], job="mine")
    assert opened(first, second).ranks == (0, 1)


def test_one_file_twice_is_one_file(write: Write) -> None:
    path = write("a.sqlite")
    assert len(opened(path, path)) == 1

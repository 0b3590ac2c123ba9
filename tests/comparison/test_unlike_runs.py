"""Runs that are no repeats: independent and synchronized ones, and ranks of one job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.comparison.scaling.sized_runs import sized
from traceprof.comparison import Comparison
from traceprof.comparison.comparing import compare
from traceprof.comparison.scaling.compared import scaling
from traceprof.model.summary import SourceFile, Summary
from traceprof.render.formatting import sentences


def named(run: Summary, name: str, *ranks: int) -> Summary:
    return replace(run, name=name, sources=tuple(SourceFile(f"{r}", ranks=(r,)) for r in ranks))


def told(found: Comparison) -> str:
    return " ".join(sentences(found.warnings))


ALONE = named(sized(2, 198, collectives=0, batch=64), "alone", 0, 1)
TOGETHER = named(sized(2, 150, collectives=9, batch=64), "together", 0, 1)
AGAIN = named(sized(2, 152, collectives=9, batch=64), "again", 0, 1)
ONE = named(sized(1, 100, collectives=0, batch=32), "one", 0)


def test_independent_runs_are_no_repeats_of_synchronized_ones() -> None:
    found = scaling([ONE, ALONE, TOGETHER, AGAIN])
    rows = {row["group"]: row for row in found.results["scaling"].table.rows() if row["group"]}
    of_two = [row for row in found.results["scaling"].table.rows() if row["devices_count"] == 2]
    assert {row["ranks"]: (row["samples_per_s"], row["runs_count"]) for row in of_two} == {
        "independent": (198, 1),
        "synchronized": (151, 2),
    }
    assert set(rows) == {"independent", "synchronized"}
    # One device is the base of both.
    efficiencies = {row["ranks"]: row["efficiency_ratio"] for row in of_two}
    assert efficiencies == pytest.approx({"independent": 0.99, "synchronized": 0.755})


def test_both_kinds_are_groups_without_a_run_on_one_device() -> None:
    rows = scaling([ALONE, TOGETHER]).results["scaling"].table.rows()
    assert {row["group"]: row["samples_per_s"] for row in rows} == {
        "independent": 198,
        "synchronized": 150,
    }


def test_repeats_alone_make_no_groups() -> None:
    found = scaling([ONE, TOGETHER, AGAIN])
    assert {row["group"] for row in found.results["scaling"].table.rows()} == {""}


def test_the_difference_may_be_ignored() -> None:
    found = scaling([ONE, ALONE, TOGETHER], ignored=["synchronization"])
    (row,) = [row for row in found.results["scaling"].table.rows() if row["devices_count"] == 2]
    assert (row["samples_per_s"], row["runs_count"]) == (174, 2)


def test_what_labels_tell_apart_needs_no_other() -> None:
    runs = [ONE, ALONE.labelled(mode="a"), TOGETHER.labelled(mode="b")]
    groups = {row["group"] for row in scaling(runs).results["scaling"].table.rows()}
    assert len(groups) == 2


def test_comparing_says_which_sides_are_unlike() -> None:
    assert "independent in alone, synchronized in together" in told(compare([ALONE], [TOGETHER]))
    both = told(compare([ALONE, TOGETHER], [AGAIN]))
    assert "One side has both kinds" in both
    assert "not comparable" not in told(compare([TOGETHER], [AGAIN]))


def test_ranks_of_one_job_are_neither_runs_nor_repeats() -> None:
    job = [named(sized(2, 150, collectives=9, batch=64), f"rank{r}", r) for r in range(2)]
    expected = "rank0, rank1 are ranks of one job"
    assert expected in told(scaling([ONE, *job]))
    assert expected in told(compare(job[:1], job[1:]))
    # Repeats that were recorded on the same rank are repeats.
    same = [named(own, f"run{i}", 0) for i, own in enumerate(job)]
    assert "ranks of one job" not in told(scaling([ONE, *same]))

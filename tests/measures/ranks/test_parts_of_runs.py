"""A run of several files gives what the same run in one file gives, in any window."""

from __future__ import annotations

import pickle

import pandas as pd
import pytest

from tests.measures.generated_run import MS, Plan, make_ranks_of
from tests.measures.ranks.test_pipeline import one_f_one_b
from tests.reading import said
from tests.running import run
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles, of_process
from traceprof.model.results import Result
from traceprof.model.timing import TimeWindow
from traceprof.model.topology import Topology

NAMES = ["ranks", "stragglers", "rank-steps", "shared", "hosts", "racks", "peers", "pipeline"]


def late_host() -> Ranks:
    """Eight ranks on four hosts in two racks; the second rack is late from the third step on."""
    plan = Plan(
        n_ranks=8,
        n_steps=6,
        hosts=[f"n{rank // 2}" for rank in range(8)],
        extra_ns={(rank, "backward"): 40 * MS for rank in range(4, 8)},
        since_step=2,
        first_step={1: 2},
        numbered=False,
    )
    cluster = Topology().with_rack("r0=n[0-1]").with_rack("r1=n[2-3]")
    return cluster.placed(make_ranks_of(plan))


def two_pipelines() -> Ranks:
    """Six ranks in files of their own, three stages each."""
    both = one_f_one_b([[3, 1, 5], [2, 0, 4]], n_micro=4)
    parts = tuple(RankTrace(of_process(both, rank + 1), rank, rank) for rank in range(6))
    return place_run(RunFiles("pipelines", parts, 6), [0] * 6)


def assert_equal(left: Result, right: Result) -> None:
    assert dict(left.scalars) == pytest.approx(dict(right.scalars))
    assert said(left) == said(right)
    for name in left.tables:
        pd.testing.assert_frame_equal(
            left.to_frame(name), right.to_frame(name), check_dtype=False, rtol=1e-12
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window", [None, TimeWindow(1300 * MS, 1900 * MS)])
def test_a_run_of_several_files_is_what_the_merged_trace_is(
    name: str, window: TimeWindow | None
) -> None:
    ranks = late_host() if name not in ("peers", "pipeline") else two_pipelines()
    if window is not None and name in ("peers", "pipeline"):
        window = TimeWindow(20, 700)
    cut = ranks if window is None else ranks.within(window)
    assert_equal(run(name, cut), run(name, Ranks.of(cut.merged())))


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_of_a_row_are_its_own(name: str) -> None:
    for ranks in (late_host(), two_pipelines()):
        result = run(name, ranks) if name not in ("hosts", "racks") else run(name, late_host())
        for spec in result.spec.tables:
            table = result.to_frame(spec.name)
            keys = [key for key in spec.keys if key in table]
            assert not table.duplicated(keys).any() or table.empty


def test_what_is_known_of_ranks_goes_to_other_processes() -> None:
    ranks = late_host()
    for name in NAMES:
        run(name, ranks)
    again = pickle.loads(pickle.dumps(ranks))
    assert again.facts.keys() == ranks.facts.keys()

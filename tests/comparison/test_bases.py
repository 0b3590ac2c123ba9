"""Both sides of a comparison have one base, or the comparison says where they differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.comparison.generated import MS, Program, of_steps
from tests.real_traces import ALL, H100
from tests.requirements import TRACES, require
from traceprof.comparison import Comparison
from traceprof.comparison.comparing import compare, compare_named
from traceprof.comparison.statistics import MIN_CHANGE_RATIO
from traceprof.comparison.summary.summarize import summarize
from traceprof.model.ranks import Ranks
from traceprof.model.summary import Summary
from traceprof.render.formatting import sentences
from traceprof.session.run import run_of


def said(found: Comparison) -> str:
    return " ".join(sentences((*found.warnings, *found.verdict, *found.notes)))


def of_pattern(name: str, n: int = 40) -> Summary:
    """Return a run without steps, of which iterations of 10 ms are known."""
    builder = TraceBuilder()
    for i in range(n):
        for k, kernel in enumerate(("gemm", "relu", "softmax", "add")):
            start = 10 * MS * i + 2 * MS * k
            builder.kernel(kernel, start, start + MS)
    return summarize(run_of(Ranks.of(builder.build())), name=name)


def of_window(name: str, text: str) -> Summary:
    return summarize(run_of(Ranks.of(Program().trace(name))).within(text), name=name)


@pytest.mark.parametrize("new", [of_pattern("other"), of_window("other", "0ms..350ms")])
def test_steps_and_what_is_no_step_are_not_compared(new: Summary) -> None:
    found = compare([Program().summary("base")], [new])
    assert "The units differ: times are for a step in base, a" in said(found)
    assert "difference" in found.missing
    assert not {"difference", "kernels", "copies", "phases"} & {*found.results}
    assert "window on the GPU" not in said(found)


@pytest.mark.parametrize("make", [of_pattern, lambda name: of_window(name, "0ms..350ms")])
def test_two_of_one_kind_have_one_base(make: object) -> None:
    assert callable(make)
    found = compare([make("base")], [make("new")])
    assert "The units differ" not in said(found)
    assert "difference" in found.results


def test_other_counts_of_warmup_are_said() -> None:
    base, new = Program().summary("base"), Program(seed=3, noise_ratio=0.01).summary("new")
    assert "excluded warm-up steps differs" not in said(compare([base], [new]))
    steps = new.table("steps")
    warm = np.arange(len(steps)) < 4
    steps = steps.assign(is_warmup=warm, is_counted=~warm)
    new = replace(new, tables={**new.tables, "steps": steps})
    told = said(compare([base], [new]))
    assert "excluded warm-up steps differs: 0 of base, 4 of new" in told


def test_a_step_time_without_the_profiler_is_not_compared_in_silence() -> None:
    base, new = Program().summary("base"), Program(seed=3, noise_ratio=0.01).summary("new")
    rows = new.table("measures")
    last = rows.take(rows["measure"] == "steps_per_s")
    free = last.assign(measure=["unprofiled_count"], value=[7.0], unit=["count"])
    tables = {**new.tables, "measures": type(rows).stacked([rows, free])}
    told = said(compare([base], [replace(new, tables=tables)]))
    assert "The step time of new is from unprofiled steps. The step time of base includes" in told
    assert "unprofiled steps" not in said(compare([base], [new]))


@pytest.mark.parametrize("factor", [2.0, 0.4, 5.0])
@pytest.mark.parametrize("n", [6, 12, 40])
def test_nothing_twice_as_long_is_no_difference(factor: float, n: int) -> None:
    """However much the steps differ among themselves."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        base, new = (
            of_steps(name, ns * np.exp(random.normal(0, 1.5, n)))
            for name, ns in (("base", 1e8), ("new", 1e8 * factor))
        )
        for row in compare([base], [new]).results["judged"].table.rows():
            if row["verdict"] == "no difference shown":
                assert 0.5 < 1 + row["change_ratio"] < 2
                assert -0.5 < row["low_ratio"] <= row["high_ratio"] < 1


def test_few_long_steps_are_part_of_the_mean_that_is_compared() -> None:
    """The typical step is as long, the mean step is not: the verdict is about the mean."""
    random = np.random.default_rng(4)
    base = of_steps("base", 1e8 * np.exp(random.normal(0, 0.001, 40)))
    lengths = 1e8 * np.exp(random.normal(0, 0.001, 40))
    lengths[::10] *= 30
    new = of_steps("new", lengths)
    rates = {"measure": ["step_period_ns"], "unit": ["ns"], "scope": ["rank"], "better": ["lower"]}
    sides = []
    for run, value in ((base, 1e8), (new, float(lengths.mean()))):
        measures = type(run.table("steps"))({**rates, "value": [value]})
        sides.append(replace(run, tables={**run.tables, "measures": measures}))
    (row,) = compare([sides[0]], [sides[1]]).results["judged"].table.rows()
    assert row["change_ratio"] == pytest.approx(2.9, rel=0.01)
    assert row["verdict"] != "no difference shown"


@pytest.mark.parametrize("n_runs", [1, 3])
def test_a_change_of_nothing_would_not_have_been_seen(n_runs: int) -> None:
    sides = [
        [of_steps(f"{name}{i}", np.full(40, 1e8)) for i in range(n_runs)] for name in ("a", "b")
    ]
    told = said(compare(*sides))
    assert "is not significant" in told
    assert "changes of 0.0%" not in told


def is_of_itself(found: Comparison) -> None:
    """Check that a recording does not differ from itself."""
    for row in found.results["judged"].table.rows() if "judged" in found.results else ():
        assert row["verdict"] == "no difference shown"
        assert (row["change_ratio"], row["low_ratio"], row["high_ratio"]) == (0, 0, 0)
        assert row["smallest_ratio"] == MIN_CHANGE_RATIO
    if "difference" in found.results:
        assert not found.results["difference"].table["difference_ns"].any()
    assert "The units differ" not in said(found)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 41])
def test_a_recording_does_not_differ_from_itself(n: int) -> None:
    base = Program(n_steps=n, noise_ratio=0.3, seed=n).summary("base")
    found = compare([base], [base])
    assert len(found.results["judged"].table.rows()) == 2
    assert len(found.results["difference"].table.rows()) == (4 if n == 1 else 8)
    is_of_itself(found)


@pytest.mark.traces
@pytest.mark.parametrize("name", [one for one in (*ALL, *H100) if one != "nvprof/zero-kernels.sql"])
def test_a_real_recording_does_not_differ_from_itself(name: str) -> None:
    require("traces")
    is_of_itself(compare_named([TRACES / name], [TRACES / name]))

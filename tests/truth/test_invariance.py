"""What must not change an answer: when a recording began, the order of rows, numbers of streams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from tests.truth.judged import result, run_named
from tests.truth.scenarios import SCENARIOS, Scenario
from traceprof.measures.steps.find import decide_steps
from traceprof.model.ranks import Ranks
from traceprof.model.tables import TABLES, make_table
from traceprof.model.trace import Trace, make_trace
from traceprof.session.run import Run, run_of

Change = Callable[[str, pd.DataFrame], pd.DataFrame]

TIMES = ("start_ns", "end_ns")


def seen(of: Trace) -> Run:
    return run_of(decide_steps(Ranks.of(of)))


def rebuilt(trace: Trace, change: Change) -> Trace:
    tables = {}
    for name in TABLES:
        if len(trace.table(name).to_frame()):
            changed = change(name, trace.table(name).to_frame())
            tables[name] = make_table(name, {column: changed[column] for column in changed})
    return make_trace(trace.info, tables, trace.recorded)


def shifted(name: str, table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{c: table[c] + 7_000_000_123 for c in TIMES if c in table})


def shuffled(name: str, table: pd.DataFrame) -> pd.DataFrame:
    return table.sample(frac=1, random_state=5).reset_index(drop=True)


def renumbered(name: str, table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(stream=91 - table["stream"]) if "stream" in table else table


def doubled(name: str, table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{c: table[c] * 2 for c in TIMES if c in table})


def told(run: Run) -> list[tuple[object, ...]]:
    """Return the findings with their savings, and the five parts."""
    findings = run.result("findings").table.to_frame()
    savings = [] if findings.empty else findings[["rule", "saving_ns", "claimed_ratio"]]
    parts = run.result("breakdown").to_frame("total").iloc[0].dropna()
    return [tuple(row) for row in np.asarray(savings).tolist()] + [tuple(parts.tolist())]


@pytest.mark.parametrize("change", [shifted, shuffled, renumbered])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_nothing_depends_on(scenario: Scenario, change: Change) -> None:
    trace, *others = scenario.ranks.parts
    if not others:
        assert told(seen(rebuilt(trace, change))) == told(run_named(scenario.name))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_twice_as_slow_is_twice_as_long(scenario: Scenario) -> None:
    trace, *others = scenario.ranks.parts
    if others:
        return
    once, twice = run_named(scenario.name), seen(rebuilt(trace, doubled))
    first, second = (
        run.within("all").result("breakdown").table.to_frame() for run in (once, twice)
    )
    numbers = [name for name in first if str(name).endswith("_ns")]
    assert (second[numbers] == 2 * first[numbers]).all(axis=None)
    kernels, slower = (
        run.within("all").result("kernels").table.to_frame() for run in (once, twice)
    )
    by_name = slower.set_index("name")["total_ns"]
    assert (by_name == 2 * kernels.set_index("name")["total_ns"].reindex(by_name.index)).all()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_savings_are_no_more_than_what_could_be_saved(scenario: Scenario) -> None:
    findings = result(scenario.name, "findings")
    assert findings
    table, compute = findings.table.to_frame(), findings.scalars["compute_ratio"]
    if table.empty:
        return
    # What slow steps and checkpoints cost is a part of the mean step with these.
    of_slow = table["claim_kind"].str.contains("slow steps|periodic costs")
    # The growth of steps that get slower may be compute.
    of_compute = table["claim_kind"].str.contains("compute|slower steps")
    assert table.loc[~of_compute & ~of_slow, "saving_ratio"].sum() <= 1 - compute + 1e-9
    assert table.loc[~of_slow, "saving_ratio"].sum() <= 1 + 1e-9
    assert (table["saving_ratio"] <= table["claimed_ratio"] + 1e-9).all()

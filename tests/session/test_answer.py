"""Answers as documents: what was found, what is missing, and what to make of it."""

from __future__ import annotations

import pytest

from tests.analysis.generated_run import MS, Plan, make_run
from tests.builders import TraceBuilder
from traceprof.errors import NotRecordedError, UsageError
from traceprof.model.merge import place_run
from traceprof.model.ranks import Ranks
from traceprof.render.formatting import sentences
from traceprof.session.answer import PAGE, answer, page
from traceprof.session.run import Run, run_of


def four_steps() -> Run:
    builder = TraceBuilder()
    for i, end in enumerate((10, 20, 30, 50)):
        builder.step((0, 10, 20, 30)[i], end, i).kernel("gemm", end - 9, end - 1)
    return run_of(Ranks.of(builder.build()))


def test_what_cannot_be_answered_is_missing_with_the_reason() -> None:
    run = four_steps().within("all")
    found = answer(run, ["kernels", "ops"])
    assert list(found.results) == ["kernels"]
    assert found.missing["ops"].startswith("no host_ops recorded: record with")
    with pytest.raises(NotRecordedError, match="no host_ops recorded"):
        answer(run, ["kernels", "ops"], strict=True)
    with pytest.raises(UsageError, match="no analysis 'brekdown'"):
        answer(run, ["brekdown"])
    with pytest.raises(UsageError, match="not understood"):
        answer(run.within("nonsense"), ["kernels"])


def test_a_document_knows_its_window_and_its_run() -> None:
    found = answer(four_steps().within("step:1..2"), ["breakdown"])
    assert (found.selection.label, found.selection.window.duration_ns) == ("step:1..2", 20)
    assert (found.span.start_ns, found.span.end_ns) == (0, 50)
    assert found.ns_after_start(found.selection.window.start_ns) == 10
    assert "kernels" in found.recorded
    assert found.verdict is None
    assert found.ranks == {}


def test_processes_of_a_run_have_their_ranks() -> None:
    run = run_of(place_run(make_run(Plan(n_ranks=3)))).within("all")
    assert answer(run, ["steps"]).ranks == {100: 0, 101: 1, 102: 2}


def test_the_page_says_where_the_time_goes_and_what_to_do_next() -> None:
    found = page(four_steps().within("all"))
    assert set(found.results) | set(found.missing) == set(PAGE)
    assert found.verdict is not None
    where, steadiness = sentences(found.verdict.sentences)
    assert where == "A step of 10 ns goes to 64.0 % compute, 36.0 % idle."
    assert steadiness.startswith("4 steps, uneven: 80 % of them take 10 ns to ")
    assert found.verdict.next_command.startswith("traceprof show ")


def test_the_page_of_a_run_is_about_all_its_ranks() -> None:
    plan = Plan(n_ranks=2, extra_ns={(1, "forward"): 100 * MS})
    found = page(run_of(place_run(make_run(plan))))
    assert found.verdict is not None
    where, steadiness = sentences(found.verdict.sentences)
    assert "(mean of 2 devices)" in where
    assert "10 steps on 2 ranks" in steadiness
    assert found.verdict.next_command.startswith("traceprof show stragglers TRACE")

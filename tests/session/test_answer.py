"""Answers as documents: what was found, what is missing, and what to make of it."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import MS, Plan, make_run
from tests.requirements import ROOT
from traceprof.errors import NotRecordedError, UsageError
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks
from traceprof.render.formatting import sentences
from traceprof.render.registry import render
from traceprof.session.answer import PAGE, answer, page
from traceprof.session.run import Run, run_of

SCHEMA = ROOT / "docs" / "schema" / "analysis-2.json"


def four_steps() -> Run:
    builder = TraceBuilder()
    for i, end in enumerate((10, 20, 30, 50)):
        builder.step((0, 10, 20, 30)[i], end, i).kernel("gemm", end - 9, end - 1)
    return run_of(Ranks.of(builder.build()))


def test_what_cannot_be_answered_is_missing_with_the_reason() -> None:
    run = four_steps().within("all")
    found = answer(run, ["kernels", "operators"])
    assert list(found.results) == ["kernels"]
    assert found.missing["operators"].startswith("no host ops recorded: record with")
    with pytest.raises(NotRecordedError, match="no host ops recorded"):
        answer(run, ["kernels", "operators"], strict=True)
    with pytest.raises(UsageError, match="unknown analysis 'brekdown'"):
        answer(run, ["brekdown"])
    with pytest.raises(UsageError, match="invalid window"):
        answer(run.within("nonsense"), ["kernels"])


def test_what_sums_up_a_recording_is_about_all_of_it_where_no_steps_are_known() -> None:
    """The copy lies before the pattern, so that the main loop leaves it out."""
    builder = TraceBuilder().copy("h2d", 0, 900)
    for i in range(60):
        builder.kernel(f"k{i % 5}", 1000 + 10 * i, 1000 + 10 * i + 9)
    run = run_of(Ranks.of(builder.build()))
    found = answer(run, ["summary"])
    names = found.results["summary"].table["name"].tolist()
    assert names[0] == "[CUDA memcpy HtoD]"
    assert (found.selection.label, sentences(found.selection.notes)) == (
        "all",
        ["no steps are known: all that was recorded"],
    )
    assert answer(run, ["summary", "kernels"]).selection.label == "main loop"
    assert answer(run.within("active"), ["summary"]).selection.label == "active"
    assert answer(four_steps(), ["summary"]).selection.label == "steady"


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
    found = page(four_steps())
    assert set(found.results) | set(found.missing) == set(PAGE)
    assert found.verdict is not None
    steadiness, where = sentences(found.verdict.sentences)
    assert where == "GPU time per step of 10 ns: compute 80.0%, idle 20.0%."
    assert steadiness == "Step time 10 ns (100,000,000 steps/s): mean of 3 steps."
    assert found.verdict.next_command.startswith("traceprof show ")
    # Of a window of times, that slow step with it, shares are of all of it: 32 of 50.
    everything = page(four_steps().within("all"))
    assert everything.verdict is not None
    steadiness, where = sentences(everything.verdict.sentences)
    assert steadiness == "Step time 10 ns (100,000,000 steps/s): mean of 3 steps."
    assert where == "GPU time in the window: compute 64.0%, idle 36.0%."


def test_steps_that_fill_no_window_have_no_shares() -> None:
    """Three steps and then work that nobody calls steps: shares are of the window."""
    builder = TraceBuilder()
    for i in range(3):
        builder.range(f"warmup_step_{i}", 100 * i, 100 * i + 100)
        builder.step(100 * i, 100 * i + 100, i).kernel("gemm", 100 * i, 100 * i + 90)
    builder.kernel("gemm", 300, 10_000)
    found = page(run_of(Ranks.of(builder.build())).within("all"))
    assert found.verdict is not None
    assert sentences(found.verdict.sentences)[-1].startswith("GPU time in the window: ")
    assert "of a step" not in render("text", found)


def once_and_more(one_time_ns: int) -> Run:
    """A call that blocks the launch of a kernel once, between kernels of 1 ms."""
    builder, at = TraceBuilder(), 0
    for i in range(6):
        launch = at + (one_time_ns if i == 3 else 100_000)
        if i == 3:
            builder.api_call("cudaStreamCreateWithFlags", at, launch)
        builder.kernel("gemm", launch + 9_000, launch + MS, launched_ns=(launch, launch + 5_000))
        at = launch + MS
    return run_of(Ranks.of(builder.build()))


def test_what_is_paid_once_stands_where_its_time_puts_it() -> None:
    mostly = page(once_and_more(100 * MS))
    assert mostly.verdict is not None
    assert mostly.verdict.bound_by == "mostly one-time costs"
    first = mostly.results["findings"].table.to_frame().iloc[0]
    assert (first["kind"], first["is_minor"]) == ("once", False)
    hardly = page(once_and_more(2 * MS))
    assert hardly.verdict is not None
    assert hardly.verdict.bound_by.startswith("GPU-bound")


def test_a_slow_step_is_explained_next() -> None:
    builder, at = TraceBuilder(), 0
    for i in range(8):
        length = (50 if i == 5 else 10) * MS
        builder.step(at, at + length, i)
        start = at + length - 9 * MS
        builder.kernel("gemm", start, at + length, launched_ns=(start - 9_000, start - 5_000))
        at += length
    found = page(run_of(Ranks.of(builder.build())))
    assert found.verdict is not None
    assert found.results["findings"].table.to_frame().iloc[0]["rule"] == "slow_steps"
    assert found.verdict.next_command == "traceprof explain TRACE step:5"
    assert found.verdict.periodic == ()


def test_what_takes_much_time_is_not_called_fine() -> None:
    found = page(once_and_more(100 * MS))
    assert found.verdict is not None
    assert found.verdict.parts["idle"] > 0.9
    assert "idle time" not in found.verdict.fine


def test_only_what_occurred_is_fine() -> None:
    found = page(once_and_more(100 * MS)).verdict
    assert found is not None
    nothing = {
        "transfers",
        "pinned memory",
        "interconnect bandwidth",
        "communication",
        "collective sizes",
        "graph tracing",
    }
    assert not nothing & {*found.fine}
    builder = TraceBuilder()
    for i in range(10):
        builder.step(i * MS, (i + 1) * MS, i)
        builder.api_call("cudaLaunchKernel", i * MS, i * MS + 5_000, correlation=i + 1)
    lost = page(run_of(Ranks.of(builder.build(recorded={"kernels", "copies"})))).verdict
    assert lost is not None
    assert lost.fine == ()


def test_the_page_says_what_runs_on_what_and_why_this_window() -> None:
    builder = TraceBuilder().device(0, "H100").device(1, "H100")
    for i in range(4):
        at = 1000 * i
        builder.step(at, at + 1000, i).range("Optimizer.step#Adam.step", at + 900, at + 950)
        builder.range("backward", at + 100, at + 800)
        for device in (0, 1):
            builder.kernel("gemm", at, at + 900, device=device)
    found = page(run_of(Ranks.of(builder.build())))
    assert found.hardware == {"H100": 2}
    assert found.workload is not None
    assert found.workload.kind == "training"
    assert found.selection.reason is not None
    assert sentences([found.selection.reason])[0].startswith("Steps 0–3")
    document = json.loads(render("json", found))
    assert document["hardware"] == [{"name": "H100", "count": 2}]
    assert document["workload"]["kind"] == "training"
    assert document["window"]["reason"] == document["window"]["notes"][0]
    assert [column["name"] for column in document["one_off"]["columns"]][:2] == ["process", "kind"]
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(document)


def test_the_page_of_a_run_is_about_all_its_ranks() -> None:
    plan = Plan(n_ranks=2, extra_ns={(1, "forward"): 100 * MS})
    found = page(run_of(place_run(make_run(plan))))
    assert found.verdict is not None
    steadiness, where = sentences(found.verdict.sentences)
    assert "(mean of 2 GPUs)" in where
    assert "mean of 20 steps on 2 ranks" in steadiness
    assert found.verdict.next_command.startswith("traceprof show ranks --by straggler TRACE")

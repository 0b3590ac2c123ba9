"""What a page says of steps that are not all alike: each sentence has one base."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from traceprof.model.ranks import Ranks
from traceprof.render.formatting import note_text, saving_words
from traceprof.session.answer import Document, page
from traceprof.session.run import run_of
from traceprof.units import format_ratio, sentence_duration

MS = 1_000_000
COMPUTE = 107 * MS


def page_of(*lengths_ms: int) -> Document:
    """Return the page of steps that take so long, and compute for 107 ms each."""
    builder, now = TraceBuilder(), 0
    for number, length in enumerate(lengths_ms):
        end = now + length * MS
        builder.step(now, end, number).kernel("gemm", end - COMPUTE, end)
        now = end
    return page(run_of(Ranks.of(builder.build())))


def said(document: Document) -> list[str]:
    assert document.verdict is not None
    return [note_text(note) for note in document.verdict.sentences]


def lines_of(document: Document) -> list[str]:
    """Return the remarks on the window."""
    return [note_text(note) for note in document.selection.notes]


_WORDS = {
    "a step": "per step",
    "an iteration": "per iteration",
    "the mean step with slow steps": "per step including slow steps",
}


def assert_savings_have_their_base(document: Document, bases: set[str]) -> None:
    found = document.results["findings"].table
    assert set(found["base"]) == bases
    for row in found.rows():
        assert row["saving_ns"] <= row["base_ns"]
        words = saving_words(row)
        assert f" of {sentence_duration(row['base_ns'])} {_WORDS[row['base']]} (" in words
        assert f"({format_ratio(row['saving_ns'] / row['base_ns'])}" in words


def assert_idle_adds_up(document: Document) -> None:
    """The causes of idle time are shares of the same step as the parts; 1% may be left out."""
    assert document.verdict is not None
    idle, parts = document.verdict.idle, document.verdict.parts
    assert parts["idle"] - 0.01 <= sum(idle.values()) <= parts["idle"] + 1e-9
    assert sum(parts.values()) == pytest.approx(1)


def test_steps_that_alternate_are_said_to_and_their_mean_is_told() -> None:
    document = page_of(*[132, 1400] * 12)
    pace, kinds, where = said(document)
    assert pace.startswith("Step time 766 ms (1.31 steps/s): mean of 24 steps, ")
    assert pace.endswith("80% of them 132 ms–1.40 s.")
    assert kinds == (
        "Every other step takes 1.40 s, and the others take 132 ms (medians); the longer ones "
        "have 1.27 s more idle time."
    )
    assert where == "GPU time per step of 766 ms: idle 86.0%, compute 14.0%."
    assert document.verdict is not None
    # Every step computes the same: the share of the mean step is that time.
    assert document.verdict.parts["compute"] * 766 * MS == pytest.approx(COMPUTE)
    assert_idle_adds_up(document)
    assert_savings_have_their_base(document, {"a step"})
    assert set(document.results["findings"].table["base_ns"]) == {766 * MS}


def test_steps_of_two_kinds_in_no_order_are_counted() -> None:
    lengths = [132, 132, 1400, 132, 1400, 1400, 132, 132, 132, 1400, 132, 1400, 132, 132]
    kinds = said(page_of(*lengths))[1]
    assert kinds.startswith("There are two kinds of steps: 5 take 1.40 s and 9 take 132 ms")


def test_pauses_are_not_in_a_step_and_the_slow_steps_name_their_base() -> None:
    document = page_of(*([130] * 12 + [60_000]) * 3)
    pace, where = said(document)
    assert pace == "Step time 130 ms (7.69 steps/s): mean of 36 steps."
    assert where == "GPU time per step of 130 ms: compute 82.3%, idle 17.7%."
    assert "Steps excluded from the measures: 3 slow (180 s)." in lines_of(document)
    assert_idle_adds_up(document)
    assert_savings_have_their_base(document, {"a step", "the mean step with slow steps"})
    found = {row["rule"]: row for row in document.results["findings"].table.rows()}
    mean_ns = (36 * 130 + 3 * 60_000) * MS / 39
    slow = found.pop("slow_steps")
    assert slow["base_ns"] == pytest.approx(mean_ns)
    assert slow["saving_ns"] == pytest.approx(mean_ns - 130 * MS)
    assert {row["base_ns"] for row in found.values()} == {130 * MS}


def test_a_few_steps_that_are_slow_are_not_in_the_step_that_all_is_of() -> None:
    document = page_of(*([130] * 9 + [150]) * 3)
    assert said(document) == [
        "Step time 130 ms (7.69 steps/s): mean of 27 steps.",
        "GPU time per step of 130 ms: compute 82.3%, idle 17.7%.",
    ]
    assert document.verdict is not None
    assert "slow steps" not in document.verdict.idle
    assert_idle_adds_up(document)
    assert_savings_have_their_base(document, {"a step", "the mean step with slow steps"})


def test_lengths_that_would_be_printed_alike_are_said_once() -> None:
    assert said(page_of(*[130] * 12))[0] == "Step time 130 ms (7.69 steps/s): mean of 12 steps."
    assert said(page_of(*[130] * 5))[0] == "Step time 130 ms (7.69 steps/s): mean of 5 steps."


def test_a_rate_is_of_the_step_that_is_told() -> None:
    for lengths in ((200, 130, 130, 142, 142, 142, 142), [*([130] * 12 + [60_000]) * 3]):
        document = page_of(*lengths)
        scalars = document.results["steps"].scalars
        assert scalars["steps_per_s"] * scalars["step_ns"] == pytest.approx(1e9)
    pace, where = said(page_of(200, 130, 130, 142, 142, 142, 142))
    assert pace == "Step time 138 ms (7.25 steps/s): mean of 6 steps, 130–142 ms."
    assert where.startswith("GPU time per step of 138 ms: ")


def test_a_first_step_that_the_recording_cuts_does_not_count() -> None:
    """The host runs ahead: when the device began with the first step is not certain."""
    builder = TraceBuilder()
    for i, start in enumerate((20, 100, 200, 300)):
        at = 50 * MS * i
        builder.step(at, at + 50 * MS, i)
        builder.kernel("gemm", start * MS, (100 + 100 * i) * MS, launched_ns=(at, at + 5_000))
    document = page(run_of(Ranks.of(builder.build())))
    pace, _ = said(document)
    assert pace == "Step time 100 ms (10 steps/s): mean of 3 steps."
    assert document.selection.window.start_ns == 100 * MS


def test_a_round_rate_is_written_as_others() -> None:
    builder = TraceBuilder()
    for i in range(8):
        at = i * MS // 4
        builder.step(at, at + MS // 4, i).batch(at, 5)
        builder.kernel("gemm", at, at + MS // 5, launched_ns=(at, at + 5_000))
    pace = said(page(run_of(Ranks.of(builder.build()))))[0]
    assert "(4,000 steps/s, 20,000 samples/s)" in pace


def test_iterations_of_which_one_is_far_longer_are_told_by_their_mean() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(40):
        builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", now, now + MS)
        now += MS + (500 * MS if number == 20 else MS // 20)
    document = page(run_of(Ranks.of(builder.build())))
    pace, where = said(document)
    assert pace == "Iteration time 13.9 ms: mean of 39 iterations."
    assert where.startswith("GPU time per iteration of 13.9 ms: idle 92.8%")
    assert_savings_have_their_base(document, {"an iteration"})


def test_of_few_steps_no_percentiles_are_told() -> None:
    pace, where = said(page_of(497, 157, 156, 158))
    assert pace == "Step time 157 ms (6.37 steps/s): mean of 3 steps, 156–158 ms."
    assert where.startswith("GPU time per step of 157 ms: compute 68.2%")

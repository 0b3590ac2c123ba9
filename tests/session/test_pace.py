"""What a page says of steps that are not all alike: each sentence has one base."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from traceprof.model.ranks import Ranks
from traceprof.render.formatting import note_text, saving_words
from traceprof.session.answer import Document, page
from traceprof.session.run import run_of
from traceprof.units import format_duration, format_ratio

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


def assert_savings_have_their_base(document: Document, bases: set[str]) -> None:
    found = document.results["findings"].table
    assert set(found["base"]) == bases
    for row in found.rows():
        assert row["saving_ns"] <= row["base_ns"]
        words = saving_words(row)
        assert f" of {row['base']} of {format_duration(row['base_ns'])} (" in words
        assert f"({format_ratio(row['saving_ns'] / row['base_ns'])}" in words


def test_steps_that_alternate_are_said_to_and_their_mean_is_told() -> None:
    document = page_of(*[132, 1400] * 12)
    kinds, _, where = said(document)
    assert kinds.startswith(
        "Every other step takes 1.400 s, the others 132.0 ms (medians): 1.268 s"
    )
    assert kinds.endswith("more idle time.")
    assert where.startswith("The mean step of 7")
    assert document.verdict is not None
    mean_ns = document.results["steps"].scalars["mean_ns"]
    # Every step computes the same: the share of the mean step is that time.
    assert document.verdict.parts["compute"] * mean_ns == pytest.approx(COMPUTE, rel=0.01)
    assert_savings_have_their_base(document, {"the mean step"})
    assert set(document.results["findings"].table["base_ns"]) == {mean_ns}


def test_steps_of_two_kinds_in_no_order_are_counted() -> None:
    lengths = [132, 132, 1400, 132, 1400, 1400, 132, 132, 132, 1400, 132, 1400, 132, 132]
    assert said(page_of(*lengths))[0].startswith("Steps are of two kinds: 5 of 1.400 s, 9 of 132.0")


def test_pauses_are_not_in_a_typical_step() -> None:
    document = page_of(*([130] * 12 + [60_000]) * 3)
    pace, where = said(document)
    assert where == "A typical step of 130.0 ms is 82.3 % compute, 17.7 % idle."
    assert "of them slow, by 9" in pace
    assert_savings_have_their_base(document, {"the mean step"})
    mean_ns = document.results["steps"].scalars["mean_ns"]
    assert set(document.results["findings"].table["base_ns"]) == {mean_ns}


def test_a_few_steps_that_are_slow_are_in_the_mean_that_all_is_of() -> None:
    document = page_of(*([130] * 9 + [150]) * 3)
    assert said(document)[-1].startswith("The mean step of 132.0 ms is 81.1 % compute")
    assert document.verdict is not None
    idle = document.verdict.idle
    assert sum(idle.values()) == pytest.approx(document.verdict.parts["idle"], abs=0.01)
    assert idle["slow steps"] == pytest.approx(2 / 132)
    assert_savings_have_their_base(document, {"the mean step"})


def test_lengths_that_would_be_printed_alike_are_said_once() -> None:
    assert said(page_of(*[130] * 12))[0] == "12 steps, steady: 80 % of them take 130.0 ms; " + (
        "7.692 steps/s."
    )
    assert said(page_of(*[130] * 5))[0] == "5 steps, steady: 130.0 ms; 7.692 steps/s."


def test_a_rate_that_is_not_of_the_step_that_is_told_says_so() -> None:
    pace, where = said(page_of(200, 130, 130, 142, 142, 142, 142))
    assert pace.endswith("; 7.246 steps/s on average.")
    assert where.startswith("A step of 142.0 ms (median) is ")
    # A typical step is told without the few that are far longer, which the rate holds, too.
    assert (
        "; 0.2112 steps/s on average; 3 of them slow"
        in said(page_of(*([130] * 12 + [60_000]) * 3))[0]
    )


def test_a_rate_says_which_step_it_leaves_out() -> None:
    """The host runs ahead: when the device began with the first step is not certain."""
    builder = TraceBuilder()
    for i, start in enumerate((20, 100, 200, 300)):
        at = 50 * MS * i
        builder.step(at, at + 50 * MS, i)
        builder.kernel("gemm", start * MS, (100 + 100 * i) * MS, launched_ns=(at, at + 5_000))
    pace, _ = said(page(run_of(Ranks.of(builder.build()))))
    assert pace.endswith("80.00 ms to 100.0 ms; 10 steps/s, the first step not counted.")


def test_a_round_rate_is_written_as_others() -> None:
    builder = TraceBuilder()
    for i in range(8):
        at = i * MS // 4
        builder.step(at, at + MS // 4, i).batch(at, 5)
        builder.kernel("gemm", at, at + MS // 5, launched_ns=(at, at + 5_000))
    assert "; 4 000 steps/s, 20 000 samples/s" in said(page(run_of(Ranks.of(builder.build()))))[0]


def test_iterations_of_which_one_is_far_longer_are_told_by_their_mean() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(40):
        builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", now, now + MS)
        now += MS + (500 * MS if number == 20 else MS // 20)
    where = said(page(run_of(Ranks.of(builder.build()))))[-1]
    assert where.startswith("The mean iteration of the repeating pattern, 13.87 ms, is 92.8 % idle")


def test_of_few_steps_no_percentiles_are_told() -> None:
    pace, where = said(page_of(497, 157, 156, 158))
    assert pace == "3 steps, steady: 156.0 ms to 158.0 ms; 6.369 steps/s."
    assert where.startswith("A step of 157.0 ms is 68.2 % compute")

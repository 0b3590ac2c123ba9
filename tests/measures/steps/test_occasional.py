"""What made a step longer that is meant to be done now and then."""

from __future__ import annotations

from tests.builders import TraceBuilder
from traceprof.measures.steps.costs import notes_on_occasions
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.ranks import Ranks
from traceprof.render.formatting import sentences

MS = 1_000_000


def loop(
    evaluated: set[int], length_ms: int = 6, wait_ms: int = 6, name: str = "evaluate", n: int = 12
) -> Ranks:
    """Steps of 10 ms; before some of them a range of ``length_ms``, in which the device waits.

    The device waits for ``wait_ms``: it may have work enough to hide a part of the range.
    """
    builder, at = TraceBuilder(), 0
    for i in range(n):
        if i in evaluated:
            builder.range(name, at, at + length_ms * MS)
            at += wait_ms * MS
        builder.step(at, at + 10 * MS, i)
        builder.kernel("gemm", at + MS, at + 10 * MS, launched_ns=(at + MS // 2, at + MS))
        at += 10 * MS
    return Ranks.of(builder.build())


def causes(ranks: Ranks) -> dict[int, str]:
    table = measured_steps(ranks).table.to_frame()
    found = table[table["excess_cause"] != ""]
    return dict(zip(found["step"].tolist(), found["excess_cause"].tolist(), strict=True))


def test_a_step_after_evaluation_is_explained_by_it() -> None:
    ranks = loop({4, 8})
    assert causes(ranks) == {4: "evaluation", 8: "evaluation"}
    steps = measured_steps(ranks)
    assert steps.table.to_frame().set_index("step")["excess_ns"].dropna().to_dict() == {
        4: 6 * MS,
        8: 6 * MS,
    }
    assert (steps.scalars["steady_count"], steps.scalars["max_ns"]) == (10, 10 * MS)
    # 12 steps: two of them take 16 ms.
    said = "Every 4 steps: evaluation, 6.00 ms each (9.1% of loop time)."
    assert sentences(notes_on_occasions(steps.table)) == [said]


def test_what_does_not_explain_half_of_a_slow_step_leaves_it_slow() -> None:
    ranks = loop({5}, length_ms=2, wait_ms=6)
    assert causes(ranks) == {}
    assert measured_steps(ranks).table.to_frame()["excess_ns"].tolist()[5] == 6 * MS


def test_what_costs_no_time_explains_nothing() -> None:
    assert causes(loop({4, 8}, length_ms=6, wait_ms=0)) == {}


def test_what_is_done_in_most_steps_belongs_to_them() -> None:
    assert causes(loop({1, 2, 3, 5, 6, 7, 9, 10})) == {}


def test_a_range_of_another_name_explains_nothing() -> None:
    assert causes(loop({5}, name="sleep")) == {}


def test_the_backward_pass_that_evaluates_functions_is_no_evaluation() -> None:
    autograd = "autograd::engine::evaluate_function: AddmmBackward0"
    assert causes(loop({4, 8}, name=autograd)) == {}
    assert causes(loop({4, 8}, name="trainer::evaluate_model")) == dict.fromkeys(
        (4, 8), "evaluation"
    )


def test_compiling_in_one_step_is_told_with_its_step() -> None:
    steps = measured_steps(loop({7}, length_ms=30, wait_ms=30, name="compile_fx"))
    (said,) = sentences(notes_on_occasions(steps.table))
    assert said == "Step 7: compiling, 30.0 ms (20.0% of loop time)."

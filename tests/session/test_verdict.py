"""The bottleneck in a word or two."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.measures.idle.idle import IDLE
from traceprof.measures.steps.costs import one_off_costs
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.table import Table
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.render.formatting import note_text
from traceprof.session.answer import page
from traceprof.session.run import run_of
from traceprof.session.verdict import bound_by, make_verdict

PARTS = ("compute", "exposed_communication", "exposed_transfer", "device_memory", "idle")


def idle(share: float, **causes: int) -> dict[str, Result]:
    """Return the result of `idle`: ``share`` of its time, divided as ``causes``."""
    times = np.array(list(causes.values()), np.float64)
    shares = {"cause": list(causes), "total_ns": times, "share_ratio": share * times / times.sum()}
    return {"idle": Result("idle", IDLE.spec, {"total": Table(shares)})}


@pytest.mark.parametrize(
    ("shares", "causes", "words"),
    [
        ((0.95, 0, 0, 0, 0.05), {"data": 1}, "GPU-bound"),
        ((0.7, 0, 0, 0, 0.3), {"data": 2, "launch": 1}, "GPU-bound, partly input-bound"),
        ((0.7, 0, 0, 0.15, 0.15), {"data": 1}, "GPU-bound"),
        ((0.7, 0.3, 0, 0, 0), {}, "GPU-bound, partly communication-bound"),
        (
            (0.6, 0, 0, 0, 0.4),
            {"unknown": 1},
            "GPU-bound, partly idle for a reason that was not recorded",
        ),
        ((0.75, 0.09, 0.08, 0, 0.08), {"data": 1}, "GPU-bound"),
        ((0.1, 0.6, 0, 0, 0.3), {"data": 1}, "communication-bound"),
        (
            (0.07, 0.37, 0, 0, 0.56),
            {"launch": 36, "host": 10, "edge": 10},
            "communication-bound and launch-bound",
        ),
        (
            (0.1, 0, 0, 0, 0.9),
            {"edge": 50, "data": 40},
            "active only part of the time and input-bound",
        ),
        ((0.1, 0, 0, 0, 0.9), {"data": 50, "unknown": 40}, "input-bound"),
        ((0.0, 0, 0.9, 0, 0.1), {}, "transfer-bound"),
        ((0.0, 0, 0, 1.0, 0), {}, "no kernel ran"),
        # Where no calls were recorded, why devices are idle is not known.
        ((0.015, 0, 0.0001, 0, 0.9849), {}, "idle for a reason that was not recorded"),
    ],
)
def test_it_is_named_by_what_takes_most(
    shares: tuple[float, ...], causes: dict[str, int], words: str
) -> None:
    results = idle(shares[PARTS.index("idle")], **causes) if causes else {}
    assert bound_by(results, dict(zip(PARTS, shares, strict=True))) == words


def test_the_page_lists_a_few_of_the_subjects_that_one_recording_would_cover() -> None:
    trace = TraceBuilder().host_op("aten::mm", 0, 900).build(recorded={"host_ops", "ranges"})
    texts = [note_text(note) for note in page(run_of(Ranks.of(trace))).verdict.unknown]
    lacking = next(text for text in texts if "no kernels recorded" in text)
    subjects, more, _ = lacking.partition(", and ")
    assert len(subjects.split(", ")) == 8
    assert int(_[: _.index(" more: no kernels recorded")]) > 5, more


def test_kernels_of_unknown_classes_only_have_no_line_of_classes() -> None:
    def made_of(*names: str) -> list[str]:
        builder = TraceBuilder()
        for number, name in enumerate(names):
            builder.kernel(name, 1_000 * number, 1_000 * number + 900)
        return [note_text(note) for note in page(run_of(Ranks.of(builder.build()))).verdict.made_of]

    assert not any("by kernel class" in text for text in made_of("my_loop", "my_other_loop"))
    assert any("other kernels 50.0%" in text for text in made_of("my_loop", "sgemm_128x64"))


def test_shares_of_the_host_leave_out_what_is_done_now_and_then() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(21):
        builder.phase("forward", now, now + 300).phase("backward", now + 300, now + 700)
        builder.phase("optimizer", now + 700, now + 800)
        if number % 10 == 9:
            builder.phase("eval", now + 1_000, now + 6_000)
            now += 5_000
        now += 1_000
    document = page(run_of(Ranks.of(builder.build())))
    assert document.verdict is not None
    note = document.verdict.sentences[-1]
    shares = {note.values[f"part{i}"]: note.values[f"share{i}"] for i in range(4)}
    assert [note_text(own) for own in document.verdict.periodic] == [
        "Every 10 steps: evaluation, 5.00 µs each (33.3% of loop time)."
    ]
    assert not document.verdict.once
    times = {"backward": 400, "forward": 300, "outside any phase": 200, "optimizer": 100}
    assert shares == pytest.approx({name: ns / 1_000 for name, ns in times.items()})


def test_a_teacher_that_is_asked_in_every_step_is_no_evaluation() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(21):
        builder.phase("data", now, now + 50).phase("eval", now + 50, now + 250)
        builder.phase("forward", now + 300, now + 500).phase("backward", now + 500, now + 800)
        builder.phase("optimizer", now + 800, now + 1_000)
        now += 1_000
        if number % 10 == 9:  # and this is one
            builder.phase("data", now, now + 50).phase("eval", now + 50, now + 5_000)
            builder.phase("data.end", now + 5_000, now + 5_001)
            now += 5_010
    trace = builder.build()
    verdict = page(run_of(Ranks.of(trace))).verdict
    assert verdict is not None
    shares = {
        value: verdict.sentences[-1].values[f"share{name.removeprefix('part')}"]
        for name, value in verdict.sentences[-1].values.items()
        if name.startswith("part")
    }
    assert shares["forward without gradients"] == pytest.approx(0.2, abs=0.02)
    assert shares["backward"] == pytest.approx(0.3)
    paid = one_off_costs(Ranks.of(trace))
    evaluated = paid.take(paid["kind"] == "evaluation")
    assert evaluated["total_ns"].tolist() == [2 * 4_950]


def test_a_program_that_only_infers_evaluates_nothing() -> None:
    builder = TraceBuilder()
    for start in range(0, 2_000, 100):
        builder.phase("eval", start, start + 80)
    trace = builder.build()
    results = {"phases": run("phases", trace)}
    paid = one_off_costs(Ranks.of(trace))
    note = make_verdict(results, trace.recorded, paid).sentences[-1]
    assert note.values["part0"] == "forward without gradients"


def test_a_rollout_is_a_phase_of_each_step_and_no_evaluation() -> None:
    builder, now = TraceBuilder(), 0
    for _ in range(4):
        builder.phase("generation", now, now + 600).phase("eval", now, now + 50)
        builder.phase("logprobs", now + 700, now + 720).phase("update", now + 720, now + 1_000)
        for at in (now + 720, now + 860):
            builder.phase("forward", at, at + 50).phase("backward", at + 50, at + 120)
            builder.phase("optimizer", at + 120, at + 140)
        now += 1_000
    run = run_of(Ranks.of(builder.build()))
    verdict = page(run).verdict
    assert verdict is not None
    values = verdict.sentences[-1].values
    shares = {
        values[name]: values[f"share{name.removeprefix('part')}"]
        for name in values
        if name.startswith("part")
    }
    assert shares == pytest.approx(
        {
            "generation": 0.6,
            "update": 0.28,
            "outside any phase": 0.1,
            "log-probabilities": 0.02,
        }
    )
    assert values["step"] == 1_000
    assert not verdict.periodic and not verdict.once


def rates_of(*, has_tokens: bool = True, has_environment: bool = True) -> str:
    """Return the page's sentences on iterations of 1 s: 400 tokens, 25 environment steps."""
    builder, ms = TraceBuilder(), 1_000_000
    for step in range(5):
        now = 1_000 * ms * step
        builder.phase("generation", now, now + 200 * ms)
        if has_tokens:
            builder.mark("generated.tokens", now + 200 * ms, 400, domain=TRACEPROF_DOMAIN)
        for i in range(25 if has_environment else 0):
            at = now + (200 + 10 * i) * ms
            builder.phase("environment", at, at + 8 * ms)
        builder.phase("logprobs", now + 450 * ms, now + 500 * ms)
        builder.phase("update", now + 500 * ms, now + 1_000 * ms)
        builder.phase("forward", now + 500 * ms, now + 600 * ms)
        builder.phase("backward", now + 600 * ms, now + 900 * ms)
        builder.phase("optimizer", now + 900 * ms, now + 1_000 * ms)
    verdict = page(run_of(Ranks.of(builder.build()))).verdict
    assert verdict is not None
    return " ".join(map(note_text, verdict.sentences))


def test_rates_of_generation_updates_and_environment_are_on_the_page() -> None:
    words = rates_of()
    assert "Generated 400 tokens/s (2,000 tokens/s during generation)." in words
    assert "Updates train on 800 generated tokens/s." in words
    assert "25 environment steps/s" in words
    without = rates_of(has_tokens=False, has_environment=False)
    assert "tokens/s" not in without
    assert "environment" not in without


def test_a_generation_that_no_step_learns_from_is_an_evaluation() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(21):
        builder.phase("forward", now, now + 500).phase("backward", now + 500, now + 800)
        builder.phase("optimizer", now + 800, now + 1_000)
        now += 1_000
        if number % 7 == 6:
            builder.phase("generation", now, now + 5_000)
            now += 5_000
    verdict = page(run_of(Ranks.of(builder.build()))).verdict
    assert verdict is not None
    assert [note.values["kind"] for note in verdict.periodic] == ["evaluation"]
    assert "generation" not in verdict.sentences[-1].values.values()

"""The phase that makes a step slow is named as on the rest of the page."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.findings.found import findings_of, in_default_window
from tests.training import MS


def test_a_slow_pass_of_a_teacher_is_not_called_an_evaluation() -> None:
    """Steps of 30 ms: a teacher of 10 ms, which takes 70 ms in one of them."""
    builder, now = TraceBuilder(), 0
    for step in range(20):
        teacher = 70 if step == 9 else 10
        for phase, length in (
            ("eval", teacher),
            ("forward", 5),
            ("backward", 10),
            ("optimizer", 5),
        ):
            builder.phase(phase, now, now + length * MS)
            now += length * MS
    found = findings_of(in_default_window(builder.build()))
    slow = next(one for one in found if "slow step" in one.title)
    assert any("forward without gradients +60.0 ms" in text for text in slow.evidence)

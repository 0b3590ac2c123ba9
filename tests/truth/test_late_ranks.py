"""What ranks save that wait for a late rank anyway: as much as was planted on the late rank."""

import pytest

from tests.findings.found import findings_of, in_default_window
from tests.truth.loops import nothing
from tests.truth.scenarios import _allocate, _slow, parallel, several, step_ns

FIRST, LATE = 1, 2


def planted(allocating: tuple[int, ...], factor: float):
    """Return 4 ranks, of which some allocate, and rank 2 computes longer; and what that costs."""
    ranks, without = (
        several(
            lambda r, of=of: parallel(4, inside=_allocate if r in of else nothing),
            4,
            _slow(LATE, factor),
        )()
        for of in (allocating, ())
    )
    found = {one.rule: one for one in findings_of(in_default_window(ranks))}
    return found, step_ns(ranks, FIRST) - step_ns(without, FIRST)


@pytest.mark.parametrize("factor", [1.4, 1.7])
def test_other_ranks_save_nothing(factor: float) -> None:
    found, saved_ns = planted((0, 1, 3), factor)
    assert abs(saved_ns) < 50_000
    own = found["allocations"]
    assert (own.kind, own.saving_ns, own.is_minor) == ("none", 0, False)
    assert own.evidence[0].startswith("0 ns per step on rank 2, which causes")
    assert found["straggler"].saving_ns > 0


@pytest.mark.parametrize("factor", [1.4, 1.7])
def test_what_the_late_rank_also_does_is_saved(factor: float) -> None:
    found, saved_ns = planted((0, 1, 2, 3), factor)
    own = found["allocations"]
    assert own.kind == "measured"
    assert own.saving_ns == pytest.approx(saved_ns, rel=0.05)
    assert "per step on rank 2" in own.evidence[-1]

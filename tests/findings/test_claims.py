"""Each nanosecond is claimed by at most one finding, on every shared trace and by hand."""

from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import in_default_window
from tests.real_traces import ALL
from tests.requirements import require
from traceprof.findings import FINDINGS, RULES
from traceprof.findings.claims import Claim, ClaimKind, Kind, Ledger
from traceprof.findings.context import Context
from traceprof.findings.rules import SettledFinding, apply_rules, subjects_with_losses
from traceprof.measures.idle.gaps import CAUSES, find_gap_parts
from traceprof.measures.idle.losses import idle_times
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.session.run import open_run

ROUNDING = 1e-9
TRACES = [name for name in ALL if name != "nvprof/zero-kernels.sql"]  # that one has no time


def test_what_is_claimed_is_not_free_any_more() -> None:
    ledger = Ledger({ClaimKind.LOST: {0: Intervals.single(0, 100)}})
    first = Claim({0: Intervals.single(20, 50), 1: Intervals.single(0, 10)})
    second = Claim({0: Intervals.single(40, 200)})
    (granted,) = ledger.take((first,))
    assert granted.times == {0: Intervals.single(20, 50)}
    assert ledger.unclaimed(second).times == {0: Intervals.single(50, 100)}
    assert ledger.take((second,))[0].total_ns == 50
    assert ledger.unclaimed(second).total_ns == 0


def lost(loss: str, total: int, claimed: int = 0) -> dict[str, object]:
    """Return a row of the table ``losses``, of 1 000 ns that are judged."""
    return {"loss": loss, "total_ns": total, "share_ratio": total / 1_000, "claimed_ns": claimed}


def test_much_is_lost_where_the_page_shows_it_or_any_finding_claims_it() -> None:
    assert subjects_with_losses([]) == set()
    assert subjects_with_losses([lost("host", 49), lost("data", 9, claimed=9)]) == set()
    assert subjects_with_losses([lost("host", 50), lost("launch", 20, claimed=10)]) == {
        "CPU work between launches",
        "kernel launches",
    }
    # Idle time after a wait is the wait's in this table, as everywhere.
    assert subjects_with_losses([lost("synchronizing", 60), lost("host", 40)]) == {
        "host synchronization"
    }
    more = lost("host", 40, claimed=10)
    assert subjects_with_losses([lost("synchronizing", 60), more]) == {
        "host synchronization",
        "CPU work between launches",
    }


@pytest.mark.parametrize("is_default", [False, True])
def test_idle_time_in_slow_steps_is_of_the_slow_steps_alone(is_default: bool) -> None:
    builder, now = TraceBuilder(), 0
    for number in range(12):
        wait = 900_000 if number == 6 else 100_000
        builder.step(now, now + wait + 200_000, number).phase("data", now, now + wait)
        at = now + wait
        builder.kernel("gemm", at + 2, at + 200_000, launched_ns=(at, at + 1))
        now = at + 200_000
    trace = builder.build()
    context = Context(in_default_window(trace) if is_default else Ranks.of(trace))
    found, _ = apply_rules(context, RULES)
    claims = [(claim.claim_kind, claim) for own in found for claim in own.claims]
    assert {claim_kind for claim_kind, _ in claims} >= {ClaimKind.LOST, ClaimKind.SLOW}
    for (_, one), (_, other) in combinations(claims, 2):
        assert not len(one.times[0] & other.times[0])
    lost_ns = sum(claim.total_ns for claim_kind, claim in claims if claim_kind is ClaimKind.LOST)
    # The data waits of the usual steps, without the one of the slow step.
    assert lost_ns <= 11 * 100_000 + 12 * 2


def test_grounds_are_apart() -> None:
    ledger = Ledger({claim_kind: {0: Intervals.single(0, 100)} for claim_kind in ClaimKind})
    everything = Intervals.single(0, 1000)
    assert [ledger.take((Claim({0: everything}, g),))[0].total_ns for g in ClaimKind] == [
        100
    ] * len(ClaimKind)


@cache
def ranks_of(name: str) -> Ranks:
    wanted = frozenset({*FINDINGS.needs, *FINDINGS.uses})
    return open_run([Path(require("traces")) / name]).of_ranks(wanted)


@cache
def judged(name: str) -> tuple[Context, tuple[SettledFinding, ...]]:
    context = Context(ranks_of(name))
    return context, tuple(apply_rules(context, RULES)[0])


@pytest.mark.traces
@pytest.mark.parametrize("name", TRACES)
def test_no_time_is_claimed_twice(name: str) -> None:
    _, found = judged(name)
    claims = [(own.rule.name, claim) for own in found for claim in own.claims]
    for (one, first), (other, second) in combinations(claims, 2):
        for device in first.times.keys() & second.times.keys():
            both = first.times[device] & second.times[device]
            assert not len(both), f"{one} and {other} claim the same time of device {device}"


@pytest.mark.traces
@pytest.mark.parametrize("name", TRACES)
def test_savings_are_at_most_what_is_not_compute(name: str) -> None:
    context, found = judged(name)
    compute = sum((t.compute & context.typical).total_ns for t in context.times.values())
    compute_ratio = compute / context.analyzed_ns
    sums = dict.fromkeys(ClaimKind, 0.0)
    for own in found:
        for claim in own.claims:
            saves = own.finding.kind not in (Kind.NONE, Kind.ONCE)
            sums[claim.claim_kind] += context.saving_ratio(claim) if saves else 0.0
    assert sums[ClaimKind.COMPUTE] <= compute_ratio + ROUNDING
    # Each claim_kind has its own base: slow steps that of the mean step with them.
    assert sums[ClaimKind.SLOW] <= context.slow_ratio + ROUNDING
    assert sums[ClaimKind.LOST] <= 1 - compute_ratio + ROUNDING
    assert sums[ClaimKind.DRIFT] <= context.drift_ratio + ROUNDING
    usual = sums[ClaimKind.LOST] + sums[ClaimKind.COMPUTE] + sums[ClaimKind.DRIFT]
    saved_ns = usual * context.base.unit_ns
    assert saved_ns <= context.base.unit_ns + 1
    assert sum(sums.values()) == pytest.approx(sum(own.saving_ratio for own in found))


@pytest.mark.traces
@pytest.mark.parametrize("name", TRACES)
def test_a_finding_has_its_figure_and_says_how_sure_it_is(name: str) -> None:
    context, found = judged(name)
    for own in found:
        kind = own.finding.kind
        assert (kind is Kind.ONCE) == (own.finding.one_time_ns is not None)
        assert (kind is Kind.ESTIMATED) == bool(own.finding.model)
        assert (kind is Kind.ESTIMATED) == (own.range_ns is not None)
        if own.range_ns is not None:
            least, most = own.range_ns
            assert least <= own.saving_ns + 1 <= most + 2
        assert own.saving_ratio <= own.claimed_ratio + ROUNDING
        is_saved = kind not in (Kind.NONE, Kind.ONCE)
        assert own.saving_ns == (context.saving_ns(own.claims) if is_saved else 0)
        titled = own.finding.title.values.get("share")
        if titled is not None and own.rule.name not in _OTHER_SHARES:
            assert titled == pytest.approx(sum(map(context.share, own.claims)))


_OTHER_SHARES = (
    *("slow_steps", "low_utilization", "warmup", "straggler", "slow_host"),
    *("contention", "layout_conversion"),
)
"""Their titles tell the share of the steps, of the devices that they name, or what is saved."""


@pytest.mark.traces
@pytest.mark.parametrize("name", TRACES)
def test_idle_time_is_told_as_idle_tells_it(name: str) -> None:
    """The causes that findings claim are those of the gaps: nothing is added or lost."""
    context, _ = judged(name)
    for cause in ("data", "synchronizing", "profiler", "queued", "peer", "edge", "unknown"):
        place = CAUSES.index(cause)
        parts = map(find_gap_parts, context.ranks)
        told = sum(
            int((own["end_ns"] - own["start_ns"])[own["cause"] == place].sum()) for own in parts
        )
        laid_out = idle_times(context.ranks)[cause]
        assert sum(time.total_ns for time in laid_out.values()) == told

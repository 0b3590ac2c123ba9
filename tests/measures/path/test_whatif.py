from dataclasses import replace
from fractions import Fraction

import pytest

from tests.builders import TraceBuilder
from tests.running import run
from tests.training import MS, US, Training
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.session.selection import select


def gain(training: Training, case: str) -> float:
    """The bound of the gain per step that is stated for ``case``."""
    trace = training.build()
    table = run("whatif", trace.within(select(Ranks.of(trace), None).window)).to_frame()
    return float(table.set_index("case").loc[case, "gain_ns"])


def real_gain(training: Training, better: Training) -> float:
    """The gain per step that another simulation shows."""
    lengths = []
    for simulated in (training, better):
        trace = simulated.build()
        window = select(Ranks.of(trace), None).window
        lengths.append(window.duration_ns)
    return (lengths[0] - lengths[1]) / training.n_steps


@pytest.mark.parametrize(
    ("case", "training", "change"),
    [
        ("data loading free", Training(data_ns=20 * MS), {"data_ns": 0}),
        (
            "communication fully hidden",
            Training(n_ranks=2, all_reduce_ns=5 * MS, overlapped=False),
            {"all_reduce_ns": 0},
        ),
        (
            "launch gaps closed",
            Training(n_kernels=400, kernel_ns=6 * US, per_launch_ns=14 * US),
            {"per_launch_ns": 1 * US},
        ),
        (
            "host code free",
            Training(stalls_ns=dict.fromkeys(range(24), 20 * MS)),
            {"stalls_ns": {}},
        ),
    ],
)
def test_the_bound_is_close_to_what_is_really_gained(
    case: str, training: Training, change: dict[str, object]
) -> None:
    stated = gain(training, case)
    real = real_gain(training, replace(training, **change))  # type: ignore[arg-type]
    assert real <= 1.02 * stated
    assert stated <= 1.15 * real


def test_copies_at_link_speed() -> None:
    builder, at = TraceBuilder(), 0
    for rate in (20, 20, 20, 20, 5):
        length = 10_000_000 // rate
        builder.copy("h2d", at, at + length, n_bytes=10_000_000, launched_ns=(at - 9, at - 5))
        builder.kernel("gemm", at + length, at + length + MS, launched_ns=(at - 4, at - 3))
        at += length + MS
    table = run("whatif", builder.build(span=(0, at))).to_frame().set_index("case")
    # The last copy takes 2 ms, and would take 0.5 ms at the 20 bytes per ns of the others.
    assert table.loc["copies at link speed", "gain_ns"] == pytest.approx(1.5 * MS)


def test_a_healthy_loop_has_little_to_gain() -> None:
    table = run("whatif", Training().build()).to_frame()
    assert table["gain_ratio"].max() < 0.05


def test_a_copy_that_the_window_cuts_gains_by_its_own_speed() -> None:
    # Of 1 000 003 bytes a third is no whole number: the speed is that of the whole copy.
    builder, at = TraceBuilder(), 0
    for rate in (20, 20, 20, 20, 5):
        builder.copy("h2d", at, at + 1_000_003 // rate, n_bytes=1_000_003)
        at += 1_000_003 // rate
    trace = builder.build(span=(0, at))
    last_ns = 1_000_003 // 5
    fast_ns = 1_000_003 // 20
    window = TimeWindow(at - last_ns // 3, at)
    table = run("whatif", trace.within(window)).to_frame().set_index("case")
    saved = 1 - Fraction(fast_ns, last_ns)
    assert table.loc["copies at link speed", "gain_ns"] == pytest.approx(
        float(saved * (last_ns // 3)), rel=1e-12
    )


@pytest.mark.parametrize(
    ("case", "rule", "training"),
    [
        ("data loading free", "input_bound", Training(data_ns=20 * MS)),
        (
            "communication fully hidden",
            "exposed_communication",
            Training(n_ranks=2, all_reduce_ns=5 * MS, overlapped=False),
        ),
        (
            "launch gaps closed",
            "launch_bound",
            Training(n_kernels=400, kernel_ns=6 * US, per_launch_ns=14 * US),
        ),
    ],
)
def test_what_devices_lose_is_what_findings_claim(case: str, rule: str, training: Training) -> None:
    trace = training.build()
    within = trace.within(select(Ranks.of(trace), None).window)
    lost = run("whatif", within).to_frame().set_index("case").loc[case, "device_ratio"]
    findings = run("findings", within).table.to_frame().set_index("rule")
    assert findings.loc[rule, "claimed_ratio"] == pytest.approx(lost, rel=0.02)

"""Steps that get slower are reported with the step, both step times, and what grew."""

from collections.abc import Callable

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of
from traceprof.model.trace import Trace

MS = 1_000_000
N_STEPS = 30
GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas"


def training(
    gemm_ms: Callable[[int], float] = lambda _: 10,
    *,
    blocks: Callable[[int], int] = lambda _: 132,
    count: Callable[[int], int] = lambda _: 4,
    wait_ms: Callable[[int], float] = lambda _: 1,
    clock_mhz: Callable[[int], float] | None = None,
    has_grids: bool = True,
) -> Trace:
    """Return 30 steps: the host makes a batch while the GPU is idle, then the GPU runs GEMMs."""
    builder, now = TraceBuilder(), 0
    builder.device(0, "NVIDIA H100 80GB HBM3", sm_count=132)
    for number in range(N_STEPS):
        start, now = now, now + round(wait_ms(number) * MS)
        builder.phase("data", start, now)
        for _ in range(count(number)):
            end = now + round(gemm_ms(number) * MS)
            shape = {"grid_x": blocks(number), "grid_y": 1, "grid_z": 1, "block_x": 128}
            shape |= {"block_y": 1, "block_z": 1}
            launched = (now - 10, now - 5)
            builder.kernel(GEMM, now, end, launched_ns=launched, shape=shape if has_grids else None)
            now = end
        builder.step(start, now, number)
        if clock_mhz is not None:
            builder.sample("sm_clock_mhz", now - 1, clock_mhz(number), source="gpu:0")
    return builder.build()


def late(before: float, after: float, step: int = 12) -> Callable[[int], float]:
    return lambda number: before if number < step else after


def drift_of(trace: Trace) -> Found | None:
    found = [found for found in findings_of(trace) if found.rule == "slower_steps"]
    return found[0] if found else None


def test_kernels_that_get_longer_at_the_same_grid() -> None:
    found = drift_of(training(late(10, 16)))
    assert found is not None
    assert found.title == (
        "Steps get slower from step 12 on: 41.0 ms before, 65.0 ms after (+58.5%)"
    )
    # 18 of 30 steps take 24 ms longer.
    assert (found.kind, found.saving_ns) == ("bounded", pytest.approx(14.4 * MS, rel=1e-3))
    assert found.saving_ratio == pytest.approx(14.4 / 55.4, rel=1e-3)
    assert found.evidence[0] == (
        "median of the first 3 steps 41.0 ms, of the last 3 steps 65.0 ms (+58.5%)"
    )
    assert found.evidence[1] == "compute: 40.0 ms per step before, 64.0 ms after"
    assert found.evidence[2].endswith(" with the same grid: 10.0 ms before, 16.0 ms after (1.60×)")
    assert found.evidence[3] == "the GPU clock was not recorded"
    assert "nvidia-smi --query-gpu=clocks.sm" in found.action
    assert "`traceprof explain TRACE step:29 --against step:0`" in found.action
    assert found.window == "step:12..29"


def test_kernels_without_a_recorded_grid_may_be_larger() -> None:
    found = drift_of(training(late(10, 16), has_grids=False))
    assert found is not None
    assert "(grid not recorded): 10.0 ms before" in found.evidence[2]
    assert "so the kernels are larger or the GPU is slower" in found.action
    assert "The same kernels run slower" not in found.action


def test_a_clock_that_fell_is_named() -> None:
    found = drift_of(training(late(500, 800), clock_mhz=late(1980, 1240)))
    assert found is not None
    assert any("the GPU clock was 1,240 MHz instead of 1,980 MHz" in e for e in found.evidence)
    assert "Improve cooling" in found.action
    same = drift_of(training(late(500, 800), clock_mhz=lambda _: 1980))
    assert same is not None
    assert "GPU clock 1,980 MHz before, 1,980 MHz after" in same.evidence
    assert "cooling" not in same.action


def test_more_or_larger_kernels_are_more_work() -> None:
    larger = drift_of(training(late(10, 16), blocks=lambda n: 132 if n < 12 else 211))
    assert larger is not None
    assert any(
        e.endswith("4 launches per step before, 4 after; 528 blocks per step before, 844 after")
        for e in larger.evidence
    )
    more = drift_of(training(count=lambda n: 4 if n < 12 else 6))
    assert more is not None
    assert any("4 launches per step before, 6 after" in e for e in more.evidence)
    for found in (larger, more):
        assert found.action.startswith("The later steps run more or larger kernels.")
        assert not any("with the same grid" in e or "clock" in e for e in found.evidence)


def test_a_loader_that_falls_behind() -> None:
    found = drift_of(training(wait_ms=late(1, 25)))
    assert found is not None
    assert found.title.startswith("Steps get slower from step 12 on: 41.0 ms before, 65.0 ms")
    assert found.evidence[1:] == (
        "idle: 1.00 ms per step before, 25.0 ms after",
        "on the CPU, data: 1.00 ms per step before, 25.0 ms after",
    )
    assert found.action.startswith("The GPU waits longer for data in later steps.")


@pytest.mark.parametrize("trace", [training(late(10, 16)), training(wait_ms=late(1, 25))])
def test_no_time_is_saved_twice(trace: Trace) -> None:
    found = findings_of(trace)
    assert len(found) > 1
    assert sum(one.saving_ratio for one in found) <= 1
    by_rule = {one.rule: one for one in found}
    # Without the growth, the loader takes 1 of 41 ms per step.
    if "input_bound" in by_rule:
        saved = by_rule["input_bound"].saving_ns + by_rule["slower_steps"].saving_ns
        assert saved == pytest.approx((0.4 * 1 + 0.6 * 25) * MS, rel=1e-3)


def test_late_steps_that_stay_slow_are_one_finding() -> None:
    rules = {found.rule: found for found in findings_of(training(late(10, 16, step=24)))}
    assert "slow_steps" not in rules
    assert rules["slower_steps"].title.startswith("Steps get slower from step 24 on")


@pytest.mark.parametrize(
    "gemm_ms",
    [
        lambda _: 10,
        lambda n: 10 if n % 2 else 16,
        lambda n: 16 if n % 10 == 9 else 10,
        lambda n: 16 if 10 <= n < 20 else 10,
        lambda n: 40 if n == 25 else 10,
        lambda n: 10 + 0.01 * n,
        lambda n: 16 if n < 12 else 10,
    ],
)
def test_other_series_are_not_slower_steps(gemm_ms: Callable[[int], float]) -> None:
    assert drift_of(training(gemm_ms)) is None

"""Findings about kernels say what profiles one launch of them with Nsight Compute."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.session.run import run_of

US = 1000
MATRIX = "void ns::ampere_sgemm<128>(int)"


def commands(trace: Trace) -> dict[str, str]:
    table = run("findings", trace).table.to_frame()
    return dict(zip(table["rule"], table["ncu"], strict=True))


def builder(device: str = "NVIDIA A100-SXM4-80GB") -> TraceBuilder:
    """Return three launches of one function, the third the longest, and one of another process."""
    made = TraceBuilder().device(0, device).setting("command", "python train.py --token=hunter2")
    made.kernel(MATRIX, 0, 40 * US, correlation=1)
    made.kernel("void ns::ampere_sgemm<64>(int)", 50 * US, 60 * US, correlation=2)
    made.kernel(MATRIX, 100 * US, 190 * US, correlation=3)
    return made.kernel(MATRIX, 200 * US, 210 * US, process=2, correlation=4)


def test_the_longest_launch_of_the_kernel_is_profiled() -> None:
    assert commands(builder().build())["precision"] == (
        "ncu --target-processes all --kernel-name ampere_sgemm --launch-skip 2 --launch-count 1 "
        "-- python train.py --token=***"
    )


def test_launches_before_the_window_count() -> None:
    within = run_of(Ranks.of(builder().build())).within("95us..195us")
    table = within.result("findings").table.to_frame().set_index("rule")
    assert "--launch-skip 2 " in table.loc["precision", "ncu"]


def test_several_names_give_the_one_with_the_most_time() -> None:
    made = TraceBuilder()
    for number in range(6):
        name = f"void at::native::{'add' if number else 'mul'}_elementwise_kernel<{number}>(int)"
        made.kernel(name, number * 10 * US, number * 10 * US + (9 - number) * US)
    assert (
        "--kernel-name mul_elementwise_kernel --launch-skip 0 "
        in (commands(made.build())["fusable_kernels"])
    )


@pytest.mark.parametrize("device", ["AMD Instinct MI300X"])
def test_nsight_compute_profiles_no_others(device: str) -> None:
    made = TraceBuilder().device(0, device)
    made.kernel("Cijk_Ailk_Bljk_SB_MT128x128x16_MI32x32x2", 0, 50 * US)
    assert commands(made.build())["precision"] == ""


def test_what_names_no_kernel_names_none() -> None:
    made = TraceBuilder().kernel("k", 0, 10).kernel("k", 90_000, 90_010)
    assert set(commands(made.build()).values()) == {""}

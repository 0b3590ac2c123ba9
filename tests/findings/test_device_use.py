"""Devices that work and get little done: pages that migrate, few blocks, contention, attention."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of
from tests.requirements import require
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.session.answer import page
from traceprof.session.run import open_run, run_of

US, MS = 1_000, 1_000_000
ONE_BLOCK = {"grid_x": 1, "grid_y": 1, "grid_z": 1, "block_x": 1, "block_y": 1, "block_z": 1}


def found(trace: Trace) -> dict[str, Found]:
    return {own.rule: own for own in findings_of(trace)}


def migrations(builder: TraceBuilder, first_ns: int, count: int, direction: str) -> None:
    for i in range(count):
        at = first_ns + i * 50 * US
        end, kind = at + 10 * US, "managed"
        builder.copy(direction, at, end, n_bytes=65_536, src_kind=kind, dst_kind=kind)


def test_pages_that_migrate_are_told_once_with_what_waits_for_them() -> None:
    builder = TraceBuilder().kernel("stencil", 0, 10 * MS, launched_ns=(0, 1))
    migrations(builder, 5 * MS, 100, "h2d")  # the kernel waits in its second half
    migrations(builder, 10 * MS, 200, "d2h")
    rules = found(builder.build())
    own = rules["managed_memory"]
    assert (own.kind, own.is_minor) == ("estimated", False)
    # 5 ms of the kernel, and 10 ms but for what follows the last page.
    assert own.saving_ns == pytest.approx(15 * MS - 40 * US, abs=50 * US)
    assert "300 page migrations without a launch call" in own.evidence[0]
    assert "cudaMemPrefetchAsync" in own.action
    assert not {"exposed_copies", "low_utilization"} & set(rules)


def test_what_the_host_does_between_two_pages_that_it_touches_is_its_own() -> None:
    builder = TraceBuilder().kernel("stencil", 0, 10 * MS, launched_ns=(0, 1))
    for i in range(40):
        at, kind = (12 + 2 * i) * MS, "managed"
        builder.copy("d2h", at, at + 10 * US, n_bytes=65_536, src_kind=kind, dst_kind=kind)
    rules = found(builder.build())
    own = rules["host_code"]
    assert "40 gaps longer than 200 µs" in own.evidence[0]
    assert own.saving_ns == pytest.approx(80 * MS, rel=0.01)
    assert "low_utilization" not in rules  # "Idle for an unknown reason"


def test_managed_memory_that_is_copied_by_a_call_does_not_migrate() -> None:
    builder = TraceBuilder().kernel("stencil", 0, 10 * MS, launched_ns=(0, 1))
    start, kind = 10 * MS, "managed"
    builder.copy("d2h", start, 2 * start, launched_ns=(2, 3), src_kind=kind, dst_kind=kind)
    assert "managed_memory" not in found(builder.build())


def walk(shape: dict[str, int] | None, beside: str = "") -> Trace:
    builder = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3")
    builder.kernel("walk", 0, 25 * MS, launched_ns=(0, 1), shape=shape)
    if beside:
        full = {**ONE_BLOCK, "grid_x": 500, "block_x": 256}
        builder.kernel(beside, 0, 25 * MS, launched_ns=(1, 2), stream=8, shape=full)
    return builder.build()


@pytest.mark.parametrize(
    ("shape", "is_found"),
    [
        (ONE_BLOCK, True),
        ({**ONE_BLOCK, "block_x": 1024}, True),  # of one SM of 132
        ({**ONE_BLOCK, "grid_x": 100_000}, True),  # one lane of 32
        ({**ONE_BLOCK, "grid_x": 8, "block_x": 128}, False),
        ({**ONE_BLOCK, "grid_x": 500, "block_x": 256}, False),
    ],
)
def test_a_busy_device_that_is_nearly_empty(shape: dict[str, int], is_found: bool) -> None:
    rules = found(walk(shape))
    assert ("few_blocks" in rules) is is_found
    if is_found:
        own = rules["few_blocks"]
        assert (own.kind, own.saving_ns) == ("bounded", 25 * MS)
        assert "on 132 SMs" in own.evidence[0]


def test_a_device_that_other_kernels_fill_meanwhile_is_not_empty() -> None:
    assert "few_blocks" not in found(walk(ONE_BLOCK, beside="gemm"))
    assert "few_blocks" not in found(walk(None))  # nobody knows


def test_the_page_calls_an_empty_device_so() -> None:
    verdict = page(run_of(Ranks.of(walk(ONE_BLOCK)))).verdict
    assert verdict is not None
    assert verdict.bound_by == "GPU-bound, but the GPU is nearly empty"


def beside_communication(alone_us: list[int], beside_us: list[int]) -> Trace:
    builder, now = TraceBuilder(), 0
    for length in alone_us:
        builder.kernel("gemm", now, now + length * US)
        now += length * US
    start = now
    for length in beside_us:
        builder.kernel("gemm", now, now + length * US)
        now += length * US
    return builder.kernel("ncclDevKernel_AllReduce", start, now, stream=20).build()


def test_hiding_communication_has_a_price() -> None:
    rules = found(beside_communication([1000] * 10, [1400] * 10))
    own = rules["contention"]
    # 4 ms of 24 ms, as a part of an iteration: of the repeating kernel.
    assert own.saving_ratio == pytest.approx(4 / 24)
    assert own.evidence[0] == "211 µs per iteration longer than without communication"
    assert own.range_ns == (0, own.saving_ns)
    assert "1.40× as long" in own.title
    assert "exposed_communication" not in rules


@pytest.mark.parametrize(
    ("alone", "beside"),
    [
        ([1000] * 10, [1000] * 10),
        ([1000, 1400] * 5, [1400] * 10),  # two kinds of work by one name
        ([1000] * 2, [1400] * 10),  # too few to know
        ([1000, 1010, 990] * 3, [1000, 1400, 1010]),  # some as before
    ],
)
def test_what_is_no_contention(alone: list[int], beside: list[int]) -> None:
    assert "contention" not in found(beside_communication(alone, beside))


PRODUCT = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>"
LOSS = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, true, false>"
SCALE = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"
SORT = "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, long, long>"


@pytest.mark.parametrize(
    ("names", "saved"),
    [
        ([PRODUCT, SCALE, SOFTMAX, PRODUCT], 20),
        ([PRODUCT, SOFTMAX, PRODUCT, PRODUCT], 10),
        ([PRODUCT, SCALE, LOSS, PRODUCT], 0),  # of a loss
        ([PRODUCT, SOFTMAX, SORT, PRODUCT], 0),  # chooses experts
        (["conv_fprop", SOFTMAX, PRODUCT, PRODUCT], 0),
        ([PRODUCT, PRODUCT, SCALE, SOFTMAX], 0),  # of an answer
    ],
)
def test_softmax_between_two_products_is_unfused_attention(names: list[str], saved: int) -> None:
    builder = TraceBuilder()
    for i, name in enumerate(names):
        builder.kernel(name, 10 * i * US, 10 * (i + 1) * US)
    rules = found(builder.build())
    if not saved:
        assert "unfused_attention" not in rules
        return
    own = rules["unfused_attention"]
    assert own.saving_ns == saved * US
    assert own.range_ns == (saved * US // 2, saved * US + 10 * US)
    assert "FlashAttention" in own.action


def test_operators_tell_softmax_and_products_whose_names_do_not() -> None:
    builder = TraceBuilder()
    for i, operator in enumerate(("aten::bmm", "aten::_softmax", "aten::bmm")):
        at = 10 * i * US
        builder.range(operator, at, at + 5 * US)
        builder.kernel("my_kernel", at, at + 10 * US, launched_ns=(at + 1, at + 2))
    assert found(builder.build())["unfused_attention"].saving_ns == 10 * US


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "rule", "saved_ns"),
    [
        ("uvm-migrations.sqlite", "managed_memory", 31_900 * US),
        ("megatron1001-contention.json", "contention", 4_000 * US),
    ],
)
def test_what_people_reported(name: str, rule: str, saved_ns: int) -> None:
    path = Path(require("traces")).parent / "wild" / name
    result = open_run([path]).result("findings")
    (own,) = [row for row in result.table.rows() if row["rule"] == rule]
    assert own["saving_ns"] == pytest.approx(saved_ns, rel=0.04)
    told = [row["rule"] for row in result.table.rows() if not row["is_minor"]]
    assert not {"low_utilization", "exposed_copies"} & set(told)


@pytest.mark.parametrize(
    "subject", ["managed memory", "SM utilization", "contention between compute and communication"]
)
def test_what_was_not_seen_is_not_fine(subject: str) -> None:
    """A copy of pinned memory, kernels of no known shape, communication beside no kernel."""
    builder = TraceBuilder()
    for i in range(20):
        at = i * MS
        builder.copy("h2d", at, at + 20 * US, n_bytes=1_000_000, src_kind="pinned")
        builder.kernel("gemm", at + 30 * US, at + 800 * US)
        builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 820 * US, at + 900 * US)
    document = page(run_of(Ranks.of(builder.build())))
    assert document.verdict is not None
    assert subject not in document.verdict.fine
    reasons = document.results["findings"].tables["not_checked"]
    assert subject in reasons["subject"].tolist()

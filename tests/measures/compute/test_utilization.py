"""MFU and HFU of steps: a GPT by hand, what the user says, what is not known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import Stated, built_in_hardware
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.session.options import Opening
from traceprof.session.run import open_run
from traceprof.session.selection import select
from traceprof.session.shares import on_peak

HALF = "c10::BFloat16"
VOCABULARY, WIDTH, LAYERS, HEADS, BATCH, LENGTH = 8192, 768, 6, 12, 16, 512
"""Of ``gpt.py``: 55.5 million parameters, 8 192 tokens a step."""
TOKENS = BATCH * LENGTH
MULTIPLYING = LAYERS * 12 * WIDTH**2 + WIDTH * VOCABULARY
PARAMETERS = MULTIPLYING + (VOCABULARY + LENGTH) * WIDTH + LAYERS * (13 * WIDTH) + 2 * WIDTH
H100 = "NVIDIA H100 80GB HBM3"


class _Step(TraceBuilder):
    """Operators one after the other, each with a kernel as long as it."""

    at = 0

    def op(self, name: str, dims: Any, concrete: Any = (), kernel: str = "gemm") -> None:
        begin, end = self.at, self.at + 1000
        self.host_op(name, begin, end, inputs=(dims, [HALF] * len(dims), list(concrete)))
        self.kernel(kernel, begin + 100, end, launched_ns=(begin + 10, begin + 20))
        self.at = end

    def linear(self, n_in: int, n_out: int) -> None:
        """Add the three products of a linear layer, forward and backward."""
        self.op("aten::mm", [[TOKENS, n_in], [n_in, n_out]])
        self.op("aten::mm", [[TOKENS, n_out], [n_out, n_in]])
        self.op("aten::mm", [[n_out, TOKENS], [TOKENS, n_in]])

    def attention(self) -> None:
        """Add causal attention, forward and backward."""
        sizes = [[BATCH, HEADS, LENGTH, WIDTH // HEADS]] * 3
        name = "aten::_scaled_dot_product_flash_attention"
        self.op(name, sizes, ["", "", "", "0.", "True"], "flash_fwd_kernel")
        places = [*[""] * 11, "True"]
        self.op(f"{name}_backward", [sizes[0], *sizes], places, "flash_bwd_kernel")


def gpt(n_steps: int = 3) -> Trace:
    """Return steps of the operators of gpt.py that multiply."""
    builder = _Step().device(0, name=H100)
    for number in range(n_steps):
        begin = builder.at
        for _ in range(LAYERS):
            builder.linear(WIDTH, 3 * WIDTH)
            builder.attention()
            builder.linear(WIDTH, WIDTH)
            builder.linear(WIDTH, 4 * WIDTH)
            builder.linear(4 * WIDTH, WIDTH)
        builder.linear(WIDTH, VOCABULARY)
        builder.step(begin, builder.at, number)
    return builder.build()


def stated(trace: Trace, **said: float) -> Trace:
    """Return the trace with what a user says of its model."""
    hardware = built_in_hardware()
    return trace.with_hardware(hardware.__class__(hardware.gpus, stated=Stated(**said)))


def test_the_flops_of_a_gpt_are_those_by_hand() -> None:
    dense = 6 * MULTIPLYING * TOKENS
    causal = 12 * LAYERS * WIDTH * LENGTH * TOKENS / 2
    (row,) = run("mfu", gpt()).table.rows()
    assert row["model_flop"] == pytest.approx(dense + causal, rel=0.01)
    assert row["executed_flop"] == pytest.approx(dense + causal * 7 / 6, rel=0.01)
    assert row["precision"] == "bf16"
    assert row["peak_flop_per_s"] == 989.4e12
    assert row["step_ns"] == 87_000
    assert row["mfu_ratio"] == row["model_flop"] / (989.4e12 * row["step_ns"] / 1e9)
    more = row["executed_flop"] / row["model_flop"]
    assert row["hfu_ratio"] / row["mfu_ratio"] == pytest.approx(more)


def test_a_step_of_11_6_ms_is_at_22_to_25_percent_by_what_is_counted() -> None:
    (row,) = run("mfu", gpt()).table.rows()
    could = 989.4e12 * 11.6e-3
    causal = 12 * LAYERS * WIDTH * LENGTH * TOKENS / 2
    assert row["model_flop"] / could == pytest.approx(0.219, abs=5e-4)
    assert (6 * PARAMETERS * TOKENS + causal) / could == pytest.approx(0.248, abs=5e-4)
    page = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text("utf-8")
    assert "24.8% of 989.4 TFLOP/s by all parameters" in " ".join(page.split())
    assert "21.9% without the embeddings" in " ".join(page.split())


def test_an_iteration_of_a_kernel_pattern_has_its_own_flops() -> None:
    builder = _Step().device(0, name=H100)
    for _ in range(12):
        for kernel in ("gemm_a", "gemm_b", "gemm_c"):
            builder.op("aten::mm", [[64, 64], [64, 64]], kernel=kernel)
    ranks = Ranks.of(builder.build())
    loop = ranks.within(select(ranks, None).window)
    (row,) = run("mfu", loop).table.rows()
    assert row["step_ns"] == 3_000
    assert row["model_flop"] == pytest.approx(3 * 2 * 64**3)


def test_what_the_user_says_comes_first() -> None:
    assert pytest.approx(55.5e6, rel=0.01) == PARAMETERS
    result = run("mfu", stated(gpt(), parameters=PARAMETERS, tokens=TOKENS))
    first, second = result.table.rows()
    assert first["source"].startswith("6 × parameters × tokens")
    assert first["model_flop"] == 6 * PARAMETERS * TOKENS
    assert first["tokens_per_s"] == pytest.approx(TOKENS / first["step_ns"] * 1e9)
    assert second["source"].startswith("sizes")
    assert any("do not include attention" in note.text for note in result.notes)
    (given, _) = run("mfu", stated(gpt(), model_flop=1e12)).table.rows()
    assert given["model_flop"] == 1e12


def test_ranks_that_were_not_recorded_have_their_share_of_what_is_said() -> None:
    builder = _Step().device(0, name=H100).process(1, rank=0, world_size=8)
    builder.linear(WIDTH, WIDTH)
    (row, own) = run("mfu", stated(builder.build(), model_flop=8e12)).table.rows()
    assert row["gpus_count"] == 8
    assert own["gpus_count"] == 1


def test_without_shapes_and_words_it_says_what_would_tell() -> None:
    with pytest.raises(NotRecordedError, match=r"--model-flops.*--flops"):
        run("mfu", TraceBuilder().kernel("gemm", 0, 10).build())


def test_an_unknown_gpu_gives_a_rate_and_no_share() -> None:
    builder = _Step().device(0, name="Fancy GPU 7")
    builder.linear(WIDTH, WIDTH)
    result = run("mfu", builder.build())
    (row,) = result.table.rows()
    assert row["achieved_flop_per_s"] > 0
    assert row["mfu_ratio"] != row["mfu_ratio"]
    assert any("Shares of peak are not reported" in note.text for note in result.notes)


def test_what_is_computed_again_counts_for_hfu_alone() -> None:
    sizes: tuple[Any, Any, Any] = ([[4, 8], [8, 2]], [HALF] * 2, [])
    trace = (
        TraceBuilder()
        .host_op("aten::linear", 0, 10)
        .host_op("aten::mm", 2, 8, inputs=sizes)
        .kernel("gemm", 10, 20, launched_ns=(3, 4))
        .host_op("autograd::engine::evaluate_function: CheckpointFunctionBackward", 20, 60)
        .host_op("aten::linear", 22, 40)
        .host_op("aten::mm", 24, 30, inputs=sizes)
        .kernel("gemm", 30, 40, launched_ns=(25, 26))
        .host_op("autograd::engine::evaluate_function: MmBackward0", 42, 52)
        .host_op("aten::mm", 44, 50, inputs=sizes)
        .kernel("gemm", 50, 60, launched_ns=(45, 46))
        .build()
    )
    (row,) = run("mfu", trace).table.rows()
    assert row["executed_flop"] == 3 * 128
    assert row["model_flop"] == 2 * 128


def test_what_torch_counted_is_that_of_the_whole_model() -> None:
    builder = (
        TraceBuilder().device(0, name=H100).kernel("nvjet_tst_gemm", 0, 900, launched_ns=(0, 1))
    )
    builder.step(0, 1000, 0).step(1000, 2000, 1)
    for name, flop in (
        ("Global|aten.mm", 8e6),
        ("Global|aten._scaled_dot_product_flash_attention_backward", 5e6),
        ("Net|aten.mm", 8e6),
    ):
        builder.sample(f"flop:{name}", 10, flop, source="process:1")
    result = run("mfu", builder.build())
    (row,) = result.table.rows()
    assert row["source"].startswith("counted by torch")
    assert row["executed_flop"] == 13e6
    assert row["model_flop"] == 12e6
    counted = result.tables["counted"]
    assert counted["module"].tolist() == ["Global", "Global", "Net"]


@pytest.mark.parametrize("held", [0.0, 1.0])
def test_a_clock_that_is_held_down_stands_beside_the_rate(held: float) -> None:
    builder = _Step().device(0, name=H100)
    for number in range(4):
        begin = builder.at
        builder.linear(WIDTH, WIDTH)
        builder.step(begin, builder.at, number)
        for metric, value in (("throttled_by_power", held), ("sm_clock_mhz", 1200.0)):
            builder.sample(metric, begin, value, source="gpu:0")
    notes = run("mfu", builder.build()).notes
    assert any("reduced the clock" in note.text for note in notes) == bool(held)


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "precision", "share"), [("gpt", "bf16", (0.20, 0.26)), ("item", "fp32", (0.5, 0.7))]
)
def test_a_recorded_gpt_reaches_what_its_step_and_the_peak_of_its_precision_say(
    name: str, precision: str, share: tuple[float, float], real_trace: Callable[[str], Path]
) -> None:
    opening = Opening(parameters="55.5M", tokens="8192", is_cached=False)
    found = open_run([real_trace(f"h100/{name}-embedded.sqlite.gz")], opening)
    row = found.within("steady").result("mfu").table.row(0)
    assert row["precision"] == precision
    assert share[0] < row["mfu_ratio"] < share[1]


@pytest.mark.parametrize(("length_ns", "is_told"), [(1_000_000, True), (5_000_000, False)])
def test_a_page_tells_no_share_that_is_zero_where_it_is_printed(
    length_ns: int, *, is_told: bool
) -> None:
    product: tuple[Any, Any, Any] = ([[1000, 1000], [1000, 1000]], [HALF] * 2, [])
    trace = (
        TraceBuilder()
        .device(0, name=H100)
        .host_op("aten::mm", 0, 100, inputs=product)
        .kernel("gemm", 1000, 1000 + length_ns, launched_ns=(10, 20))
        .build()
    )
    result = run("mfu", trace)  # 2 GFLOP in 1 ms are 0.2% of 989 TFLOP/s
    assert result.table.row(0)["mfu_ratio"] == pytest.approx(2e6 / length_ns / 989.4, rel=0.01)
    notes = on_peak({"mfu": result}, "window")
    assert bool(notes) is is_told
    if is_told:
        assert "2.00 GFLOP in a window of 1.00 ms" in note_text(notes[0])
        assert "per step of" in note_text(on_peak({"mfu": result}, "step")[0])

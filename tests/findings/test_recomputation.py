"""Activation checkpointing is named with the time of the forward pass that it repeats."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import findings_of, in_default_window
from tests.running import run
from tests.training import MS, US
from traceprof.model.trace import Trace

EVALUATE = "autograd::engine::evaluate_function: "


def checkpointed(n_layers: int, n_checkpointed: int) -> Trace:
    """Return 8 steps of layers with 10 ms forward, 20 ms backward, and 10 ms recomputation."""
    builder, now = TraceBuilder().device(0, "NVIDIA H100"), 0
    for step in range(8):
        begin, at = now, now + 10 * US

        def work(length_ns: int) -> None:
            nonlocal now, at
            builder.kernel("bf16_gemm", now, now + length_ns, launched_ns=(at, at + 5 * US))
            now, at = now + length_ns, at + 10 * US

        for _ in range(n_layers):
            work(10 * MS)
        for layer in range(n_layers):
            if layer < n_checkpointed:
                name = f"{EVALUATE}CheckpointFunctionBackward"
                builder.host_op(name, at - 1, at + 19 * US)
                work(10 * MS)
            builder.host_op(f"{EVALUATE}MmBackward0", at - 1, at + 9 * US)
            work(20 * MS)
        builder.step(begin, now, step)
    return builder.build()


@pytest.mark.parametrize(("n_checkpointed", "share"), [(4, "25.0%"), (1, "7.7%")])
def test_checkpoints_recompute(n_checkpointed: int, share: str) -> None:
    found = findings_of(in_default_window(checkpointed(4, n_checkpointed)))
    (own,) = [one for one in found if one.rule == "recomputation"]
    assert own.title == (
        f"Activation checkpointing recomputes the forward pass: {share} of step time"
    )
    assert own.kind == "bounded"
    assert own.saving_ns == n_checkpointed * 10 * MS
    assert "create_selective_checkpoint_contexts" in own.action
    assert "memory" in own.caveat


def test_a_program_without_checkpoints_does_not() -> None:
    found = findings_of(in_default_window(checkpointed(4, 0)))
    assert "recomputation" not in [one.rule for one in found]


def test_without_autograd_functions_nothing_is_checked() -> None:
    builder = TraceBuilder().kernel("gemm", 0, MS, launched_ns=(0, 1))
    # This function launches no kernel.
    builder.host_op(f"{EVALUATE}MmBackward0", 10, 20)
    not_checked = run("findings", builder.build()).tables["not_checked"].to_frame()
    reasons = not_checked.set_index("rule")["reason"]
    assert reasons["recomputation"] == "no autograd functions in the analyzed time"
    subjects = run("findings", checkpointed(2, 0)).tables["not_checked"]["rule"].tolist()
    assert "recomputation" not in subjects

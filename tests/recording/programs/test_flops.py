"""What torch counts of a step while it is recorded is that by hand, and nothing else changes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.recording.conftest import record
from tests.requirements import require

pytestmark = [pytest.mark.torch]

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    loss = model(torch.randn(16, 32)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("loss", float(loss))
"""


def test_flops_of_a_step_are_counted_by_module_and_operator(tmp_path: Path) -> None:
    require("torch")
    command = [sys.executable, "-c", PROGRAM]
    counted = record(tmp_path / "counted.sqlite", command, "--with", "torch", "--flops")
    plain = record(tmp_path / "plain.sqlite", command, "--with", "torch")
    assert counted.done.returncode == 0, counted.done.stderr
    assert counted.done.stdout == plain.done.stdout
    samples = counted.trace.samples
    found = {
        row["metric"]: row["value"] for row in samples.rows() if row["metric"].startswith("flop:")
    }
    first, second = 2 * 16 * 32 * 64, 2 * 16 * 64 * 8
    assert found["flop:Global|aten.addmm"] == first + second
    assert found["flop:Global|aten.mm"] == first + 2 * second
    assert found["flop:Sequential.0|aten.addmm"] == first
    assert not any(row["metric"].startswith("flop:") for row in plain.trace.samples.rows())


def test_bytes_of_the_other_operators_are_counted_by_hand(tmp_path: Path) -> None:
    require("torch")
    command = [sys.executable, "-c", PROGRAM]
    counted = record(tmp_path / "counted.sqlite", command, "--with", "torch", "--flops")
    found = {
        row["metric"]: row["value"]
        for row in counted.trace.samples.rows()
        if row["metric"].startswith("moved:")
    }
    hidden, loss = 16 * 64 * 4, 16 * 8 * 4
    assert found["moved:aten.relu"] == 2 * hidden
    assert found["moved:aten.threshold_backward"] == 3 * hidden
    assert found["moved:aten.pow"] >= 2 * loss
    assert not found.keys() & {
        "moved:aten.addmm",
        "moved:aten.mm",
        "moved:aten.t",
        "moved:aten.view",
    }

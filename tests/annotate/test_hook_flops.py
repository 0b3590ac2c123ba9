"""Bytes of operators in the recorded program: by hand, for each kind of operator."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.requirements import require

pytestmark = [pytest.mark.torch]

PROGRAM = """
import json, sys, torch
sys.path.insert(0, "traceprof/annotate/inject")
from _traceprof_runtime.hook_flops import _byte_counter
table, rows = torch.randn(1000, 16), torch.tensor([1, 2, 3])
a, b = torch.randn(8, 4), torch.randn(8, 4)
weights = [torch.randn(10) for _ in range(4)]
WORK = {
    "add": lambda: a + b,
    "add_": lambda: a.add_(b),
    "copy_": lambda: a.copy_(b),
    "fill_": lambda: a.fill_(1.0),
    "expanded": lambda: a + b[:1].expand(8, 4),
    "views": lambda: a.t().view(4, 8)[1:].unsqueeze(0),
    "embedding": lambda: torch.embedding(table, rows),
    "index_put_": lambda: table.index_put_((rows,), torch.ones(3, 16)),
    "mm": lambda: a @ b.t(),
    "empty": lambda: torch.empty(1000),
    "fused": lambda: torch._fused_adamw_(
        weights[:1], weights[1:2], weights[2:3], weights[3:], [], [torch.tensor(1.0)], lr=0.1,
        beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False),
}
found = {}
for name, work in WORK.items():
    counts = {}
    with torch.no_grad(), _byte_counter(torch, counts):
        work()
    found[name] = sum(n for op, n in counts.items() if not op.endswith(("ones", "scalar_tensor")))
print(json.dumps(found))
"""


def test_each_input_is_read_once_and_each_output_written_once() -> None:
    require("torch")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    found, tensor = json.loads(done.stdout), 8 * 4 * 4
    assert found["add"] == 3 * tensor
    assert found["add_"] == 3 * tensor
    assert found["copy_"] == 2 * tensor
    assert found["fill_"] == tensor
    assert found["expanded"] <= 3 * tensor
    assert found["embedding"] == 2 * 3 * 16 * 4 + 3 * 8
    assert found["index_put_"] == 2 * 3 * 16 * 4 + 3 * 8
    assert found["views"] == found["mm"] == found["empty"] == 0
    assert found["fused"] == pytest.approx(7 * 10 * 4, abs=16)


BROKEN = """
import sys, torch
sys.path.insert(0, "traceprof/annotate/inject")
from _traceprof_runtime import hook_flops
hook_flops.complain = lambda *words: print(words[0])
counts = {}
mode = hook_flops._byte_counter(torch, counts)
with mode:
    print((torch.ones(2) + 1).tolist())
    hook_flops._n_bytes = lambda tensor: 1 / 0
    print((torch.ones(2) + 2).tolist())
print(mode.is_incomplete)
"""


def test_a_tensor_that_cannot_be_measured_does_not_disturb_the_program() -> None:
    require("torch")
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], check=True, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:-1] == [
        "[2.0, 2.0]",
        "bytes are not counted",
        "[3.0, 3.0]",
        "True",
    ]

"""Changes that save memory, or work of the optimizer, in small programs with known results."""

import json
import os
import subprocess
import sys

import pytest

from tests.requirements import require
from traceprof.recording.program import INJECT_FOLDER

pytestmark = pytest.mark.torch

MODEL = """
import copy, json, torch
from torch import nn

n_calls = 0

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        global n_calls
        n_calls += 1
        return torch.relu(self.linear(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()

torch.manual_seed(0)
model = Net()
batches = [torch.randn(8, 4), torch.randn(8, 4)]
"""
TRAIN = """
def weight():
    return model.blocks[1].linear.weight.detach().clone()

expected = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
begin, has_moved, calls = weight(), [], []
for batch in batches:
    n_calls = 0
    optimizer.zero_grad()
    model(batch).backward()
    calls.append(n_calls)
    optimizer.step()
    has_moved.append(not torch.equal(weight(), begin))
torch.autograd.backward(sum(expected(batch) for batch in batches) / 2)
aim = begin - 0.1 * expected.blocks[1].linear.weight.grad
with torch.no_grad():
    n_calls = 0
    model(batches[0])
print(json.dumps({
    "calls": calls, "has_moved": has_moved, "calls_without_gradients": n_calls,
    "error": float((weight() - aim).abs().max()),
}))
"""
SMALL_OPTIMIZERS = """
import torch

class AdamW8bit(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

class Adam8bit(AdamW8bit):
    pass
"""


def run(tmp_path, program, *changes, path=""):
    require("torch")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(INJECT_FOLDER), str(path)])),
        "TRACEPROF_DIR": str(tmp_path),
        "TRACEPROF_CHANGES": "\n".join(changes),
        "TRACEPROF_EMITTER": "spool",
    }
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_checkpointing_runs_blocks_again_and_accumulation_steps_with_the_mean(tmp_path):
    done = run(tmp_path, MODEL + TRAIN, "checkpoint=1", "accumulate=2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["calls"] == [6, 6]
    assert found["calls_without_gradients"] == 3
    assert found["has_moved"] == [False, True]
    assert found["error"] < 1e-6


def test_every_second_block_can_be_checkpointed(tmp_path):
    done = run(tmp_path, MODEL + TRAIN, "checkpoint=2")
    assert json.loads(done.stdout)["calls"] == [5, 5]


def with_small_optimizers(tmp_path):
    """Return a folder with a stand-in for bitsandbytes."""
    package = tmp_path / "packages" / "bitsandbytes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import optim")
    (package / "optim.py").write_text(SMALL_OPTIMIZERS)
    return package.parent


def test_adam_keeps_its_state_in_8_bits(tmp_path):
    program = (
        MODEL
        + """
from torch.optim import AdamW
found = [torch.optim.Adam(model.parameters(), 1e-3, foreach=True),
         AdamW(model.parameters(), lr=1e-3, weight_decay=0.5, fused=True)]
print(json.dumps([[type(one).__name__, one.param_groups[0]["weight_decay"]] for one in found]))
"""
    )
    done = run(tmp_path, program, "optimizer_8bit=", path=with_small_optimizers(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["Adam8bit", 0.01], ["AdamW8bit", 0.5]]


@pytest.mark.parametrize(
    ("change", "program", "reason"),
    [
        ("optimizer_8bit=", "import torch", "bitsandbytes is not installed"),
        (
            "checkpoint=1",
            "import torch; torch.nn.Linear(2, 2)(torch.ones(2))",
            "the model has no repeated blocks",
        ),
        (
            "optimizer_8bit=",
            MODEL + TRAIN,
            "the program uses neither Adam nor AdamW",
        ),
        (
            "empty_cache=4",
            MODEL + TRAIN,
            "the program uses no GPU",
        ),
    ],
)
def test_a_change_that_cannot_be_made_ends_the_program(tmp_path, change, program, reason):
    path = with_small_optimizers(tmp_path) if "neither" in reason else ""
    done = run(tmp_path, program, change, path=path)
    assert done.returncode == 97
    assert reason in done.stderr

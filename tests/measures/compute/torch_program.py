"""Runs operators of torch on the CPU, and says what torch's own counter counts of each.

Its argument is a folder: a profile of each operator goes there, and truth.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode


def _tensor(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


WORK = {
    "mm": lambda: _tensor(17, 33) @ _tensor(33, 9),
    "bmm": lambda: torch.bmm(_tensor(4, 17, 33), _tensor(4, 33, 9)),
    "baddbmm": lambda: torch.baddbmm(_tensor(4, 17, 9), _tensor(4, 17, 33), _tensor(4, 33, 9)),
    "linear": lambda: nn.Linear(31, 47)(_tensor(5, 6, 31)),
    "matmul": lambda: torch.matmul(_tensor(3, 5, 6, 7), _tensor(3, 5, 7, 2)),
    "conv1d": lambda: nn.Conv1d(4, 8, 5, stride=2)(_tensor(3, 4, 50)),
    "conv2d": lambda: nn.Conv2d(3, 16, 3, stride=2, dilation=2)(_tensor(2, 3, 33, 40)),
    "conv3d": lambda: nn.Conv3d(2, 4, (1, 3, 2))(_tensor(2, 2, 5, 7, 6)),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1)(
        _tensor(2, 4, 9, 11)
    ),
    "math_attention": lambda: functional.scaled_dot_product_attention(
        _tensor(2, 3, 16, 8).double(), _tensor(2, 3, 20, 8).double(), _tensor(2, 3, 20, 8).double()
    ),
    "block": lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)(
        _tensor(3, 10, 32)
    ),
}


def main(folder: Path) -> None:
    """Write the profiles and the truth."""
    truth = {}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for name, work in WORK.items():
            torch.manual_seed(0)
            with FlopCounterMode(display=False) as counter:
                work().sum().backward()  # type: ignore[no-untyped-call]
            truth[name] = counter.get_total_flops()
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
                work().sum().backward()  # type: ignore[no-untyped-call]
            profiled.export_chrome_trace(str(folder / f"{name}.json"))
    (folder / "truth.json").write_text(json.dumps(truth))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

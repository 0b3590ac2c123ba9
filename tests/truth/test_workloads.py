"""What every shared trace does, and that advice on it rests on the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_traces import ALL
from tests.requirements import require
from traceprof.measures.workload import workload
from traceprof.session.run import open_run

pytestmark = pytest.mark.traces

TRAINING = (
    "kineto/2021-resnet50.json.gz",
    "kineto/2023-2080ti-large.json.gz",
    "kineto/2025-mi300x-rccl.json.gz",
    "kineto/dlrm-8ranks-v100",
    "kineto/torchrec-4ranks-straggler-v100",
    "kineto/torchrec-4ranks-v100",
    "nsys/2022.2-pytorch-a100-gpu-metrics-sampling.sqlite.gz",
    "nsys/2022.2-pytorch-a100-sampling-osrt.sqlite.gz",
    "nsys/2025.1-llm-17k-kernels.sqlite",
    "nsys/2026.2-2gpu-nccl-after.sqlite",
    "nsys/2026.2-2gpu-nccl-before.sqlite",
    "nvprof/v11or12-pytorch-lm-markers.sql",
)
OTHERS = {
    "kineto/2025-b200-rank0of8.json.gz": "inference",
    "nsys/2022.4-copies-only-8gpu-host.sqlite": "loading",
    "nsys/2023.4-copies-no-kernels-t4.sqlite": "loading",
    "nvprof/v16-nccl-4gpu.nvvp": "communication benchmark",
}
"""What neither names nor kernels tell is "unknown"."""


@pytest.mark.parametrize("name", [one for one in ALL if one != "nvprof/zero-kernels.sql"])
def test_what_a_shared_trace_does(name: str) -> None:
    ranks = open_run([Path(require("traces")) / name]).of_ranks()
    kind = "training" if name in TRAINING else OTHERS.get(name, "unknown")
    assert workload(ranks.whole).kind == kind

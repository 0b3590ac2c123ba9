"""The real traces beside the checkout, by format. See CATALOGUE.md there."""

from __future__ import annotations

from typing import Final

NSYS: Final = (
    "nsys/2021-quadro-cuda.sqlite",
    "nsys/2022.2-pytorch-a100-gpu-metrics-sampling.sqlite.gz",
    "nsys/2022.2-pytorch-a100-sampling-osrt.sqlite.gz",
    "nsys/2022.2-saxpy-mpi-a100.sqlite",
    "nsys/2022.4-copies-only-8gpu-host.sqlite",
    "nsys/2022.4-jacobi-p2p-2gpu.sqlite.gz",
    "nsys/2022.4-nvtx-only.sqlite",
    "nsys/2023.4-copies-no-kernels-t4.sqlite",
    "nsys/2024.5-cloverleaf-a100.sqlite",
    "nsys/2024.6-cuda-graphs-a100.sqlite",
    "nsys/2024.6-llm-2.7b-nvtx-a100.sqlite",
    "nsys/2025.1-fuser-nvtx-h200.sqlite",
    "nsys/2025.1-llm-17k-kernels.sqlite",
    "nsys/2025.1-many-copies.sqlite",
    "nsys/2025.5-no-kernels.sqlite",
    "nsys/2025.6-non-utf8-metadata.sqlite",
    "nsys/2026.2-2gpu-nccl-after.sqlite",
    "nsys/2026.2-2gpu-nccl-before.sqlite",
    "nsys/2026.2-windows-laptop.sqlite",
)

KINETO: Final = (
    "kineto/2021-resnet50.json.gz",
    "kineto/2023-2080ti-large.json.gz",
    "kineto/2024-a100-plain.json",
    "kineto/2025-b200-rank0of8.json.gz",
    "kineto/2025-h100-bert-small.json.gz",
    "kineto/2025-mi300x-rccl.json.gz",
    *(f"kineto/dlrm-8ranks-v100/worker{rank}.pt.trace.json.gz" for rank in range(8)),
    *(f"kineto/resnet18-2ranks-v100/rank{rank}.pt.trace.json.gz" for rank in range(2)),
    *(f"kineto/torchrec-4ranks-v100/rank{rank}.pt.trace.json.gz" for rank in range(4)),
)
RUNS: Final = (
    "kineto/dlrm-8ranks-v100",
    "kineto/resnet18-2ranks-v100",
    "kineto/torchrec-4ranks-straggler-v100",
    "kineto/torchrec-4ranks-v100",
)
NVPROF: Final = (
    "nvprof/v11or12-pytorch-lm-markers.sql",
    "nvprof/v16-nccl-4gpu.nvvp",
    "nvprof/v8-tensorflow.nvvp",
    "nvprof/zero-kernels.sql",
)
ALL: Final = (
    *NSYS,
    *(name for name in KINETO if not name.startswith(RUNS)),
    *RUNS,
    *NVPROF,
)
"""Every trace once, runs as a whole."""
H100: Final = (
    *(f"h100/{name}-embedded.sqlite.gz" for name in ("cnn", "gpt", "graphs", "item", "serve")),
    *(f"h100/{name}-nsys2023.4-lost-kernels.sqlite.gz" for name in ("cnn", "gpt")),
    *("h100/ddp-gloo-2ranks-embedded", "h100/ddp-gloo-2ranks-nsys2023.4"),
    "h100/ddp-nccl-1rank-embedded",
)
"""Recorded by ourselves with programs whose truth is known, beside `ALL`."""

"""The categories of Kineto's events, of all versions: which rows of a table they become."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ANNOTATIONS",
    "API_CALLS",
    "COPIES",
    "FUNCTIONS",
    "KERNELS",
    "MEMORY",
    "ON_HOST",
    "OPERATORS",
    "OVERHEADS",
    "SYNCS",
]

KERNELS: Final = ("kernel", "Kernel")
COPIES: Final = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
API_CALLS: Final = (
    *("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime"),
    *("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver", "mtia_runtime"),
)
OPERATORS: Final = ("cpu_op", "Operator")
ANNOTATIONS: Final = ("user_annotation",)
FUNCTIONS: Final = ("python_function",)
SYNCS: Final = ("cuda_sync",)
OVERHEADS: Final = ("overhead",)
MEMORY: Final = ("cpu_instant_event",)
ON_HOST: Final = (*API_CALLS, *OPERATORS, *ANNOTATIONS, *FUNCTIONS)

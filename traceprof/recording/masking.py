"""Which variables of the environment are kept in a trace; secrets in them are masked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from traceprof.model.masking import MASK, is_secret, masked_login, names_secret

__all__ = ["kept_variables"]

_KEPT: Final = re.compile(
    r"(NCCL|RCCL|GLOO|TORCH|PYTORCH|CUDA|CUBLAS|CUDNN|OMP|MKL|KMP|UCX|UCC|FI|PMI)_\w+"
    r"|(OMPI_COMM_WORLD|I_MPI|MPICH|MV2|MVP)_\w+|OMPI_MCA_(btl|pml|mtl|coll|osc|io|op)\w*"
    r"|SLURM_(JOB_ID|NNODES|NTASKS|PROCID|LOCALID|NODEID|JOB_NODELIST|TOPOLOGY_ADDR(_PATTERN)?|GPUS\w*)"
    r"|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|NVIDIA_VISIBLE_DEVICES"
)


def kept_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are about training, without those that may hold a secret."""
    return {
        name: MASK if is_secret(value) else masked_login(value)
        for name, value in sorted(environment.items())
        if _KEPT.fullmatch(name) and not names_secret(name)
    }

"""The environment variables with which launchers tell a process its rank. None is a secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["RANK_VARIABLES"]

RANK_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
}
"""Variables that launchers set; the first that is there counts."""

"""Rank and rack of a process, from environment variables of launchers and batch systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RANK_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
}
"""Variables that launchers set; the first that exists counts. None contains a secret."""
_ADDRESS: Final = "SLURM_TOPOLOGY_ADDR"
_PATTERN: Final = "SLURM_TOPOLOGY_ADDR_PATTERN"
TOPOLOGY_VARIABLES: Final = (_ADDRESS, _PATTERN)
"""Variables that name switches and the node. None contains a secret."""


def rack_of(environment: Mapping[str, str]) -> str:
    """Return the switch of a node, which identifies its rack; "" if it is unknown.

    Slurm's SLURM_TOPOLOGY_ADDR lists the switches from the top down to the node, for example
    ``core.rack7.node3``. SLURM_TOPOLOGY_ADDR_PATTERN contains the kind of each part, for example
    ``switch.switch.node``, or ``node`` alone if no topology is configured (sbatch(1)).
    """
    names = TOPOLOGY_VARIABLES[::-1]
    values = (environment.get(name) or environment.get(f"env.{name}", "") for name in names)
    kinds, parts = (text.split(".") for text in values)
    if len(kinds) < 2 or kinds[-1] != "node" or len(parts) < len(kinds):
        return ""
    return parts[len(kinds) - 2]

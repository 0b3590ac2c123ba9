"""What launchers and batch systems tell a process by its environment: its rank, its rack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RANK_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
}
"""Variables that launchers set; the first that is there counts. None is a secret."""
_ADDRESS: Final = "SLURM_TOPOLOGY_ADDR"
_PATTERN: Final = "SLURM_TOPOLOGY_ADDR_PATTERN"
TOPOLOGY_VARIABLES: Final = (_ADDRESS, _PATTERN)
"""Variables that name switches and the node; none is a secret."""


def rack_of(environment: Mapping[str, str]) -> str:
    """Return the switch that a node hangs on, which stands for its rack; "" where nothing tells.

    Slurm's SLURM_TOPOLOGY_ADDR lists the switches from the top down to the node, as in
    ``core.rack7.node3``; SLURM_TOPOLOGY_ADDR_PATTERN says what each part is, as in
    ``switch.switch.node``, or ``node`` alone where no topology is configured (sbatch(1)).
    """
    names = TOPOLOGY_VARIABLES[::-1]
    told = (environment.get(name) or environment.get(f"env.{name}", "") for name in names)
    kinds, parts = (text.split(".") for text in told)
    if len(kinds) < 2 or kinds[-1] != "node" or len(parts) < len(kinds):
        return ""
    return parts[len(kinds) - 2]

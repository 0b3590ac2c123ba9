"""What a run ran in, under the same names whoever recorded it; never what may hold a secret."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from traceprof.measures.rows import lengths_of
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.names.kernels import MATRIX_WORK, precisions
from traceprof.secrets import kept_variables
from traceprof.session.answer import hardware_of
from traceprof.units import format_bytes

_FACTS: Final = """
    host os kernel architecture=architecture|cpu_architecture cpu cpu_count=cpu.count|cpu_cores
    cpu_limit=cpu.limit container driver=driver|nvidia_driver cuda_driver=driver.cuda|cuda_driver
    cuda=cuda|cuda_runtime hip=hip|hip_runtime cudnn nccl backend mpi=mpi.library|mpi python torch
    numpy lightning=lightning|pytorch-lightning accelerate transformers deepspeed cupti
    git_commit=git.commit git_branch=git.branch command
"""
_NAMES: Final[Mapping[str, Sequence[str]]] = {
    name: (sources or name).split("|")
    for name, _, sources in (fact.partition("=") for fact in _FACTS.split())
}
"""The facts that are kept: their names here, and what recordings call them."""
_UNKNOWN: Final = frozenset({"", "unknown", "none", "n/a"})
_VARIABLES: Final = re.compile(
    r"env\.((NCCL|RCCL|GLOO|CUDA|CUBLAS|CUDNN|OMP|MKL|TORCH|PYTORCH|UCX)_[A-Z0-9_]+)"
)
_NIC: Final = re.compile(r"(?:nic)\.([^.]+)\.speed_mbit_per_s")
_RDMA: Final = re.compile(r"rdma\.(.+)\.rate")
_LEAST_SHARE: Final = 0.05


def environment_of(ranks: Ranks) -> dict[str, str]:
    """Return what is known of machine and software, by the names that `Summary` has."""
    whole = ranks.whole
    frame = whole.table("environment")
    said = dict(zip(frame["name"].astype(str), frame["value"].astype(str), strict=True))
    return {name: value for name, value in _facts(whole, said) if value.lower() not in _UNKNOWN}


def _facts(ranks: Ranks, said: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield "profiler", ranks.info.profiler or next((p.info.profiler for p in ranks), "")
    for name, sources in _NAMES.items():
        yield name, next((said[source] for source in sources if said.get(source)), "")
    if said.get("cuda_driver", "").isdigit():
        yield "cuda_driver", _version(int(said["cuda_driver"]))
    if said.get("ram_bytes", "").isdigit():
        yield "ram", format_bytes(int(said["ram_bytes"]))
    models = hardware_of(ranks)
    yield "gpu", ", ".join(f"{n} × {name}" if n > 1 else name for name, n in models.items())
    yield "nic", ", ".join(_interfaces(said))
    state = {"changed": "yes", "clean": "no"}
    yield "git_is_dirty", state.get(said.get("git.state", ""), "")
    yield "precision", precision_of_run(ranks)
    matches = {name: _VARIABLES.fullmatch(name) for name in said}
    yield from kept_variables({m[1]: said[name] for name, m in matches.items() if m}).items()


def _version(number: int) -> str:
    """Return 13000, as CUDA numbers its versions, as 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}" if number >= 1000 else str(number)


def _interfaces(said: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(said.items()):
        if match := _NIC.fullmatch(name):
            yield f"{match[1]} {value} Mbit/s"
        elif match := _RDMA.fullmatch(name):
            yield f"{match[1]} {value}"


def _matrix_times(trace: Trace) -> dict[str, int]:
    """Return the ns of matrix work by the type of its elements, where that is known."""
    kernels = trace.kernels
    found = precisions(kernels)
    is_matrix = kernels["activity"].isin([own.value for own in MATRIX_WORK]).to_numpy()
    length = lengths_of(kernels)
    return {
        name: int(length[is_matrix & (found == name)].sum())
        for name in sorted(set(found[is_matrix].tolist()) - {""})
    }


def precision_of_run(ranks: Ranks) -> str:
    """Return the element types of the matrix work by time, those with 5 % of it and more."""
    sums: Counter[str] = Counter()
    for own in ranks.whole.each(_matrix_times):
        sums.update(own)
    whole = sum(sums.values())
    return ", ".join(name for name, ns in sums.most_common() if ns >= _LEAST_SHARE * whole)

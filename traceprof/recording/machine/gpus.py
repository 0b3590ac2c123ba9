"""The GPUs of this machine: whether there are any, and what the driver says of them."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = ["gpu_facts", "has_gpu", "why_no_counters"]

_PARAMETERS: Final = Path("/proc/driver/nvidia/params")
_SPEED_OF_LINKS: Final = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: of one link, one direction
_MAX_LINKS: Final = 36
# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`
_PATHS: Final = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

Facts = Iterator[tuple[str, str]]


@cache
def has_gpu() -> bool:
    """Return whether the driver shows a GPU; device files exist without one, too."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*"))


def why_no_counters() -> str | None:
    """Return why the counters inside the GPUs (GPU metrics) cannot be read, None if they can."""
    try:
        is_restricted = "RmProfilingAdminOnly: 1" in _PARAMETERS.read_text()
    except OSError:
        return "no driver is loaded"
    return "only root may read GPU metrics" if is_restricted and os.geteuid() else None


def gpu_facts() -> dict[str, str]:
    """Return what the driver says of itself, of the GPUs and of the links between them.

    ``gpu.0.pcie`` is the best that GPU and slot can do together, ``gpu.0.path.1`` what lies
    between two GPUs (as ``nvidia-smi topo`` calls it), ``gpu.0.nvlink`` the active links with the
    rate of each in one direction. What is not supported is left out.
    """
    if importlib.util.find_spec("pynvml") is None:
        return {}
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return {}
    facts = dict(_answers(nvml, _DRIVER))
    for number, handle in enumerate(handles):
        facts |= {f"gpu.{number}.{name}": value for name, value in _answers(nvml, _GPU, handle)}
        facts |= dict(_paths(nvml, handles, number))
    return facts | dict(_direct_links(nvml, handles))


def _answers(nvml: Any, questions: dict[str, Callable[..., str]], *of: Any) -> Facts:
    for name, ask in questions.items():
        try:
            answer = ask(nvml, *of)
        except nvml.NVMLError:
            continue
        if answer:
            yield name, answer


def _nvlink(nvml: Any, gpu: Any) -> str:
    count = len(_active_links(nvml, gpu))
    rate = _link_rate(nvml, gpu)
    return f"{count} links of {rate:g} GB/s" if count and rate else ""


def _active_links(nvml: Any, gpu: Any) -> list[int]:
    active = []
    for link in range(_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(gpu, link):
                active.append(link)
        except nvml.NVMLError:
            break
    return active


def _link_rate(nvml: Any, gpu: Any) -> float:
    """Return the GB/s of one link in one direction, 0 where it is not known."""
    (field,) = nvml.nvmlDeviceGetFieldValues(gpu, [_SPEED_OF_LINKS])
    return field.value.uiVal / 1000 if field.nvmlReturn == nvml.NVML_SUCCESS else 0.0


_DRIVER: Final[dict[str, Callable[..., str]]] = {
    "driver": lambda nvml: _string(nvml.nvmlSystemGetDriverVersion()),
    "driver.cuda": lambda nvml: _cuda_version(nvml.nvmlSystemGetCudaDriverVersion()),
}
_GPU: Final[dict[str, Callable[..., str]]] = {
    "name": lambda nvml, gpu: _string(nvml.nvmlDeviceGetName(gpu)),
    "uuid": lambda nvml, gpu: _string(nvml.nvmlDeviceGetUUID(gpu)),
    "memory_bytes": lambda nvml, gpu: str(nvml.nvmlDeviceGetMemoryInfo(gpu).total),
    "compute_capability": lambda nvml, gpu: ".".join(
        map(str, nvml.nvmlDeviceGetCudaComputeCapability(gpu))
    ),
    "pcie": lambda nvml, gpu: (
        f"gen {nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)} "
        f"x{nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)}"
    ),
    "nvlink": _nvlink,
}


def _paths(nvml: Any, gpus: Sequence[Any], number: int) -> Facts:
    for other in range(number + 1, len(gpus)):
        try:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(gpus[number], gpus[other])
        except nvml.NVMLError:
            continue
        if level in _PATHS:
            yield f"gpu.{number}.path.{other}", _PATHS[level]


def _direct_links(nvml: Any, gpus: Sequence[Any]) -> Facts:
    """Yield the NVLinks from GPU to GPU without a switch, with the rate of both directions.

    The form is that of the profilers, which `traceprof.measures.device.peaks` reads.
    """
    try:
        numbers = {_bus(nvml.nvmlDeviceGetPciInfo(gpu)): i for i, gpu in enumerate(gpus)}
        pairs: Counter[tuple[int, int]] = Counter()
        for number, gpu in enumerate(gpus):
            for link in _active_links(nvml, gpu):
                other = numbers.get(_bus(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link)), -1)
                if other > number:
                    pairs[number, other] += 1
        rates = [_link_rate(nvml, gpu) for gpu in gpus]
    except nvml.NVMLError:
        return
    for (one, other), count in sorted(pairs.items()):
        if rates[one]:
            total = 2 * count * rates[one]
            yield f"nvlink device {one} - device {other}", f"{count} links, {total:g} GB/s"


def _bus(pci: Any) -> tuple[int, int, int]:
    return pci.domain, pci.bus, pci.device


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _string(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

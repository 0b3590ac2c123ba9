"""Counters of the GPUs, from NVML."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["open_gpus", "read_gpu"]

_PERIOD_S: Final = 0.2
_MILLI: Final = 1e-3
# Field ids of nvml.h: cumulative data through all NVLinks, in KiB.
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139
_KIB: Final = 1024

Reading = Iterator[tuple[str, str, float]]


def open_gpus() -> tuple[float, Callable[[], Reading]] | None:
    """Return (period in seconds, read), None where there is no GPU or no nvidia-ml-py."""
    if importlib.util.find_spec("pynvml") is None:
        return None
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return None
    if not handles:
        return None

    def read() -> Reading:
        for number, handle in enumerate(handles):
            for metric, value in read_gpu(nvml, handle):
                yield f"gpu:{number}", metric, value

    return _PERIOD_S, read


def read_gpu(nvml: Any, handle: Any) -> Iterator[tuple[str, float]]:
    """Yield (metric, value) of one GPU; what it does not support is left out."""
    for metrics in (_utilisation, _memory, _power, _nvlink):
        try:
            yield from metrics(nvml, handle)
        except nvml.NVMLError:
            continue


def _utilisation(nvml: Any, handle: Any) -> Iterator[tuple[str, float]]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    yield "utilisation_percent", float(rates.gpu)
    yield "memory_utilisation_percent", float(rates.memory)


def _memory(nvml: Any, handle: Any) -> Iterator[tuple[str, float]]:
    yield "memory_bytes", float(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _power(nvml: Any, handle: Any) -> Iterator[tuple[str, float]]:
    yield "power_watts", nvml.nvmlDeviceGetPowerUsage(handle) * _MILLI


def _nvlink(nvml: Any, handle: Any) -> Iterator[tuple[str, float]]:
    fields = nvml.nvmlDeviceGetFieldValues(handle, [_NVLINK_SENT, _NVLINK_RECEIVED])
    for metric, field in zip(("nvlink_bytes_sent", "nvlink_bytes_received"), fields, strict=True):
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            yield metric, float(field.value.ullVal * _KIB)

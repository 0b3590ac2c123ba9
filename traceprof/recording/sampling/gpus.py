"""Counters of the GPUs, from NVML.

Names say the unit. ``…_bytes_sent`` and ``…_bytes_received`` are cumulative, seen from the GPU;
``…_bytes_per_s`` is an average over the 20 ms after the sample. What a GPU or its driver does not
support is left out. The meaning and unit of each field is that of nvml.h.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from traceprof.recording.sampling.pcie import pcie_reads

__all__ = ["open_gpus", "read_counters", "read_load", "read_state"]

_LOAD_PERIOD_S: Final = 0.5  # the driver itself averages over 1/6 s to 1 s
_COUNTER_PERIOD_S: Final = 0.2
_STATE_PERIOD_S: Final = 1.0
_MILLI: Final = 1e-3
_KIB: Final = 1024
# Field ids of nvml.h: cumulative payload in KiB. The scope is the number of a link, and the
# largest number all links together; left out it is 0, the first link.
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139
_ALL_LINKS: Final = 0xFFFFFFFF
_BY_POWER: Final = 0x04 | 0x80  # nvmlClocksEventReasonSwPowerCap, HwPowerBrakeSlowdown
_BY_HEAT: Final = 0x20 | 0x40  # SwThermalSlowdown, HwThermalSlowdown

Reading = Iterator[tuple[str, str, float]]
Metrics = Iterator[tuple[str, float]]


def open_gpus() -> list[tuple[float, Callable[[], Reading]]]:
    """Return (period in seconds, read) of everything; nothing without a GPU or nvidia-ml-py."""
    if importlib.util.find_spec("pynvml") is None:
        return []
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []
    if not handles:
        return []
    return [
        (_LOAD_PERIOD_S, _read_all(nvml, handles, read_load)),
        (_COUNTER_PERIOD_S, _read_all(nvml, handles, read_counters)),
        (_STATE_PERIOD_S, _read_all(nvml, handles, read_state)),
        *pcie_reads(nvml, handles),
    ]


def _read_all(
    nvml: Any, handles: Sequence[Any], read: Callable[[Any, Any], Metrics]
) -> Callable[[], Reading]:
    def read_all() -> Reading:
        for number, handle in enumerate(handles):
            for metric, value in read(nvml, handle):
                yield f"gpu:{number}", metric, value

    return read_all


def read_load(nvml: Any, handle: Any) -> Metrics:
    """Yield (metric, value) of utilisation, memory and power of one GPU."""
    return _supported(nvml, handle, (_utilisation, _memory, _power))


def read_counters(nvml: Any, handle: Any) -> Metrics:
    """Yield (metric, value) of the NVLinks of one GPU together."""
    return _supported(nvml, handle, (_nvlink,))


def read_state(nvml: Any, handle: Any) -> Metrics:
    """Yield (metric, value) of clocks, what holds them down, and the link to the host."""
    return _supported(nvml, handle, (_sm_clock, _memory_clock, _throttling, _pcie_link))


def _supported(nvml: Any, handle: Any, metrics: Sequence[Callable[[Any, Any], Metrics]]) -> Metrics:
    for metric in metrics:
        try:
            yield from metric(nvml, handle)
        except nvml.NVMLError:
            continue


def _utilisation(nvml: Any, handle: Any) -> Metrics:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    yield "utilisation_percent", float(rates.gpu)
    yield "memory_utilisation_percent", float(rates.memory)


def _memory(nvml: Any, handle: Any) -> Metrics:
    yield "memory_used_bytes", float(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _power(nvml: Any, handle: Any) -> Metrics:
    yield "power_watts", nvml.nvmlDeviceGetPowerUsage(handle) * _MILLI


def _nvlink(nvml: Any, handle: Any) -> Metrics:
    wanted = [(_NVLINK_SENT, _ALL_LINKS), (_NVLINK_RECEIVED, _ALL_LINKS)]
    fields = nvml.nvmlDeviceGetFieldValues(handle, wanted)
    for metric, field in zip(("nvlink_bytes_sent", "nvlink_bytes_received"), fields, strict=True):
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            yield metric, float(field.value.ullVal * _KIB)


def _sm_clock(nvml: Any, handle: Any) -> Metrics:
    yield "sm_clock_mhz", float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))


def _memory_clock(nvml: Any, handle: Any) -> Metrics:
    yield "memory_clock_mhz", float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))


def _throttling(nvml: Any, handle: Any) -> Metrics:
    """Yield 1 where power or heat holds the clocks down, else 0."""
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except nvml.NVMLError:  # drivers before 535 know the older name
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    yield "throttled_by_power", float(bool(reasons & _BY_POWER))
    yield "throttled_by_heat", float(bool(reasons & _BY_HEAT))


def _pcie_link(nvml: Any, handle: Any) -> Metrics:
    yield "pcie_generation", float(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
    yield "pcie_lanes", float(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))

"""Read GPU counters from NVML, with PCIe traffic from byte counters or short measurements.

Metric names contain the unit. ``…_bytes_sent`` and ``…_bytes_received`` are cumulative, from the
viewpoint of the GPU. ``…_bytes_per_s`` is an average over the 20 ms after the sample. Metrics that
a GPU or its driver does not support are omitted. The meaning and unit of each field is that of
nvml.h.

The PCIe counters have 32 bits, that is, 4.3 GB. If a link could carry 4.3 GB between two polls, the
number of wraparounds is unknown: the counter is then NaN for that time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.hardware.catalogue import pcie_peak
from traceprof.recording.machine import open_nvml
from traceprof.recording.sampling.host import Reading, Reads

_SENT, _RECEIVED = 197, 198  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES, _RX_BYTES
_DIRECTIONS: Final = ("sent", "received")
_PERIOD_S: Final = 0.2
_POLLS_PER_SAMPLE: Final = 4  # for counters that wrap around
_VALUE_TYPES: Final = {1: ("uiVal", 32), 2: ("ulVal", 64), 3: ("ullVal", 64)}  # nvmlValueType_t
_MAX_MEASURING_RATIO: Final = 0.2  # of the time of the sampler
_MEASURING_S: Final = 0.021
_KB: Final = 1000

_LOAD_PERIOD_S: Final = 0.5  # the driver itself averages over 1/6 s to 1 s
_COUNTER_PERIOD_S: Final = 0.2
_STATE_PERIOD_S: Final = 1.0
_MILLI: Final = 1e-3
_KIB: Final = 1024
# Field ids of nvml.h: cumulative payload in KiB. The scope is the number of a link. The largest
# number means all links together, and the default 0 is the first link.
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139
_ALL_LINKS: Final = 0xFFFFFFFF
_BY_POWER: Final = 0x04 | 0x80  # nvmlClocksEventReasonSwPowerCap, HwPowerBrakeSlowdown
_BY_HEAT: Final = 0x20 | 0x40  # SwThermalSlowdown, HwThermalSlowdown
Metrics = dict[str, float]
ReadOfGpu = Callable[[Any, Any], Metrics]


def pcie_reads(nvml: Any, handles: Sequence[Any]) -> Reads:
    """Return (period in seconds, read) for the PCIe traffic of each GPU."""
    gpus = [
        PcieCounters(nvml, handle, f"gpu:{number}", _wrap_time_s(nvml, handle))
        for number, handle in enumerate(handles)
    ]
    measured = [gpu for gpu in gpus if not gpu.is_usable()]
    period_s = max(1.0, 2 * len(measured) * _MEASURING_S / _MAX_MEASURING_RATIO)
    return [
        *((_PERIOD_S / _POLLS_PER_SAMPLE, gpu.read) for gpu in gpus if gpu not in measured),
        *(
            (period_s, partial(_measure, gpu, direction))
            for gpu in measured
            for direction in _DIRECTIONS
        ),
    ]


def _wrap_time_s(nvml: Any, handle: Any) -> float:
    """Return the time in seconds in which the link, at its peak, transfers 2**32 bytes.

    Returns 0 where the link is unknown.
    """
    try:
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        lanes = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        return float(2**32 / pcie_peak(generation, lanes).bytes_per_s)
    except (nvml.NVMLError, UsageError):
        return 0.0


@dataclass(slots=True)
class PcieCounters:
    """The two PCIe counters of one GPU, made cumulative across wraparounds.

    ``wrap_time_s`` is the shortest time between two wraparounds of a 32-bit counter.
    """

    nvml: Any
    handle: Any
    source: str
    wrap_time_s: float
    clock: Callable[[], float] = time.monotonic
    _last: list[int] = field(default_factory=list)
    _last_s: float = 0.0
    _totals: list[int] = field(default_factory=lambda: [0, 0])
    _is_known: bool = True
    _n_polls: int = 0

    def is_usable(self) -> bool:
        """Return whether the driver has the counters and polls are frequent enough for them."""
        polled = self._poll()
        is_often_enough = self.wrap_time_s > _PERIOD_S / _POLLS_PER_SAMPLE
        return polled is not None and (polled[1] == 64 or is_often_enough)

    def read(self) -> Reading:
        """Poll the counters, and yield them at every `_POLLS_PER_SAMPLE`-th poll."""
        polled, now_s = self._poll(), self.clock()
        if polled is None:
            self._is_known, self._last = False, []
            return
        values, bits = polled
        if self._last:
            if bits == 32 and now_s - self._last_s >= self.wrap_time_s:
                self._is_known = False
            self._totals = [
                total + (value - last) % 2**bits
                for total, value, last in zip(self._totals, values, self._last, strict=True)
            ]
        self._last, self._last_s = values, now_s
        if self._n_polls % _POLLS_PER_SAMPLE == 0:
            for direction, total in zip(_DIRECTIONS, self._totals, strict=True):
                yield (
                    self.source,
                    f"pcie_bytes_{direction}",
                    float(total) if self._is_known else math.nan,
                )
            self._is_known = True
        self._n_polls += 1

    def _poll(self) -> tuple[list[int], int] | None:
        """Return the values of the counters and their number of bits, None if unavailable."""
        try:
            fields = self.nvml.nvmlDeviceGetFieldValues(self.handle, [_SENT, _RECEIVED])
        except self.nvml.NVMLError:
            return None
        values, bits = [], 64
        for field_value in fields:
            if (
                field_value.nvmlReturn != self.nvml.NVML_SUCCESS
                or field_value.valueType not in _VALUE_TYPES
            ):
                return None
            member, bits = _VALUE_TYPES[field_value.valueType]
            values.append(int(getattr(field_value.value, member)))
        return values, bits


def _measure(gpu: PcieCounters, direction: str) -> Reading:
    """Measure the PCIe traffic in one direction for 20 ms, and yield its rate.

    NVML reports KB, which may mean 1000 or 1024 bytes; 1000 is assumed.
    """
    nvml = gpu.nvml
    counter = nvml.NVML_PCIE_UTIL_TX_BYTES if direction == "sent" else nvml.NVML_PCIE_UTIL_RX_BYTES
    with suppress(nvml.NVMLError):
        rate = nvml.nvmlDeviceGetPcieThroughput(gpu.handle, counter) * _KB
        yield gpu.source, f"pcie_{direction}_bytes_per_s", float(rate)


def open_gpus() -> Reads:
    """Return (period in seconds, read) of all GPU metrics; [] without GPU or nvidia-ml-py."""
    nvml, handles = open_nvml()
    if not handles:
        return []
    return [
        *((period_s, partial(_read_all, nvml, handles, metrics)) for period_s, metrics in _READS),
        *pcie_reads(nvml, handles),
    ]


def _read_all(nvml: Any, handles: Sequence[Any], reads: Sequence[ReadOfGpu]) -> Reading:
    for number, handle in enumerate(handles):
        for read in reads:
            with suppress(nvml.NVMLError):
                for metric, value in read(nvml, handle).items():
                    yield f"gpu:{number}", metric, float(value)


def _utilization(nvml: Any, gpu: Any) -> Metrics:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return {"utilization_percent": rates.gpu, "memory_utilization_percent": rates.memory}


def _nvlink(nvml: Any, gpu: Any) -> Metrics:
    wanted = [(_NVLINK_SENT, _ALL_LINKS), (_NVLINK_RECEIVED, _ALL_LINKS)]
    found = nvml.nvmlDeviceGetFieldValues(gpu, wanted)
    return {
        metric: value.value.ullVal * _KIB
        for metric, value in zip(("nvlink_bytes_sent", "nvlink_bytes_received"), found, strict=True)
        if value.nvmlReturn == nvml.NVML_SUCCESS
    }


def _throttling(nvml: Any, gpu: Any) -> Metrics:
    """Return whether power or heat limits the clocks (1 or 0)."""
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except nvml.NVMLError:  # drivers before 535 have the older name
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    by_power, by_heat = bool(reasons & _BY_POWER), bool(reasons & _BY_HEAT)
    return {"throttled_by_power": by_power, "throttled_by_heat": by_heat}


def _temperature(nvml: Any, gpu: Any) -> Metrics:
    celsius = nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
    return {"temperature_celsius": celsius}


def _pcie_link(nvml: Any, gpu: Any) -> Metrics:
    generation = nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)
    return {"pcie_generation": generation, "pcie_lanes": nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)}


_LOAD: Final[tuple[ReadOfGpu, ...]] = (
    _utilization,
    lambda nvml, gpu: {"memory_used_bytes": nvml.nvmlDeviceGetMemoryInfo(gpu).used},
    lambda nvml, gpu: {"power_watts": nvml.nvmlDeviceGetPowerUsage(gpu) * _MILLI},
)
_STATE: Final[tuple[ReadOfGpu, ...]] = (
    lambda nvml, gpu: {"sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)},
    lambda nvml, gpu: {"memory_clock_mhz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)},
    _throttling,
    _temperature,
    _pcie_link,
)
_READS: Final = (
    (_LOAD_PERIOD_S, _LOAD),
    (_COUNTER_PERIOD_S, (_nvlink,)),
    (_STATE_PERIOD_S, _STATE),
)
"""(period in seconds, reads). Each read that a GPU or its driver does not support is omitted."""

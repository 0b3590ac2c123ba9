"""What ran, as far as the recording tells: advice must fit it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import pandas as pd

from traceprof.facts.cache import fact
from traceprof.model.ranks import Ranks
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = ["Software", "Vendor", "software_of"]


class Vendor(StrEnum):
    """Who made the devices."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Software:
    """What ran: whether it was Python, and PyTorch in it; on whose devices; who recorded it.

    ``recorder`` is the format of the recording (nsys, nvprof, kineto …). False means that nothing
    of it was seen.
    """

    has_python: bool
    has_pytorch: bool
    vendor: Vendor
    recorder: str


_PYTHON: Final = re.compile(r"(^|[/\\ ])(python|pytest|ipython|jupyter)[\d.]*(\.exe)?( |$)", re.I)
_PYTORCH_KERNEL: Final = re.compile(r"\bat::|at_cuda|c10::|\bat\d+native|N2at6native")
_PYTORCH_RANGE: Final = re.compile(r"^(aten::|autograd::|torch::|ProfilerStep#|Optimizer\.)")
_AMD: Final = re.compile(r"\bAMD\b|Instinct|Radeon|\bMI[23]\d\d|gfx\d", re.IGNORECASE)
_NVIDIA: Final = re.compile(
    r"NVIDIA|GeForce|Quadro|Tesla|TITAN|\b(RTX|GTX|[AHBLVPTK]\d{1,3}|GH200|GB[23]00)\b", re.I
)


@fact
def software_of(ranks: Ranks) -> Software:
    """Return what ran in the recording."""
    parts = list(ranks)
    recorder = ranks.info.format or parts[0].info.format
    has_pytorch = recorder == "kineto" or any(ranks.each(_has_pytorch))
    names = [str(name) for part in parts for name in part.processes["name"].unique()]
    has_python = has_pytorch or any(map(_PYTHON.search, names))
    return Software(has_python, has_pytorch, _vendor_of(parts), recorder)


def _has_pytorch(part: Trace) -> bool:
    return (
        _any_named(part.kernels["name"], _PYTORCH_KERNEL)
        or _any_named(part.ranges["name"], _PYTORCH_RANGE)
        or _any_named(part.host_ops["name"], _PYTORCH_RANGE)
        or bool((part.ranges["domain"] == OWN_DOMAIN).any())
    )


def _any_named(names: pd.Series, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(str(name)) for name in names.cat.categories)


def _vendor_of(parts: Iterable[Trace]) -> Vendor:
    devices = [d for part in parts for d in part.devices.itertuples() if d.used == 1]
    if any(_AMD.search(str(device.name)) for device in devices):
        return Vendor.AMD
    if any(_NVIDIA.search(str(device.name)) for device in devices):
        return Vendor.NVIDIA
    calls = [str(name) for part in parts for name in part.api_calls["name"].cat.categories]
    if any(name.startswith("hip") for name in calls):
        return Vendor.AMD
    recorders = {part.info.format for part in parts}
    seen = any(name.startswith("cu") for name in calls) or bool(recorders & {"nsys", "nvprof"})
    return Vendor.NVIDIA if seen else Vendor.OTHER

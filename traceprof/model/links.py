"""Links between devices, hosts and machines, and how fast they can be in one direction."""

from __future__ import annotations

import re
import tomllib
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final

from traceprof.errors import UsageError
from traceprof.values import dataclass

__all__ = ["Link", "Peak", "parse_link", "pcie_peak"]

_LANES: Final = (1, 2, 4, 8, 16)
_PCIE: Final = re.compile(r"gen\s*(\d+)\s*x\s*(\d+)", re.IGNORECASE)
_RATE: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kKMGT])(B|b|bit)(?:/s|ps)")
_PREFIXES: Final = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


class Link(StrEnum):
    """What data moves over."""

    PCIE = "pcie"
    NVLINK = "nvlink"
    NIC = "nic"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Peak:
    """A rate that a link cannot exceed in one direction; what it is, and who says so."""

    bytes_per_s: float
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.bytes_per_s / 1e9:.4g} GB/s ({self.what}; {self.source})"


def pcie_peak(generation: int, lanes: int) -> Peak:
    """Return the peak of PCI Express of this generation and width.

    Raises:
        UsageError: there is no such generation or width.
    """
    rates = _pcie_lane_rates()
    if generation not in rates or lanes not in _LANES:
        raise UsageError(
            f"PCIe gen{generation}x{lanes}: expected gen{min(rates)} to gen{max(rates)} "
            "and x1, x2, x4, x8 or x16"
        )
    rate, source = rates[generation]
    return Peak(rate * lanes, f"PCIe {generation}.0 x{lanes}", source)


@cache
def _pcie_lane_rates() -> dict[int, tuple[float, str]]:
    """Return bytes per second of one lane, and the source, by generation."""
    text = files("traceprof.model").joinpath("links.toml").read_text("utf-8")
    return {
        row["generation"]: (row["gt_per_s"] * row["encoding_ratio"] / 8 * 1e9, row["source"])
        for row in tomllib.loads(text)["pcie"]
    }


def parse_link(text: str) -> tuple[Link, Peak]:
    """Return the link and the peak that ``text`` gives: ``pcie=gen4x16``, ``nic=400Gb/s``.

    A rate is of one direction; ``B`` are bytes and ``b`` bits.

    Raises:
        UsageError: the text is not LINK=RATE.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    known = [link.value for link in Link]
    if not equals or name.lower() not in known:
        raise UsageError(
            f"link {text!r}: expected {', '.join(known)} = a rate, such as pcie=gen4x16 "
            "or nic=400Gb/s"
        )
    link = Link(name.lower())
    generation = _PCIE.fullmatch(value)
    if generation and link is Link.PCIE:
        peak = pcie_peak(int(generation.group(1)), int(generation.group(2)))
        return link, Peak(peak.bytes_per_s, peak.what, "as given by --link")
    return link, Peak(_parse_rate(text, value), link.value, "as given by --link")


def _parse_rate(text: str, value: str) -> float:
    match = _RATE.fullmatch(value)
    if match is None or float(match.group(1)) <= 0:
        raise UsageError(f"link {text!r}: {value!r} is not a rate such as 31.5GB/s or 400Gb/s")
    number, prefix, unit = match.groups()
    return float(number) * _PREFIXES[prefix.lower()] / (1 if unit == "B" else 8)

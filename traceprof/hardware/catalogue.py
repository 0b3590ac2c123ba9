"""Hardware peaks: bandwidths of links and memory in one direction, and FLOP rates, with sources.

The figures are in ``hardware.toml`` and ``links.toml`` beside this module. A user's TOML file of
the same form takes precedence. A measured rate above its peak is shown unchanged: then the peak
does not belong to the link that was used, and the reader must see that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from traceprof.errors import UsageError
from traceprof.files import parse_toml
from traceprof.registries import check_distinct

_LANES: Final = (1, 2, 4, 8, 16)
_PCIE: Final = re.compile(r"gen\s*(\d+)\s*x\s*(\d+)", re.IGNORECASE)
_RATE: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kKMGT])(B|b|bit)(?:/s|ps)")
_PREFIXES: Final = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d*)?(?:e\+?\d{1,3})?|\.\d+)\s*([kmgbtpe]?)", re.IGNORECASE)
_SCALES: Final = {"": 1.0, **_PREFIXES, "b": 1e9, "p": 1e15, "e": 1e18}
_PRICE: Final = re.compile(r"\W?(\d+(?:\.\d*)?|\.\d+)\s*+\w{0,3}\s*+(?:/\s*h)?")
_GB: Final = 1e9
_PARTIAL_OR_MOBILE: Final = re.compile(r"\b(MIG|GRID|vGPU|Laptop|Max-Q|Mobile)\b", re.IGNORECASE)
_KNOWN_KEYS: Final = frozenset(
    {"key", "names", "source", "compute_capability", "multiprocessors", "memory_gb_per_s"}
    | {"tflops", "pcie_generation", "host_link_gb_per_s", "nvlink_links", "nvlink_link_gb_per_s"}
    | {"fabric"}
)
_PRECISIONS: Final = frozenset({"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"})
_MAX_RATE: Final = 1e12
"""Upper bound of a valid rate; rejects infinity."""
_FAMILIES: Final = (
    (r"\bV100|TITAN V\b", {"fp16": 8.0}),
    (r"GeForce RTX 20\d\d", {"fp16": 4.0}),
    (r"\bT4\b|Quadro RTX|TITAN RTX", {"fp16": 8.0}),
    (r"\bA(100|800|30)\b|\bA100X", {"tf32": 8.0, "bf16": 16.0, "fp16": 16.0}),
    (r"GeForce RTX (3|4|5)0\d\d", {"bf16": 2.0, "fp16": 2.0}),
    (r"\b(A2|A10|A16|A40|L4|L40S)\b|RTX A\d000", {"tf32": 2.0, "bf16": 4.0, "fp16": 4.0}),
    (r"RTX \d000 Ada|RTX PRO \d000 Blackwell", {"tf32": 2.0, "bf16": 4.0, "fp16": 4.0}),
    (r"\b(H100|H200|H800|GH200)\b", {"tf32": 7.4, "bf16": 14.8, "fp16": 14.8}),
    (r"\b(B100|B200|GB200)\b", {"tf32": 15.0, "bf16": 30.0, "fp16": 30.0}),
)


class Link(StrEnum):
    """The connection or memory that data moves over."""

    PCIE = "pcie"
    NVLINK = "nvlink"
    NIC = "nic"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Peak:
    """The maximum rate of a link in one direction, with a description and its source."""

    bytes_per_s: float
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.bytes_per_s / 1e9:.4g} GB/s ({self.what}; {self.source})"


def pcie_peak(generation: int, lanes: int) -> Peak:
    """Return the peak of a PCI Express generation and width.

    Raises:
        UsageError: there is no such generation or width.
    """
    rates = _pcie_lane_rates()
    if generation not in rates or lanes not in _LANES:
        raise UsageError(
            f"unknown PCIe link gen{generation}x{lanes}: expected gen{min(rates)} to "
            f"gen{max(rates)} and x1, x2, x4, x8, or x16"
        )
    rate, source = rates[generation]
    return Peak(rate * lanes, f"PCIe {generation}.0 x{lanes}", source)


@cache
def _pcie_lane_rates() -> dict[int, tuple[float, str]]:
    """Return bytes per second of one lane and the source, by generation."""
    text = Path(__file__).with_name("links.toml").read_text("utf-8")
    return {
        row["generation"]: (row["gt_per_s"] * row["encoding_ratio"] / 8 * 1e9, row["source"])
        for row in parse_toml(text, "links")["pcie"]
    }


def parse_link(text: str) -> tuple[Link, Peak]:
    """Return the link and the peak in ``text``: ``pcie=gen4x16``, ``nic=400Gb/s``.

    The rate applies to one direction. ``B`` means bytes and ``b`` bits.

    Raises:
        UsageError: the text is not LINK=RATE.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    known = [link.value for link in Link]
    if not equals or name.lower() not in known:
        raise UsageError(
            f"invalid link {text!r}: expected LINK=RATE, such as pcie=gen4x16 or nic=400Gb/s; "
            f"LINK is one of {', '.join(known)}"
        )
    link = Link(name.lower())
    generation = _PCIE.fullmatch(value)
    if generation and link is Link.PCIE:
        peak = pcie_peak(int(generation.group(1)), int(generation.group(2)))
        return link, Peak(peak.bytes_per_s, peak.what, "from --link")
    match = _RATE.fullmatch(value)
    if match is None or float(match.group(1)) <= 0:
        raise UsageError(
            f"link {text!r}: invalid rate {value!r}; expected a rate such as 31.5GB/s or 400Gb/s"
        )
    number, prefix, unit = match.groups()
    rate = float(number) * _PREFIXES[prefix.lower()] / (1 if unit == "B" else 8)
    return link, Peak(rate, link.value, "from --link")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU model: its ``--gpu`` name, its names in traces, and its peaks.

    ``flops_per_s`` contains the rates of dense matrix products by precision (fp32, tf32, fp16,
    bf16). ``compute_capability`` is NVIDIA's, 86 for 8.6.
    """

    key: str
    names: tuple[str, ...]
    peaks: Mapping[Link, Peak]
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    compute_capability: int | None = None
    multiprocessors: int | None = None


@dataclass(frozen=True, slots=True)
class Stated:
    """The user's information about model and cost, which no trace contains; None: not given.

    ``model_flop`` are the FLOPs of a step on all GPUs together (forward and backward, without
    recomputation). ``tokens`` is the number of tokens per step. ``price_per_h`` is the price of one
    GPU per hour.
    """

    model_flop: float | None = None
    parameters: float | None = None
    tokens: float | None = None
    price_per_h: float | None = None

    @classmethod
    def of(cls, model_flops: str, parameters: str, tokens: str, price: str) -> Self:
        """Return the information in the texts of the options; "" means not given.

        Raises:
            UsageError: a text is not a valid number, or parameters are given without tokens.
        """
        texts = {"--model-flops": model_flops, "--parameters": parameters, "--tokens": tokens}
        model_flop, parameter_count, token_count = (_amount(*item) for item in texts.items())
        if parameters and not (tokens or model_flops):
            raise UsageError(
                "--parameters requires --tokens: add the number of tokens per step on all GPUs"
            )
        match = _PRICE.fullmatch(price)
        if price and (match is None or not float(match[1])):
            raise UsageError(
                f"invalid --price {price!r}: expected the price of a GPU per hour, such as 2.5/h"
            )
        price_per_h = None if match is None else float(match[1])
        return cls(model_flop, parameter_count, token_count, price_per_h)

    @property
    def step_flop(self) -> float | None:
        """The FLOPs of a step: as given, otherwise six per parameter and token."""
        if self.model_flop is not None or self.parameters is None or self.tokens is None:
            return self.model_flop
        return 6 * self.parameters * self.tokens


def _amount(name: str, text: str) -> float | None:
    match = _AMOUNT.fullmatch(text.strip())
    if text and (match is None or not float(match[1])):
        raise UsageError(
            f"invalid {name} {text!r}: expected a positive number such as 55.5M, 7B, or 2.9e12"
        )
    return None if match is None else float(match[1]) * _SCALES[match[2].lower()]


@dataclass(frozen=True, slots=True)
class Hardware:
    """The known GPU models, the user's own first, and the user's settings.

    ``chosen`` is the model that the user specified for all devices. ``links`` are the user's peaks,
    which override the table. ``stated`` is the user's information about the model. ``tests`` are
    the bandwidths that nccl-tests measured on this machine.
    """

    gpus: tuple[Gpu, ...] = ()
    chosen: Gpu | None = None
    links: Mapping[Link, Peak] = field(default_factory=dict)
    stated: Stated = Stated()
    tests: tuple[Any, ...] = ()

    def with_gpu(self, key: str) -> Self:
        """Return the same hardware with one model for all devices: its key or a device name.

        Examples of ``key``: "h100-sxm", "AMD Instinct MI300X".

        Raises:
            UsageError: the table has no such model.
        """
        wanted = key.strip().lower()
        for gpu in self.gpus:
            if gpu.key == wanted:
                return replace(self, chosen=gpu)
        named = self.find(key)
        if named is not None:
            return replace(self, chosen=named)
        known = ", ".join(dict.fromkeys(gpu.key for gpu in self.gpus))
        raise UsageError(f"unknown GPU {key!r}: expected one of {known}")

    def with_link(self, text: str) -> Self:
        """Return the same hardware with a link in the user's notation: ``pcie=gen4x16``.

        Raises:
            UsageError: the text is not LINK=RATE.
        """
        link, peak = parse_link(text)
        return replace(self, links={**self.links, link: peak})

    def over(self, other: Hardware) -> Self:
        """Return this hardware with precedence over ``other``."""
        return replace(
            self,
            gpus=(*self.gpus, *other.gpus),
            chosen=self.chosen or other.chosen,
            links={**other.links, **self.links},
        )

    def find(self, device_name: str) -> Gpu | None:
        """Return the model of a device by the longest known name inside its name; None if unknown.

        Slices of a GPU (MIG, vGPU) have only a part of the peaks, and a laptop GPU has the name of
        a faster card. Both are unknown.
        """
        if _PARTIAL_OR_MOBILE.search(device_name):
            return None
        found = [
            (len(name), -place, gpu)
            for place, gpu in enumerate(self.gpus)
            for name in gpu.names
            if _stands_in(name, device_name)
        ]
        return max(found, key=lambda item: item[:2])[2] if found else None

    def model_of(self, device_name: str) -> Gpu | None:
        """Return the model of a device of this name: the user's choice, otherwise `find`."""
        return self.chosen or self.find(device_name)

    def peak(self, link: Link, device_name: str) -> Peak | None:
        """Return the peak of ``link`` for a device of this name; None if unknown."""
        if link in self.links:
            return self.links[link]
        gpu = self.model_of(device_name)
        return None if gpu is None else gpu.peaks.get(link)


def _stands_in(name: str, device_name: str) -> bool:
    if name.casefold() not in device_name.casefold():  # avoids compiling a pattern for most names
        return False
    pattern = rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])"
    return re.search(pattern, device_name, re.IGNORECASE) is not None


@cache
def built_in_hardware() -> Hardware:
    """Return the built-in hardware table."""
    text = Path(__file__).with_name("hardware.toml").read_text("utf-8")
    return parse_hardware(text)


def parse_hardware(text: str) -> Hardware:
    """Return the hardware in the TOML ``text``; see ``hardware.toml`` for the format.

    A user's file may also contain links in the notation of ``--link``::

        [link]
        nic = "400Gb/s"

    Raises:
        UsageError: the text is not TOML, or an entry does not have this form.
    """
    document = parse_toml(text, "hardware")
    links = document.get("link", {})
    gpus = document.get("gpu", [])
    if not isinstance(links, dict) or not isinstance(gpus, list):
        raise UsageError("hardware file: expected [[gpu]] tables and one [link] table")
    hardware = Hardware(tuple(_parse_gpu(table) for table in gpus))
    try:
        check_distinct("GPU", (gpu.key for gpu in hardware.gpus))
    except ValueError as error:
        raise UsageError(f"hardware file: {error}") from error
    for name, rate in links.items():
        hardware = hardware.with_link(f"{name}={rate}")
    return hardware


def _parse_gpu(table: Any) -> Gpu:
    if not isinstance(table, dict) or {"key", "names", "source"} - set(table):
        raise UsageError("hardware file: every [[gpu]] table requires key, names, and source")
    unknown = sorted(set(table) - _KNOWN_KEYS)
    if unknown:
        raise UsageError(
            f"hardware file: [[gpu]] {table['key']}: unknown key {', '.join(unknown)}; "
            f"expected {', '.join(sorted(_KNOWN_KEYS))}"
        )
    names = table["names"]
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"hardware file: [[gpu]] {table['key']}: names must be a list of strings")
    return Gpu(
        str(table["key"]).lower(),
        tuple(names),
        _peaks(table),
        _flops(table),
        *(
            int(_number(table, name)) if name in table else None
            for name in ("compute_capability", "multiprocessors")
        ),
    )


def _peaks(table: Mapping[str, Any]) -> dict[Link, Peak]:
    source = str(table["source"])
    peaks = {}
    if "memory_gb_per_s" in table:
        peaks[Link.MEMORY] = Peak(_number(table, "memory_gb_per_s") * _GB, "memory", source)
    if "host_link_gb_per_s" in table:
        rate = _number(table, "host_link_gb_per_s") * _GB
        peaks[Link.PCIE] = Peak(rate, "link to the host", source)
    elif "pcie_generation" in table:
        peaks[Link.PCIE] = pcie_peak(int(_number(table, "pcie_generation")), 16)
    if "nvlink_links" in table:
        links = int(_number(table, "nvlink_links"))
        each = _number(table, "nvlink_link_gb_per_s")
        what = f"{table.get('fabric', 'NVLink')}, {links:g} links of {each:g} GB/s"
        peaks[Link.NVLINK] = Peak(links * each * _GB, what, source)
    return peaks


def _flops(table: Mapping[str, Any]) -> dict[str, float]:
    rates = table.get("tflops", {})
    if not isinstance(rates, dict) or not rates.keys() <= _PRECISIONS:
        known = ", ".join(sorted(_PRECISIONS))
        raise UsageError(
            f"hardware file: [[gpu]] {table['key']}: tflops must be a table with keys from {known}"
        )
    return {name: _number(rates | {"key": table["key"]}, name) * 1e12 for name in rates}


def _number(table: Mapping[str, Any], name: str) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_RATE:
        raise UsageError(f"hardware file: [[gpu]] {table['key']}: {name} must be a number above 0")
    return float(value)


def speedups_of(device_name: str) -> Mapping[str, float]:
    """Return the peak rate of each precision relative to FP32; {} if unknown."""
    return next((rates for family, rates in _FAMILIES if re.search(family, device_name)), {})

"""The options of the user for reading traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

LOCAL: Final = "local"
"""Used in place of the address of a cluster: start a cluster on this machine."""


def tried_savings_path(trace: Path) -> Path:
    """Return the path of the file with the savings that `traceprof try` measured for a trace."""
    return trace.with_suffix(".try.json")


class Align(StrEnum):
    """How traceprof aligns the clocks of the ranks of a run."""

    AUTO = "auto"
    COLLECTIVES = "collectives"
    UTC = "utc"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Opening:
    """The options for reading traces: kernel classes, clocks, hardware, hosts, racks, steps.

    ``link_from`` is the output of nccl-tests, with the bandwidths to compare collectives with.
    ``samples`` is the output of nvidia-smi, dcgmi, or rocm-smi from the same time.

    ``warmup_steps`` is the number of leading warm-up steps (None: detect them). ``step_ranges`` is
    a regular expression that matches the ranges that are steps. ``model_flops``, ``parameters``,
    and ``tokens`` apply to one step on all GPUs. ``price`` is the price per GPU-hour. All four are
    texts as typed by the user. ``is_one_run``: treat all files as ranks of one run. ``attempt`` is
    the attempt of a restarted job, counted from 0 (None: the longest). ``is_cached``: read results
    for unchanged files from the user's cache, and write results to it.

    ``jobs`` is the number of processes that analyze the ranks of a run (None: traceprof chooses).
    ``scheduler`` is the address of the Dask cluster for that work, or `LOCAL` to start a cluster on
    this machine. ``allow_missing``: skip ranks that cannot be read. ``keeps_secrets``: do not mask
    secrets in the trace.
    """

    rules: Path | None = None
    align: Align = Align.AUTO
    gpu: str | None = None
    links: Sequence[str] = ()
    hardware: Path | None = None
    link_from: Path | None = None
    samples: Path | None = None
    model_flops: str = ""
    parameters: str = ""
    tokens: str = ""
    price: str = ""
    racks: Sequence[str] = ()
    cluster: Path | None = None
    warmup_steps: int | None = None
    step_ranges: str | None = None
    is_one_run: bool = False
    attempt: int | None = None
    is_cached: bool = True
    jobs: int | None = 1
    scheduler: str = ""
    allow_missing: bool = False
    keeps_secrets: bool = False


def split_cluster(text: str) -> tuple[str, Path | None]:
    """Return the Dask cluster and the hosts file in ``text``; one of the two is empty or None.

    A cluster is an address such as tcp://host:8786, or `LOCAL`.
    """
    if text == LOCAL or "://" in text:
        return text, None
    return "", Path(text)

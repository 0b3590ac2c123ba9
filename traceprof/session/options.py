"""What the user says of how to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

LOCAL: Final = "local"
"""Instead of the address of a cluster: one that is started here."""


def tried_beside(trace: Path) -> Path:
    """Return where lies what `traceprof try` measured of a trace's advice."""
    return trace.with_suffix(".try.json")


class Align(StrEnum):
    """How the clocks of the ranks of a run are put together."""

    AUTO = "auto"
    COLLECTIVES = "collectives"
    UTC = "utc"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Opening:
    """What the user says of how to read: kernel classes, clocks, hardware, hosts, racks, steps.

    ``warmup_steps`` is how many leading steps are warm-up (None: they are found), ``step_ranges``
    a regular expression of the ranges that are steps. ``model_flops``, ``parameters``
    and ``tokens`` are of a step on all GPUs, ``price`` is what a GPU costs an hour, all as users
    type them. ``is_one_run``: files that were named are ranks of one run, whatever they look like.
    ``life`` is which start of the program, of one that
    was started again (None: the longest). ``is_cached``: answers about files that did not change
    may be taken from the user's cache, and are kept there.

    ``jobs`` is in how many processes the ranks of a run are looked at (None: in as many as make
    sense), ``scheduler`` the address of the Dask cluster that does it, or `LOCAL` for one that is
    started here. ``allow_missing``: ranks that cannot be read are left out. ``keeps_secrets``: what
    is secret in a trace is not masked.
    """

    rules: Path | None = None
    align: Align = Align.AUTO
    gpu: str | None = None
    links: Sequence[str] = ()
    hardware: Path | None = None
    model_flops: str = ""
    parameters: str = ""
    tokens: str = ""
    price: str = ""
    racks: Sequence[str] = ()
    cluster: Path | None = None
    warmup_steps: int | None = None
    step_ranges: str | None = None
    is_one_run: bool = False
    life: int | None = None
    is_cached: bool = True
    jobs: int | None = 1
    scheduler: str = ""
    allow_missing: bool = False
    keeps_secrets: bool = False


def split_cluster(text: str) -> tuple[str, Path | None]:
    """Return a Dask cluster and a file that describes hosts: ``text`` names one of them.

    A cluster is an address such as tcp://host:8786, or `LOCAL`.
    """
    if text == LOCAL or "://" in text:
        return text, None
    return "", Path(text)

"""The options of the nsys that is here, and which of them a recording uses."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError

__all__ = ["nsys_options", "profile_options"]

_OPTION: Final = re.compile(r"--[a-z][\w-]+")
_HEADING: Final = re.compile(r"^[ \t]*(?:-\w, )?(--[a-z][\w-]+)", re.MULTILINE)
_HELP_TIMEOUT_S: Final = 60


def nsys_options(nsys: str, command: str) -> dict[str, str]:
    """Return the long options that ``nsys command`` of this version knows, with its words on each.

    Raises:
        RecordingError: nsys cannot be asked.
    """
    try:
        done = subprocess.run(
            [nsys, command, "--help"], capture_output=True, check=False, timeout=_HELP_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecordingError(f"{nsys}: cannot be asked for its options ({error})") from error
    text = done.stdout.decode("utf-8", "replace")
    options = dict.fromkeys(_OPTION.findall(text), "")
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    for heading, end in zip(headings, ends, strict=True):
        options[heading.group(1)] += text[heading.end() : end]
    return options


def profile_options(
    known: Mapping[str, str],
    report: Path,
    session: str,
    *,
    with_gpu: bool,
    with_counters: bool = False,
    with_rdma: bool = False,
) -> list[str]:
    """Return the options of ``nsys profile``; ``known`` are those that this version has.

    An unknown option is fatal. Sampling is off: it makes some versions hang at the end.
    """
    wanted = {
        "--force-overwrite": "true",
        "--output": str(report),
        "--session-new": session,
        "--trace": "cuda,nvtx" if with_gpu else "nvtx",
        "--sample": "none",
        "--cpuctxsw": "none",
        "--cuda-graph-trace": "node",
        "--trace-fork-before-exec": "true",
        "--wait": "primary",
    }
    if with_counters:
        # Renamed in 2024; the old name is still known then.
        name = "--gpu-metrics-devices"
        wanted[name if name in known else name.removesuffix("s")] = "all"
    if with_rdma:
        wanted["--nic-metrics"] = _nic_metrics(known.get("--nic-metrics", ""))
    return [f"{name}={value}" for name, value in wanted.items() if name in known]


def _nic_metrics(described: str) -> str:
    """Return what turns the sampling of adapters on: "true", from 2026 on a rate (low)."""
    return "lf" if re.search(r"\blf\b", described) and "true" not in described else "true"

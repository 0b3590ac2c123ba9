"""The options of ``nsys profile``: those of the version at hand, ours, and the user's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError, UsageError

_OPTION: Final = re.compile(r"--[a-z][\w-]+")
_HEADING: Final = re.compile(r"^[ \t]*(?:(-\w), )?(--[a-z][\w-]+)", re.MULTILINE)
_HELP_TIMEOUT_S: Final = 60

CAPTURE: Final = (
    "--capture-range=nvtx",
    "--nvtx-capture=traceprof.capture@traceprof",
    "--capture-range-end=stop",
)
"""Of a part of a run: the hooks open this range when it is due; the program goes on after it."""


def nsys_options(nsys: str, command: str) -> dict[str, str]:
    """Return the options that ``nsys command`` of this version knows, with its words on each.

    Of short options ("-s") it returns the long ones ("--sample").

    Raises:
        RecordingError: nsys cannot be asked.
    """
    try:
        done = subprocess.run(
            [nsys, command, "--help"], capture_output=True, check=False, timeout=_HELP_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecordingError(f"{nsys}: cannot list its options ({error})") from error
    text = done.stdout.decode("utf-8", "replace")
    options = dict.fromkeys(_OPTION.findall(text), "")
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    for heading, end in zip(headings, ends, strict=True):
        short, name = heading.groups()
        options[name] += text[heading.end() : end]
        if short:
            options[short] = name
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
        "--resolve-symbols": "false",  # 2026.1 was seen to hang for minutes on them
        "--trace-fork-before-exec": "true",
        "--wait": "primary",
    }
    if with_counters:
        # Renamed in 2024; the old name is still known then.
        name = "--gpu-metrics-devices"
        wanted[name if name in known else name.removesuffix("s")] = "all"
    if with_rdma:
        # What turns the sampling of adapters on: "true", from 2026 on a rate (low).
        said = known.get("--nic-metrics", "")
        is_rate = re.search(r"\blf\b", said) and "true" not in said
        wanted["--nic-metrics"] = "lf" if is_rate else "true"
    return [f"{name}={value}" for name, value in wanted.items() if name in known]


def with_given(options: Sequence[str], given: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Return ``options`` of ours and the arguments ``given`` by the user, which go before ours.

    nsys takes no option twice.

    Raises:
        UsageError: this nsys does not know one of them.
    """
    begun = [one.partition("=")[0] for one in given if one.startswith("-")]
    short = [name for name in begun if not name.startswith("--")]
    named = set(begun).difference(short) | {known.get(name[:2], name) for name in short}
    for name in sorted(named):
        if name not in known:
            raise UsageError(f"--nsys-arg: this nsys has no option {name}; nothing was run")
    return [*(one for one in options if one.partition("=")[0] not in named), *given]


def refusal_in(said: str) -> str:
    """Return why nsys did not take its arguments, "" where it did or says nothing of them."""
    reason, usage, _ = said.partition("usage: nsys")
    return " ".join(reason.split()) if usage else ""

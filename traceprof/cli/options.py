"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from traceprof.cli.opening import Align

__all__ = [
    "AlignClocks",
    "AsCsv",
    "AsJson",
    "ClusterFile",
    "Force",
    "GpuModel",
    "HardwareFile",
    "LinkRates",
    "Output",
    "RackHosts",
    "RowCount",
    "RulesFile",
    "StepRanges",
    "TracePaths",
    "Warmup",
    "WindowText",
]

_ABOUT = "What the trace cannot know"

TracePaths: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...", help="A trace, or a run: its directory or its files. Only read."
    ),
]
WindowText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--window",
        "-w",
        metavar="WINDOW",
        help="12ms..30ms, step:100..110, range:NAME, steady, active or all. "
        "Default: the steady steps, else the time in which devices worked.",
    ),
]
Warmup: TypeAlias = Annotated[
    int | None,
    typer.Option("--warmup", min=0, help="Leading steps that are warm-up; default: found."),
]
StepRanges: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--step-ranges", metavar="REGEX", help="The ranges that are steps, by their whole name."
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON (times in ns).")]
AsCsv: TypeAlias = Annotated[bool, typer.Option("--csv", help="Print one table as CSV.")]
RowCount: TypeAlias = Annotated[
    int, typer.Option("--rows", "-n", min=1, help="How many rows a table shows.")
]
RulesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--rules",
        help="TOML file of rules that say what kernels do, tried first.",
        rich_help_panel=_ABOUT,
    ),
]
AlignClocks: TypeAlias = Annotated[
    Align,
    typer.Option(
        "--align",
        help="How the clocks of the ranks of a run are put together: by the ends of the "
        "collectives that they share, by wall time, or not at all.",
        rich_help_panel=_ABOUT,
    ),
]
GpuModel: TypeAlias = Annotated[
    str | None,
    typer.Option("--gpu", help="The model of the GPUs, such as h100-sxm.", rich_help_panel=_ABOUT),
]
LinkRates: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--link", help="A link: pcie=gen4x16, nic=400Gb/s …", rich_help_panel=_ABOUT),
]
HardwareFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--hardware", help="TOML file with more GPUs and links.", rich_help_panel=_ABOUT),
]
RackHosts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--rack", help="Hosts of a rack: r1=node[1-4],node9.", rich_help_panel=_ABOUT),
]
ClusterFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        help="TOML file: the ranks of [hosts], the hosts of [racks].",
        rich_help_panel=_ABOUT,
    ),
]
Output: TypeAlias = Annotated[
    Path | None, typer.Option("--output", "-o", help="The file to write.")
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", "-f", help="Overwrite the output.")]

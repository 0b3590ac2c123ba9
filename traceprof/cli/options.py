"""Options that several commands share, declared once."""

from __future__ import annotations

import inspect
import os
import shlex
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, get_type_hints

import typer

from traceprof.cli.commands import looks_like_a_path, table_names
from traceprof.errors import UsageError
from traceprof.files import is_there

__all__ = [
    "AsCsv",
    "AsJson",
    "AsMarkdown",
    "DatabaseFile",
    "Force",
    "LabelTexts",
    "Output",
    "RowCount",
    "TracePaths",
    "WindowText",
    "check_paths",
    "labels_of",
    "numbers_of",
    "opens_traces",
]


def check_paths(paths: list[Path]) -> list[Path]:
    """Return ``paths``, which may be traces.

    Raises:
        UsageError: one is an option, or the name of a table; the message says what was meant.
    """
    for path in paths:
        name = str(path)
        if is_there(name):
            continue
        if name.startswith("-"):
            raise UsageError(f"{name} stands where a trace should: options come before `--`")
        close = [] if looks_like_a_path(name) else get_close_matches(name, table_names(), n=1)
        if close:
            files = shlex.join(str(other) for other in paths if other != path) or "TRACE"
            said = "a table, no trace" if close[0] == name else "neither a table nor a trace"
            raise UsageError(f"{name} is {said}: traceprof show {close[0]} {files}")
    return paths


def labels_of(texts: Sequence[str] | None) -> dict[str, str]:
    """Return the labels that ``texts`` name: "network=calico".

    Raises:
        UsageError: one is no KEY=VALUE.
    """
    labels = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise UsageError(f"label {text!r}: expected KEY=VALUE, such as network=calico")
        labels[name.strip()] = value
    return labels


def numbers_of(text: str | None) -> list[int] | None:
    """Return the numbers in ``0,2..5``.

    Raises:
        UsageError: it is no such list.
    """
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()):
            raise UsageError(f"{text}: expected numbers, such as 0,2..5")
        numbers += range(int(first), int(last if dots else first) + 1)
    return numbers


TracePaths: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE",
        help="A trace, or a run: its directory or its files. Only read.",
        callback=check_paths,
    ),
]
WindowText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--window",
        "-w",
        metavar="WINDOW",
        help="12ms..30ms, 30%..50%, step:100..110, range:NAME, steady, active or all. "
        "Default: the steady steps, else the time in which devices worked.",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON (times in ns).")]
AsCsv: TypeAlias = Annotated[bool, typer.Option("--csv", help="Print one table as CSV.")]
AsMarkdown: TypeAlias = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
RowCount: TypeAlias = Annotated[
    int, typer.Option("--rows", "-n", min=1, metavar="N", help="How many rows a table shows.")
]
Output: TypeAlias = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", "-f", help="Overwrite the output.")]

DatabaseFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--db", metavar="FILE", help="The database of runs; default: TRACEPROF_RUNS, or your own."
    ),
]
LabelTexts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="KEY=VALUE", help="A label of the run: network=calico."),
]

Warmup: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--warmup", min=0, metavar="N", help="Leading steps that are warm-up; default: found."
    ),
]
StepRanges: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--step-ranges", metavar="REGEX", help="The ranges that are steps, by their whole name."
    ),
]
RulesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--rules", metavar="FILE", help="TOML file of rules that say what kernels do, tried first."
    ),
]
AlignClocks: TypeAlias = Annotated[
    str,
    typer.Option(
        "--align",
        metavar="HOW",
        help="How the clocks of ranks are put together: by the ends of the collectives that they "
        "share, by wall time, or not at all: auto, collectives, utc, none.",
    ),
]
GpuModel: TypeAlias = Annotated[
    str | None,
    typer.Option("--gpu", metavar="MODEL", help="The model of the GPUs, such as h100-sxm."),
]
LinkRates: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--link", metavar="LINK=RATE", help="A link: pcie=gen4x16, nic=400Gb/s …"),
]
HardwareFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--hardware", metavar="FILE", help="TOML file with more GPUs and links."),
]
RackHosts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--rack", metavar="RACK=HOSTS", help="Hosts of a rack: r1=node[1-4],node9."),
]
ClusterText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="WHERE|FILE",
        help="A Dask cluster that looks at the ranks: tcp://HOST:PORT, or local. "
        "A TOML file: the ranks of [hosts], the hosts of [racks].",
    ),
]
JobCount: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Processes that look at the ranks of a run. Default: 1, of a large run as many as "
        "there are processors.",
    ),
]
AllowMissing: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-missing", help="Leave ranks out whose files cannot be read."),
]
ChosenLife: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--life",
        metavar="N",
        help="Which start of a program that was started again, from 0. Default: the longest.",
        min=0,
    ),
]
NoCache: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Read everything anew, and keep nothing; also TRACEPROF_CACHE=0."
    ),
]

_OPENING: Final[dict[str, tuple[Any, Any]]] = {
    "warmup": (Warmup, None),
    "step_ranges": (StepRanges, None),
    "rules": (RulesFile, None),
    "align": (AlignClocks, "auto"),
    "gpu": (GpuModel, None),
    "link": (LinkRates, None),
    "hardware": (HardwareFile, None),
    "rack": (RackHosts, None),
    "cluster": (ClusterText, None),
    "jobs": (JobCount, None),
    "allow_missing": (AllowMissing, False),
    "life": (ChosenLife, None),
    "no_cache": (NoCache, False),
}
"""The options that say what a trace cannot know: annotation and default by parameter."""
_FILES_AT_ONCE: Final = {"compare": 2, "view": 0}
"""So many files, of one rank each, does a command look at one after the other, if not 1.

`view` waits for its user: it gives memory back meanwhile.
"""
_LARGE_BYTES: Final = 50_000_000


def opens_traces(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options of opening in place of its parameter ``opening``."""
    signature = inspect.signature(command)
    # What opens is imported when a command runs, not for its signature.
    hints = get_type_hints(command, localns={"Opening": object}, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in signature.parameters.values()
        if parameter.name != "opening"
    ]
    more = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation
        )
        for name, (annotation, default) in _OPENING.items()
    ]

    @wraps(command)
    def opened(**given: Any) -> None:
        from traceprof.cli.streams import reading_shown
        from traceprof.processes import keep_freed_memory

        said = {name: given.pop(name) for name in _OPENING}
        # Those of one command may be names of kept runs, a statement of SQL, a word between two.
        words = [word for value in given.values() if isinstance(value, list) for word in value]
        if len(words) == _FILES_AT_ONCE.get(command.__name__, 1) and _are_large_files(words):
            keep_freed_memory()
        with reading_shown(words):
            command(**given, opening=_opening(**said))

    vars(opened).pop("__wrapped__")
    opened.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    opened.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *more]}
    return opened


def _are_large_files(words: Sequence[Path | str]) -> bool:
    """Return whether each of the words is a file, and one of them a large one."""
    with suppress(OSError, ValueError):
        found = [Path(word).stat() for word in words]
        are_files = all(stat.S_ISREG(one.st_mode) for one in found)
        return are_files and any(one.st_size >= _LARGE_BYTES for one in found)
    return False


def _opening(**said: Any) -> Any:
    from traceprof.cache.entries import VARIABLE
    from traceprof.session.options import Align, Opening, split_cluster

    if said["no_cache"]:
        os.environ[VARIABLE] = "0"  # whatever reads for this command, in other processes too

    ways = [way.value for way in Align]
    if said["align"] not in ways:
        raise UsageError(f"--align {said['align']}: expected one of {', '.join(ways)}")
    scheduler, hosts = split_cluster(said["cluster"] or "")
    return Opening(
        rules=said["rules"],
        align=Align(said["align"]),
        gpu=said["gpu"],
        links=said["link"] or (),
        hardware=said["hardware"],
        racks=said["rack"] or (),
        cluster=hosts,
        warmup_steps=said["warmup"],
        step_ranges=said["step_ranges"],
        life=said["life"],
        jobs=said["jobs"],
        scheduler=scheduler,
        allow_missing=said["allow_missing"],
        is_cached=not said["no_cache"],
    )

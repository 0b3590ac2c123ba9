"""Options that several commands share, declared once: types, and groups behind one parameter."""

from __future__ import annotations

import inspect
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, get_type_hints

import typer

from traceprof.cli import completion
from traceprof.cli.output import Printing, detail, message, speak
from traceprof.cli.progress import reading_shown
from traceprof.errors import UsageError
from traceprof.files import are_large_files, is_there
from traceprof.measures import FORMER_NAMES, analysis_names

if TYPE_CHECKING:
    from traceprof.session.run import Run
    from traceprof.store import Store

OLD_NAMES: Final = FORMER_NAMES
"""Analyses that were called otherwise; every analysis is also a command that is not listed."""


def looks_like_a_path(text: str) -> bool:
    """Return whether somebody who writes ``text`` means a file, whether it is there or not."""
    return Path(text).exists() or any(mark in text for mark in "./\\*?[")


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
            raise UsageError(f"expected a trace, not {name!r}: put options before `--`")
        close = [] if looks_like_a_path(name) else get_close_matches(name, analysis_names(), n=1)
        if close:
            files = shlex.join(one for one in map(str, paths) if looks_like_a_path(one)) or "TRACE"
            said = "is a table, not a trace" if close[0] == name else "is not a table or a trace"
            raise UsageError(f"{name!r} {said}: run `traceprof show {close[0]} {files}`")
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


def each_of(texts: list[str] | None) -> list[str]:
    """Return what an option was given, several times or with commas."""
    parts = (part.strip() for text in texts or () for part in text.split(","))
    return [part for part in parts if part]


def option(flags: str, told: str, metavar: str = "", **more: Any) -> Any:
    """Return an option: its flags, its help, and what its value is called."""
    return typer.Option(*flags.split(), help=told, metavar=metavar or None, **more)


TracePaths: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE",
        help="Trace file, or run (its directory or files).",
        callback=check_paths,
    ),
]
WINDOWS: Final = "12ms..30ms, 30%..50%, step:100..110, range:NAME, steady, active, or all."
WindowText: TypeAlias = Annotated[
    str | None,
    option(
        "--window -w",
        f"Analyze only this window: {WINDOWS} Default: steady steps, else the time with GPU "
        "activity.",
        "WINDOW",
        autocompletion=completion.windows,
    ),
]
AsJson: TypeAlias = Annotated[bool, option("--json", "Print JSON (times in ns).")]
AsCsv: TypeAlias = Annotated[bool, option("--csv", "Print one table as CSV.")]
AsMarkdown: TypeAlias = Annotated[bool, option("--markdown", "Print Markdown.")]
RowCount: TypeAlias = Annotated[
    int, option("--rows -n", "Show at most N rows per table.", "N", min=1)
]
Wide: TypeAlias = Annotated[bool, option("--wide", "Show all columns without truncation.")]
ColumnList: TypeAlias = Annotated[
    str | None,
    option(
        "--columns",
        "Show only these columns, in order: name,total_ns.",
        "LIST",
        autocompletion=completion.columns,
    ),
]
Output: TypeAlias = Annotated[
    Path | None, option("--output -o", "Write to FILE. Default: standard output.", "FILE")
]
Written: TypeAlias = Annotated[
    Path | None,
    option(
        "--output -o",
        "Write to FILE. The suffix sets the format: .html, .json, .csv, .md, else text.",
        "FILE",
    ),
]
Force: TypeAlias = Annotated[bool, option("--force -f", "Overwrite the output if it exists.")]
Title: TypeAlias = Annotated[
    str | None, option("--title", "Page heading. Default: the name of the trace file.", "TITLE")
]
RankList: TypeAlias = Annotated[
    str | None, option("--ranks --rank", "Include only these ranks: 0,2..5.", "LIST")
]
DeviceList: TypeAlias = Annotated[
    str | None,
    option(
        "--devices --device",
        "Include only these GPUs, by their numbers in `traceprof info`: 0,2.",
        "LIST",
    ),
]
KeepSecrets: TypeAlias = Annotated[
    bool,
    option(
        "--keep-secrets --keep-environment",
        "Keep environment variables, program output, and other possible secrets.",
    ),
]
DatabaseFile: TypeAlias = Annotated[
    Path | None,
    option(
        "--db", "Database of runs. Default: TRACEPROF_RUNS, else your personal database.", "FILE"
    ),
]
LabelTexts: TypeAlias = Annotated[
    list[str] | None,
    option("--label -l", "Save the run with a label: network=calico.", "KEY=VALUE"),
]


@dataclass(frozen=True, slots=True)
class Saving:
    """Whether and how a run is kept: it is where it gets a name or a label, too."""

    is_wanted: bool
    name: str | None
    labels: dict[str, str]
    db: Path | None

    def keep(self, run: Run, paths: Sequence[Path], *, numbered: bool = False) -> None:
        """Keep ``run``, which lies in ``paths``, and say so.

        ``numbered``: a name that is taken gets a number, even where the user chose it.

        Raises:
            UsageError: the name is taken.
            StoreError: the database cannot be written.
        """
        from traceprof.comparison.runs_named import name_of_files, summary_of, with_places
        from traceprof.store import Store

        store = Store.at(self.db)
        summary = summary_of(run, self.name or name_of_files(paths), self.labels)
        numbered = numbered or self.name is None
        say_kept(store, store.add(with_places(summary), numbered=numbered))


def say_kept(store: Store, name: str) -> None:
    """Say that a run was kept, and how to see it."""
    message(
        f"saved as {name} in {store.path}; show it with `traceprof runs show {shlex.quote(name)}`"
    )


def _opening(
    warmup: Annotated[
        int | None,
        option("--warmup", "Treat the first N steps as warm-up. Default: detect.", "N", min=0),
    ] = None,
    step_ranges: Annotated[
        str | None,
        option("--step-ranges", "Treat ranges as steps if REGEX matches the name.", "REGEX"),
    ] = None,
    rules: Annotated[
        Path | None,
        option("--rules", "Classify kernels by the rules in this TOML file first.", "FILE"),
    ] = None,
    align: Annotated[
        str,
        option(
            "--align",
            "Align the clocks of ranks: auto or collectives (ends of shared collectives, else "
            "wall time), utc (wall time), or none.",
            "HOW",
        ),
    ] = "auto",
    gpu: Annotated[
        str | None, option("--gpu", "Set the GPU model, such as h100-sxm.", "MODEL")
    ] = None,
    link: Annotated[
        list[str] | None, option("--link", "Set a link: pcie=gen4x16, nic=400Gb/s …", "LINK=RATE")
    ] = None,
    hardware: Annotated[
        Path | None, option("--hardware", "Add GPUs and links from this TOML file.", "FILE")
    ] = None,
    model_flops: Annotated[
        str, option("--model-flops", "Set the model FLOPs per step, on all GPUs: 2.9e12.", "N")
    ] = "",
    parameters: Annotated[
        str,
        option("--parameters", "Set the parameter count: 7B (FLOPs: 6 × N × tokens).", "N"),
    ] = "",
    tokens: Annotated[str, option("--tokens", "Tokens per step, on all GPUs: 8192.", "N")] = "",
    price: Annotated[str, option("--price", "Set the price per GPU-hour: 2.5/h.", "PRICE")] = "",
    rack: Annotated[
        list[str] | None, option("--rack", "Hosts of a rack: r1=node[1-4],node9.", "RACK=HOSTS")
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            "--cluster",
            "Analyze the ranks on a Dask cluster: tcp://HOST:PORT, or local. Or read a TOML file "
            "with the ranks of [hosts], the hosts of [racks].",
            "WHERE|FILE",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        option(
            "--jobs -j",
            "Analyze the ranks of a run with N processes. Default: 1, or one per CPU core for a "
            "large run.",
            "N",
            min=1,
        ),
    ] = None,
    allow_missing: Annotated[bool, option("--allow-missing", "Skip unreadable files.")] = False,
    one_run: Annotated[bool, option("--run", "Treat all files as ranks of one run.")] = False,
    attempt: Annotated[
        int | None,
        option(
            "--attempt",
            "Analyze this attempt of a restarted job, counted from 0. Default: the longest.",
            "N",
            min=0,
        ),
    ] = None,
    no_cache: Annotated[
        bool,
        option("--no-cache", "Do not read or write the cache (like TRACEPROF_CACHE=0)."),
    ] = False,
) -> Any:
    """Return what the options say that a trace cannot know."""
    from traceprof.cache.entries import VARIABLE
    from traceprof.session.options import Align, Opening, split_cluster

    if no_cache:
        os.environ[VARIABLE] = "0"  # whatever reads for this command, in other processes too
    ways = [way.value for way in Align]
    if align not in ways:
        raise UsageError(f"--align {align}: expected one of {', '.join(ways)}")
    scheduler, hosts = split_cluster(cluster) if cluster else ("", None)
    return Opening(
        rules=rules,
        align=Align(align),
        gpu=gpu,
        links=link or (),
        hardware=hardware,
        model_flops=model_flops,
        parameters=parameters,
        tokens=tokens,
        price=price,
        racks=rack or (),
        cluster=hosts,
        warmup_steps=warmup,
        step_ranges=step_ranges,
        attempt=attempt,
        jobs=jobs,
        scheduler=scheduler,
        allow_missing=allow_missing,
        is_one_run=one_run,
        is_cached=not no_cache,
    )


def _printing(
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 25,
    columns: ColumnList = None,
    wide: Wide = False,
    output: Written = None,
    force: Force = False,
) -> Printing:
    """Return how a result is printed, and where."""
    return Printing(
        as_json,
        as_csv,
        as_markdown,
        rows,
        is_wide=wide,
        columns=tuple(dict.fromkeys(each_of([columns]))) if columns else (),
        output=output,
        force=force,
    )


def _saving(
    save: Annotated[bool, option("--save", "Save the run in the database of runs.")] = False,
    name: Annotated[
        str | None, option("--name", "Save the run in the database under NAME.", "NAME")
    ] = None,
    label: LabelTexts = None,
    db: DatabaseFile = None,
) -> Saving:
    """Return whether and how a run is kept."""
    if name is not None:
        from traceprof.store import check_name

        check_name(name)
    return Saving(save or name is not None or bool(label), name, labels_of(label), db)


_GROUPS: Final[Mapping[str, Callable[..., Any]]] = {
    "printing": _printing,
    "saving": _saving,
    "opening": _opening,
}
"""What makes a value of many options: their parameters are those of a command that takes it."""

SHARED: Final = frozenset(inspect.signature(_opening).parameters)
"""The options of every command that reads traces."""


def _speaking(
    quiet: Annotated[bool, option("--quiet -q", "Print only errors.")] = False,
    verbose: Annotated[bool, option("--verbose -v", "Print each action and how long it took.")] = (
        False
    ),
) -> None:
    """Say as much as is wanted on standard error."""
    speak(quiet=quiet, verbose=verbose)


_FILES_AT_ONCE: Final = {"compare": 2, "view": 0}
"""So many files, of one rank each, does a command look at one after the other, if not 1.

`view` waits for its user: it gives memory back meanwhile.
"""


def with_options(command: Callable[..., None], *, rows: int = 25) -> Callable[..., None]:
    """Give ``command`` the options behind its parameters that `_GROUPS` knows, and --quiet.

    Those of ``opening`` come last, the others in their place; ``rows`` is how many rows it prints.
    """
    signature = inspect.signature(command)
    taken = {
        name: _parameters(make) for name, make in _GROUPS.items() if name in signature.parameters
    }
    own: list[inspect.Parameter] = []
    for parameter in _parameters(command):
        own += taken.get(parameter.name, [parameter])
    last = taken.get("opening", [])
    own = [*(one for one in own if one not in last), *last, *_parameters(_speaking)]
    if "printing" in taken:
        own = [one.replace(default=rows) if one.name == "rows" else one for one in own]

    @wraps(command)
    def opened(**given: Any) -> None:
        _speaking(is_quiet := given.pop("quiet"), given.pop("verbose"))
        made = {
            name: _GROUPS[name](**{one.name: given.pop(one.name) for one in parameters})
            for name, parameters in taken.items()
            if name != "opening"
        }
        if "opening" not in taken:
            command(**given, **made)
            return
        from traceprof.processes import keep_freed_memory

        said = {one.name: given.pop(one.name) for one in last}
        # Those of one command may be names of kept runs, a statement of SQL, a word between two.
        words = [word for value in given.values() if isinstance(value, list) for word in value]
        if len(words) == _FILES_AT_ONCE.get(command.__name__, 1) and are_large_files(words):
            keep_freed_memory()
        with reading_shown([] if is_quiet else words):
            began = time.monotonic()
            command(**given, **made, opening=_opening(**said))
            detail(f"took {time.monotonic() - began:.2f} s")

    vars(opened).pop("__wrapped__")
    opened.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    opened.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
    return opened


@cache
def _parameters(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of ``command`` with their annotations, all by position or name."""
    # What opens is imported when a command runs, not for its signature.
    names = dict.fromkeys(("Opening", "Run", "Store"), object)
    hints = get_type_hints(command, localns=names, include_extras=True)
    return [
        one.replace(annotation=hints[one.name], kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for one in inspect.signature(command).parameters.values()
    ]

"""Options that several commands share.

A type alias declares one option. The functions in `_GROUPS` declare a group of options; a command
gets all of them with one parameter (``opening``, ``printing``, or ``saving``).
"""

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
from traceprof.cli.output import VERBOSITY, Printing, detail, message
from traceprof.cli.parsing import labels_of, split_lists
from traceprof.cli.progress import show_reading_progress
from traceprof.errors import UsageError
from traceprof.files import are_large_files, is_there
from traceprof.measures import analysis_names

if TYPE_CHECKING:
    from traceprof.session.options import Opening
    from traceprof.session.run import Run
    from traceprof.store import Store


def option(flags: str, help_text: str, metavar: str = "", **more: Any) -> Any:
    """Return an option with its space-separated flags, its help, and the name of its value."""
    return typer.Option(*flags.split(), help=help_text, metavar=metavar or None, **more)


def looks_like_a_path(text: str) -> bool:
    """Return whether ``text`` is an existing path, or probably meant as a path or pattern."""
    return os.path.lexists(text) or any(mark in text for mark in "./\\*?[")


def check_paths(paths: list[Path]) -> list[Path]:
    """Return ``paths`` unchanged if each of them can be a trace.

    Raises:
        UsageError: one is an option, or the name of a table. The message names the right command.
    """
    for path in paths:
        name = str(path)
        if is_there(name):
            continue
        if name.startswith("-"):
            raise UsageError(f"expected a trace, not {name!r}: put options before `--`")
        close_names = (
            [] if looks_like_a_path(name) else get_close_matches(name, analysis_names(), n=1)
        )
        if close_names:
            files = (
                shlex.join(text for text in map(str, paths) if looks_like_a_path(text)) or "TRACE"
            )
            mistake = (
                "is a table, not a trace" if close_names[0] == name else "is not a table or a trace"
            )
            raise UsageError(f"{name!r} {mistake}: run `traceprof show {close_names[0]} {files}`")
    return paths


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
_LINK_FROM = option("--link-from", "Compare collectives with this nccl-tests output.", "FILE")
_SAMPLES = option("--samples", "Add these GPU samples (nvidia-smi, dcgmi, rocm-smi).", "FILE")
_RACK = option("--rack", "Hosts of a rack: r1=node[1-4],node9.", "RACK=HOSTS")
AsJson: TypeAlias = Annotated[bool, option("--json", "Print JSON (times in ns).")]
AsCsv: TypeAlias = Annotated[bool, option("--csv", "Print one table as CSV.")]
AsMarkdown: TypeAlias = Annotated[bool, option("--markdown", "Print Markdown.")]
RowCount: TypeAlias = Annotated[
    int, option("--rows -n", "Show at most N rows per table.", "N", min=1)
]
Wide: TypeAlias = Annotated[bool, option("--wide --full-names", "Show all columns and full names.")]
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
FormattedOutput: TypeAlias = Annotated[
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


def open_traces(
    paths: Sequence[Path], opening: Opening | None = None, window: str | None = None
) -> Run:
    """Open the trace or run in ``paths`` with a window; None is the default window.

    Nothing is read yet. The modules that read traces are imported now, not for the help.
    """
    from traceprof.session.run import open_run

    return open_run(paths, opening).within(window)


@dataclass(frozen=True, slots=True)
class Saving:
    """Whether to save a run in the database of runs, and its name and labels there.

    ``is_wanted`` is also True if the user gave a name or a label without `--save`.
    """

    is_wanted: bool
    name: str | None
    labels: dict[str, str]
    db: Path | None

    def keep(self, run: Run, paths: Sequence[Path], *, numbered: bool = False) -> None:
        """Save ``run``, whose files are ``paths``, in the database, and print its name.

        ``numbered``: add a number to a name that is taken, even if the user chose the name.

        Raises:
            UsageError: the name is taken.
            StoreError: the database cannot be written.
        """
        from traceprof.comparison.runs_named import name_of_files, summary_of, with_places
        from traceprof.store import Store

        store = Store.at(self.db)
        summary = summary_of(run, self.name or name_of_files(paths), self.labels)
        numbered = numbered or self.name is None
        print_saved(store, store.add(with_places(summary), numbered=numbered))


def print_saved(store: Store, name: str) -> None:
    """Print a message that a run was saved, with the command that shows it."""
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
    link_from: Annotated[Path | None, _LINK_FROM] = None,
    samples: Annotated[Path | None, _SAMPLES] = None,
    model_flops: Annotated[
        str, option("--model-flops", "Set the model FLOPs per step, on all GPUs: 2.9e12.", "N")
    ] = "",
    parameters: Annotated[
        str,
        option("--parameters", "Set the parameter count: 7B (FLOPs: 6 × N × tokens).", "N"),
    ] = "",
    tokens: Annotated[str, option("--tokens", "Tokens per step, on all GPUs: 8192.", "N")] = "",
    price: Annotated[str, option("--price", "Set the price per GPU-hour: 2.5/h.", "PRICE")] = "",
    rack: Annotated[list[str] | None, _RACK] = None,
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
    """Return the options for opening a trace: facts that the trace does not contain."""
    from traceprof.cache.entries import VARIABLE
    from traceprof.session.options import Align, Opening, split_cluster

    if no_cache:
        os.environ[VARIABLE] = "0"  # also for the processes that this command starts
    if align not in (methods := [method.value for method in Align]):
        raise UsageError(f"--align {align}: expected one of {', '.join(methods)}")
    scheduler, hosts = split_cluster(cluster) if cluster else ("", None)
    return Opening(
        rules=rules,
        align=Align(align),
        gpu=gpu,
        links=link or (),
        hardware=hardware,
        link_from=link_from,
        samples=samples,
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
    output: FormattedOutput = None,
    force: Force = False,
) -> Printing:
    """Return the format, the extent, and the output file of a result."""
    return Printing(
        as_json,
        as_csv,
        as_markdown,
        rows,
        is_wide=wide,
        columns=tuple(dict.fromkeys(split_lists([columns]))) if columns else (),
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
    """Return whether to save the run in the database, and its name and labels there."""
    if name is not None:
        from traceprof.store import check_name

        check_name(name)
    return Saving(save or name is not None or bool(label), name, labels_of(label), db)


_GROUPS: Final[Mapping[str, Callable[..., Any]]] = {
    "printing": _printing,
    "saving": _saving,
    "opening": _opening,
}
"""For each parameter that stands for a group of options: the function that makes its value.

The parameters of the function are the options that a command with this parameter gets.
"""

SHARED: Final = frozenset(inspect.signature(_opening).parameters)
"""The options of every command that reads traces."""


def set_verbosity(
    quiet: Annotated[bool, option("--quiet -q", "Print only errors.")] = False,
    verbose: Annotated[bool, option("--verbose -v", "Print each action and how long it took.")] = (
        False
    ),
) -> None:
    """Set which messages are printed on standard error from now on."""
    VERBOSITY.update(quiet=quiet, verbose=verbose)


_FILES_READ_ONE_BY_ONE: Final = {"compare": 2, "view": 0}
"""The number of files, of one rank each, that a command reads one after the other. Default: 1.

With this number of large files, the process keeps freed memory for reuse, which is faster. `view`
returns freed memory to the system, because it stays idle while it waits for its user.
"""


def with_options(command: Callable[..., None], *, rows: int = 25) -> Callable[..., None]:
    """Return ``command`` with the options of its `_GROUPS` parameters, --quiet, and --verbose.

    The options of ``opening`` come last. Other groups replace their parameter in its place.
    ``rows`` is the default of --rows.
    """
    signature = inspect.signature(command)
    groups = {
        name: _parameters(make) for name, make in _GROUPS.items() if name in signature.parameters
    }
    opening_parameters = groups.get("opening", [])
    options: list[inspect.Parameter] = []
    for parameter in _parameters(command):
        if parameter.name != "opening":
            options += groups.get(parameter.name, [parameter])
    options += [*opening_parameters, *_parameters(set_verbosity)]
    if "printing" in groups:
        options = [
            parameter.replace(default=rows) if parameter.name == "rows" else parameter
            for parameter in options
        ]

    @wraps(command)
    def opened(**values: Any) -> None:
        set_verbosity(is_quiet := values.pop("quiet"), values.pop("verbose"))
        group_values = {
            name: _GROUPS[name](**{option.name: values.pop(option.name) for option in parameters})
            for name, parameters in groups.items()
            if name != "opening"
        }
        if "opening" not in groups:
            command(**values, **group_values)
            return

        from traceprof.processes import keep_freed_memory

        opening_values = {option.name: values.pop(option.name) for option in opening_parameters}
        # The words are files, names of saved runs, an SQL statement, or `vs` between runs.
        words = [word for value in values.values() if isinstance(value, list) for word in value]
        if len(words) == _FILES_READ_ONE_BY_ONE.get(command.__name__, 1) and are_large_files(words):
            keep_freed_memory()
        with show_reading_progress([] if is_quiet else words):
            started_s = time.monotonic()
            command(**values, **group_values, opening=_opening(**opening_values))
            detail(f"took {time.monotonic() - started_s:.2f} s")

    vars(opened).pop("__wrapped__")
    opened.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    opened.__annotations__ = {parameter.name: parameter.annotation for parameter in options}
    return opened


@cache
def _parameters(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of ``command`` with resolved annotations, none of them keyword-only."""
    # The modules of these types are imported when a command runs, not for its signature.
    names = dict.fromkeys(("Opening", "Run", "Store"), object)
    hints = get_type_hints(command, localns=names, include_extras=True)
    return [
        parameter.replace(
            annotation=hints[parameter.name], kind=inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        for parameter in inspect.signature(command).parameters.values()
    ]

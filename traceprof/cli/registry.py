"""The registry of commands, and the words of other tools that stand for a command.

To add a command, write a function of its name in a module of this package, and add an entry to
`COMMANDS`. The registry imports no command module, so that ``--help`` is fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from traceprof.measures import FORMER_NAMES, analysis_names, nouns, shown_by
from traceprof.registries import Registry, check_distinct

__all__ = ["COMMANDS", "HELP", "Command", "command_meant_by", "near_words"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the function called ``name`` in ``traceprof.cli.<module>`` runs it.

    ``module`` defaults to the name of the command. ``function`` is the name of the function if it
    is not the name of the command. The functions of subcommands (``commands``) are in the same
    module. ``examples`` are two typical command lines without the name of the program. ``group`` is
    the heading in the help. ``takes_program``: the arguments are the command line of a program.
    """

    name: str
    summary: str
    module: str = ""
    examples: tuple[str, ...] = ()
    group: str = ""
    takes_program: bool = False
    function: str = ""
    commands: tuple[Command, ...] = ()


_RUNS_COMMANDS: Final[Registry[Command]] = Registry(
    "command of runs",
    (
        Command(
            "add",
            "add traces, logs, tables, and exported runs to the database",
            "runs",
            ("runs add trace.sqlite", "runs add night/ --name resnet-8gpu --label network=calico"),
        ),
        Command(
            "list",
            "list the saved runs, by label",
            "runs",
            ("runs list", "runs list --label network=calico --sort samples_per_s"),
            function="list_runs",
        ),
        Command(
            "show",
            "show saved runs side by side: environment, results, notes",
            "runs",
            ("runs show resnet-8gpu", "runs show resnet-8gpu resnet-1gpu"),
        ),
        Command(
            "tag",
            "add labels to a run: network=calico",
            "runs",
            ("runs tag resnet-8gpu network=calico", "runs tag resnet-8gpu --drop network"),
        ),
        Command(
            "rm", "remove runs from the database", "runs", ("runs rm resnet-8gpu", "runs rm 3 4")
        ),
        Command(
            "export",
            "export runs as a JSON file, or one of their tables as CSV",
            "runs",
            ("runs export -o runs.json", "runs export resnet-8gpu --table steps -o steps.csv"),
        ),
        Command(
            "import-log",
            "add runs from the log of a training program",
            "runs",
            ("runs import-log train.log --dry-run", "runs import-log train.log --name resnet-8gpu"),
        ),
    ),
)


COMMANDS: Final[Registry[Command]] = Registry(
    "command",
    (
        Command(
            "record",
            "run a program and record a trace of it",
            "recording",
            ("record -- python train.py", "record -o run/ -- torchrun --nproc-per-node 8 train.py"),
            "Record",
            takes_program=True,
        ),
        Command(
            "try",
            "apply changes to a program and measure how much each one saves",
            "recording",
            ("try -- python train.py", "try --change channels_last,workers=8 -- python train.py"),
            "Record",
            takes_program=True,
            function="try_",
        ),
        Command(
            "watch",
            "show a running program: step time, slow ranks, stalls",
            "live",
            ("watch run/", "watch run/ --json --interval 10"),
            "Record",
        ),
        Command(
            "capture",
            "record the next steps of a running program and print their page",
            "live",
            ("capture run/ --steps 3", "capture run/ --ranks 0,5"),
            "Record",
        ),
        Command(
            "recover",
            "write the trace of an interrupted recording",
            "recording",
            ("recover", "recover /tmp/traceprof-x1y2z3 -o trace.sqlite"),
            "Record",
        ),
        Command(
            "doctor",
            "check what can be recorded on this machine",
            "recording",
            ("doctor", "doctor --require gpu"),
            "Record",
        ),
        Command(
            "demo",
            "analyze a sample trace: print its page and open its report",
            "demo",
            ("demo", "demo --no-browser -o demo/"),
            "Analyze",
        ),
        Command(
            "analyze",
            "report where the time goes and what would fix it, on one page",
            "answers",
            ("analyze trace.sqlite", "analyze run/ --window steady --json -o page.json"),
            "Analyze",
        ),
        Command(
            "findings",
            "list ranked advice: what costs time and what to do about it",
            "answers",
            ("findings trace.sqlite", "findings run/ --markdown"),
            "Analyze",
        ),
        Command(
            "show",
            "print a table: breakdown, steps, kernels … (no name: list them)",
            "answers",
            ("show kernels trace.sqlite", "show collectives --by caller run/ -o callers.csv"),
            "Analyze",
        ),
        Command(
            "explain",
            "break down why a step was slower than a typical step",
            "answers",
            ("explain trace.sqlite slowest", "explain run/ step:37 --against step:12"),
            "Analyze",
        ),
        Command(
            "memory",
            "show what used GPU memory, from a PyTorch snapshot or samples",
            "answers",
            ("memory snapshot.pickle", "memory trace.sqlite -o memory.html"),
            "Analyze",
        ),
        Command(
            "ops",
            "list every kernel and copy in order (nvprof --print-gpu-trace)",
            "rows",
            ("ops trace.sqlite --longest -n 20", "ops run/ --ranks 0 --name nccl -o nccl.csv"),
            "Analyze",
        ),
        Command(
            "query",
            "run SQL on kernels, copies, ranges, steps … (--schema: views)",
            "rows",
            (
                "query --schema",
                "query trace.sqlite 'SELECT name, count(*) FROM kernels GROUP BY 1'",
            ),
            "Analyze",
        ),
        Command(
            "report",
            "write all tables and charts to one offline HTML page",
            "pages",
            ("report trace.sqlite", "report before.sqlite after.sqlite -o compared.html"),
            "Reports and timelines",
        ),
        Command(
            "timeline",
            "draw an interactive timeline in one HTML file, or a PNG or SVG",
            "pages",
            ("timeline trace.sqlite", "timeline run/ --window step:10..12 -o steps.png"),
            "Reports and timelines",
        ),
        Command(
            "view",
            "open a live timeline in the browser, for traces of any size",
            "pages",
            ("view trace.sqlite", "view before.sqlite after.sqlite --port 8050"),
            "Reports and timelines",
        ),
        Command(
            "mcp",
            "serve the traces in a folder to AI assistants (MCP)",
            "pages",
            ("mcp", "mcp traces/"),
            "Reports and timelines",
        ),
        Command(
            "compare",
            "compare two runs and test whether the difference is significant",
            "comparisons",
            (
                "compare before.sqlite after.sqlite",
                "compare a1/ a2/ a3/ vs b1/ b2/ b3/ --max-regression 5%",
            ),
            "Compare",
        ),
        Command(
            "scaling",
            "compare throughput by number of GPUs, and show scaling losses",
            "comparisons",
            ("scaling 1gpu/ 2gpu/ 4gpu/", "scaling label:network=calico -o scaling.html"),
            "Compare",
        ),
        Command(
            "elastic",
            "show restarts, lost time, and causes in an elastic job",
            "comparisons",
            ("elastic run/", "elastic fixed.log elastic.log -o elastic.html"),
            "Compare",
        ),
        Command(
            "accuracy",
            "compare time, epochs, steps, and samples to a target accuracy",
            "comparisons",
            ("accuracy train.log", "accuracy 1node.log 8nodes.log --to 75.9%"),
            "Compare",
        ),
        Command(
            "nodes",
            "compare iterations across nodes",
            "comparisons",
            ("nodes alone/ together/", "nodes alone/ together/ -o nodes.html"),
            "Compare",
        ),
        Command(
            "runs",
            "manage a database of runs: add, list, show, tag, rm, export",
            "runs",
            ("runs add trace.sqlite --label gpus=8", "runs list"),
            "Save and export",
            commands=_RUNS_COMMANDS,
        ),
        Command(
            "cut",
            "write a window of a trace as a smaller trace in the same format",
            "exports",
            (
                "cut trace.sqlite --window step:10..12 -o small.sqlite",
                "cut run/ --window steady --ranks 0..3 -o small/",
            ),
            "Save and export",
        ),
        Command(
            "export",
            "convert a trace for other tools: Perfetto, TensorBoard, CSV …",
            "exports",
            (
                "export trace.sqlite --to perfetto -o trace.pftrace",
                "export run/ --to csv --results steps,kernels -o tables/",
            ),
            "Save and export",
        ),
        Command(
            "info",
            "list the contents of a trace or a run",
            "answers",
            ("info trace.sqlite", "info run/ --json"),
            "Save and export",
        ),
    ),
)

HELP: Final = Command(
    "help",
    "show the help of a command or topic",
    "topics",
    ("help timeline", "help options"),
    function="help_command",
)
"""The `help` command, which the list of commands omits."""


@cache
def near_words() -> dict[str, str]:
    """Return the command for each word that users of other tools type, from `near_words.txt`."""
    lines = Path(__file__).with_name("near_words.txt").read_text("utf-8").splitlines()
    pairs = [
        (command, words.split()) for command, _, words in (line.partition(": ") for line in lines)
    ]
    check_distinct("word", (word for _, words in pairs for word in words))
    return {word: command for command, words in pairs for word in words}


def command_meant_by(word: str) -> str | None:
    """Return the command for a word that is not the name of a command; None if there is none.

    For a noun or the name of a table, return the command that shows the table.
    """
    name = FORMER_NAMES.get(word, word)
    if word in nouns():
        return f"show {word}"
    if name in analysis_names():
        return shown_by(name).removeprefix("traceprof ")
    return near_words().get(word.lower())

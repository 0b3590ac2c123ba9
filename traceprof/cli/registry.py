"""The commands by name, and the words of other tools that lead to one.

To add one: a function of its name in a module of this package, and its line in `COMMANDS`. Nothing
is imported for them, so that ``--help`` costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from traceprof.measures import FORMER_NAMES, analysis_names, nouns, shown_by
from traceprof.registries import Registry, check_distinct

__all__ = ["COMMANDS", "HELP", "Command", "meant_by", "near_words"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command: ``traceprof.cli.<module>`` has the function that bears the command's name.

    The module is called as the command where it is not named. ``function`` is what the function
    is called where that is not the command's name. Those below a command are in its module.
    ``examples`` are two that a newcomer would type, without the name of the program.
    """

    name: str
    summary: str
    module: str = ""
    examples: tuple[str, ...] = ()
    group: str = ""
    takes_program: bool = False
    function: str = ""
    commands: tuple[Command, ...] = ()


_OF_RUNS: Final[Registry[Command]] = Registry(
    "command of runs",
    (
        Command(
            "add",
            "keep what traces, logs, tables and exported runs tell",
            "runs",
            ("runs add trace.sqlite", "runs add night/ --name resnet-8gpu --label network=calico"),
        ),
        Command(
            "list",
            "the runs that are kept, by label",
            "runs",
            ("runs list", "runs list --label network=calico --sort samples_per_s"),
            function="list_runs",
        ),
        Command(
            "show",
            "the record of runs: environment, results, notes, side by side",
            "runs",
            ("runs show resnet-8gpu", "runs show resnet-8gpu resnet-1gpu"),
        ),
        Command(
            "tag",
            "give a run labels: network=calico",
            "runs",
            ("runs tag resnet-8gpu network=calico", "runs tag resnet-8gpu --drop network"),
        ),
        Command(
            "rm", "remove runs from the database", "runs", ("runs rm resnet-8gpu", "runs rm 3 4")
        ),
        Command(
            "export",
            "runs as a JSON file, or a table of them as CSV",
            "runs",
            ("runs export -o runs.json", "runs export resnet-8gpu --table steps -o steps.csv"),
        ),
        Command(
            "import-log",
            "keep what a training program printed",
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
            "run a program and leave its trace",
            "recording",
            ("record -- python train.py", "record -o run/ -- torchrun --nproc-per-node 8 train.py"),
            "Record",
            takes_program=True,
        ),
        Command(
            "try",
            "apply changes to a program and measure what each saves",
            "trying",
            ("try -- python train.py", "try --change channels_last,workers=8 -- python train.py"),
            "Record",
            takes_program=True,
            function="try_",
        ),
        Command(
            "recover",
            "the trace of a recording that was broken off",
            "recording",
            ("recover", "recover /tmp/traceprof-x1y2z3 -o trace.sqlite"),
            "Record",
        ),
        Command(
            "doctor",
            "what can be recorded on this machine",
            "recording",
            ("doctor", "doctor --require gpu"),
            "Record",
        ),
        Command(
            "analyze",
            "one page: where the time went, and what would fix it",
            "answers",
            ("analyze trace.sqlite", "analyze run/ --window steady --json -o page.json"),
            "Look",
        ),
        Command(
            "findings",
            "ranked advice: what costs time, and what to do",
            "answers",
            ("findings trace.sqlite", "findings run/ --markdown"),
            "Look",
        ),
        Command(
            "show",
            "one table: breakdown, steps, kernels … (alone: what there is)",
            "answers",
            ("show kernels trace.sqlite", "show collectives --by caller run/ -o callers.csv"),
            "Look",
        ),
        Command(
            "explain",
            "why a step took longer than the typical one, as a sum",
            "answers",
            ("explain trace.sqlite slowest", "explain run/ step:37 --against step:12"),
            "Look",
        ),
        Command(
            "memory",
            "what held a GPU's memory: a snapshot of PyTorch, or samples",
            "answers",
            ("memory snapshot.pickle", "memory trace.sqlite -o memory.html"),
            "Look",
        ),
        Command(
            "ops",
            "every kernel and copy one by one, as nvprof --print-gpu-trace",
            "rows",
            ("ops trace.sqlite --longest -n 20", "ops run/ --ranks 0 --name nccl -o nccl.csv"),
            "Look",
        ),
        Command(
            "query",
            "SQL about kernels, copies, ranges, steps …; --schema: the views",
            "rows",
            (
                "query --schema",
                "query trace.sqlite 'SELECT name, count(*) FROM kernels GROUP BY 1'",
            ),
            "Look",
        ),
        Command(
            "report",
            "everything on one HTML page, offline",
            "pages",
            ("report trace.sqlite", "report before.sqlite after.sqlite -o compared.html"),
            "Pages",
        ),
        Command(
            "timeline",
            "an interactive timeline in one file; PNG and SVG, too",
            "pages",
            ("timeline trace.sqlite", "timeline run/ --window step:10..12 -o steps.png"),
            "Pages",
        ),
        Command(
            "view",
            "the same live in a browser, traces of any size side by side",
            "pages",
            ("view trace.sqlite", "view before.sqlite after.sqlite --port 8050"),
            "Pages",
        ),
        Command(
            "mcp",
            "answer assistants about the traces in a folder",
            "pages",
            ("mcp", "mcp traces/"),
            "Pages",
        ),
        Command(
            "compare",
            "what changed from one run to another, and is it more than chance",
            "comparisons",
            (
                "compare before.sqlite after.sqlite",
                "compare a1/ a2/ a3/ vs b1/ b2/ b3/ --max-regression 5%",
            ),
            "Compare",
        ),
        Command(
            "scaling",
            "throughput by number of GPUs, and where the rest was lost",
            "comparisons",
            ("scaling 1gpu/ 2gpu/ 4gpu/", "scaling label:network=calico -o scaling.html"),
            "Compare",
        ),
        Command(
            "elastic",
            "a job whose ranks come and go: restarts, the time lost and why",
            "comparisons",
            ("elastic run/", "elastic fixed.log elastic.log -o elastic.html"),
            "Compare",
        ),
        Command(
            "accuracy",
            "time, epochs, steps and samples to a target, by run",
            "comparisons",
            ("accuracy train.log", "accuracy 1node.log 8nodes.log --to 75.9%"),
            "Compare",
        ),
        Command(
            "nodes",
            "nodes side by side: independent or synchronised, forward or both",
            "comparisons",
            ("nodes alone/ together/", "nodes alone/ together/ -o nodes.html"),
            "Compare",
        ),
        Command(
            "runs",
            "a database of runs: add, list, show, tag, rm, export",
            "runs",
            ("runs add trace.sqlite --label gpus=8", "runs list"),
            "Keep and pass on",
            commands=_OF_RUNS,
        ),
        Command(
            "cut",
            "a window of a trace as a smaller trace of the same format",
            "exports",
            (
                "cut trace.sqlite --window step:10..12 -o small.sqlite",
                "cut run/ --window steady --ranks 0..3 -o small/",
            ),
            "Keep and pass on",
        ),
        Command(
            "export",
            "a trace for other tools: Perfetto, TensorBoard, CSV …",
            "exports",
            (
                "export trace.sqlite --to perfetto -o trace.pftrace",
                "export run/ --to csv --results steps,kernels -o tables/",
            ),
            "Keep and pass on",
        ),
        Command(
            "info",
            "what is in a trace or a run",
            "answers",
            ("info trace.sqlite", "info run/ --json"),
            "Keep and pass on",
        ),
    ),
)

HELP: Final = Command(
    "help",
    "what one command does, or a topic",
    "topics",
    ("help timeline", "help options"),
    function="help_command",
)
"""The command that the list of commands does not have, since it is how one comes there."""


@cache
def near_words() -> dict[str, str]:
    """Return what people type who know other tools, or guess: by word the command meant."""
    lines = Path(__file__).with_name("near_words.txt").read_text("utf-8").splitlines()
    pairs = [(meant, words.split()) for meant, _, words in (line.partition(": ") for line in lines)]
    check_distinct("word", (word for _, words in pairs for word in words))
    return {word: meant for meant, words in pairs for word in words}


def meant_by(word: str) -> str | None:
    """Return the command that ``word`` means, which is none itself; None where it means none.

    Nouns and names of tables mean that they are to be shown.
    """
    name = FORMER_NAMES.get(word, word)
    if word in nouns():
        return f"show {word}"
    if name in analysis_names():
        return shown_by(name).removeprefix("traceprof ")
    return near_words().get(word.lower())

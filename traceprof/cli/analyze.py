"""``traceprof analyze``, and one command per analysis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof import analysis
from traceprof.cli.opening import Align, Opening, open_with_notes
from traceprof.cli.options import (
    AlignClocks,
    AsCsv,
    AsJson,
    ClusterFile,
    GpuModel,
    HardwareFile,
    LinkRates,
    RackHosts,
    RowCount,
    RulesFile,
    StepRanges,
    TracePaths,
    Warmup,
    WindowText,
)
from traceprof.errors import NotRecordedError, UsageError

if TYPE_CHECKING:
    from traceprof.analysis.base import Result
    from traceprof.model.trace import Trace

__all__ = ["Wanted", "analyze", "command_for", "run_all", "show"]


def analyze(
    trace: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME]... TRACE...",
            help="A trace, or a run (its directory or its files), and the analyses to run on it "
            "(default: one page that answers the question).",
        ),
    ],
    window: WindowText = None,
    warmup: Warmup = None,
    step_ranges: StepRanges = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    rows: RowCount = 5,
    rules: RulesFile = None,
    align: AlignClocks = Align.AUTO,
    gpu: GpuModel = None,
    link: LinkRates = None,
    hardware: HardwareFile = None,
    rack: RackHosts = None,
    cluster: ClusterFile = None,
) -> None:
    """Where did the step time go? One page, or the analyses named in front of the trace."""
    names, paths = _split(trace)
    opening = Opening(rules, align, gpu, link or (), hardware, rack or (), cluster)
    show(names, paths, opening, Wanted(window, warmup, step_ranges, as_json, as_csv, rows))


def command_for(name: str) -> Callable[..., None]:
    """Return the command that runs the analysis ``name`` alone."""

    def command(
        trace: TracePaths,
        window: WindowText = None,
        warmup: Warmup = None,
        step_ranges: StepRanges = None,
        as_json: AsJson = False,
        as_csv: AsCsv = False,
        rows: RowCount = 25,
        rules: RulesFile = None,
        align: AlignClocks = Align.AUTO,
        gpu: GpuModel = None,
        link: LinkRates = None,
        hardware: HardwareFile = None,
        rack: RackHosts = None,
        cluster: ClusterFile = None,
    ) -> None:
        opening = Opening(rules, align, gpu, link or (), hardware, rack or (), cluster)
        show([name], trace, opening, Wanted(window, warmup, step_ranges, as_json, as_csv, rows))

    return command


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look at, and how to print it."""

    window: str | None
    warmup: int | None
    step_ranges: str | None
    as_json: bool
    as_csv: bool
    rows: int


def _split(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return the analyses and the traces among ``arguments``, in whatever order they stand."""
    known = [entry.name for entry in analysis.ANALYSES]
    names = [item for item in arguments if item in known]
    paths = [item for item in arguments if item not in known]
    if not paths:
        raise UsageError(f"expected a trace; analyses are {', '.join(known)}")
    return names, [Path(path) for path in paths]


def run_all(
    names: Sequence[str], trace: Trace, *, strict: bool
) -> tuple[dict[str, Result], dict[str, str]]:
    """Return the results by name, and why those that are missing could not be had.

    Raises:
        NotRecordedError: ``strict``, and the trace lacks the data of one of them.
    """
    from traceprof.analysis import load_analysis, run_analysis

    results: dict[str, Result] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            results[name] = run_analysis(load_analysis(name), trace)
        except NotRecordedError as error:
            if strict:
                raise
            missing[name] = str(error)
    return results, missing


def show(names: Sequence[str], paths: Sequence[Path], opening: Opening, wanted: Wanted) -> None:
    """Run the analyses ``names`` (all of the overview where none is named) and print them."""
    from rich.console import Group

    from traceprof.analysis.advice.verdict import measure_verdict
    from traceprof.analysis.base import table_of
    from traceprof.cli.output import out, print_view
    from traceprof.facts.steps.find import mark_steps
    from traceprof.render.csv_text import to_csv
    from traceprof.render.json_text import document_of, to_json
    from traceprof.render.overview import OVERVIEW, overview_view, results_view
    from traceprof.session.selection import select

    if wanted.as_csv and len(names) != 1:
        raise UsageError("--csv prints one table: name one analysis, such as `analyze kernels`")
    whole, notes = open_with_notes(paths, opening)
    if wanted.step_ranges is not None:
        whole = mark_steps(whole, wanted.step_ranges)
    if wanted.warmup is not None:
        whole = whole.with_warmup(wanted.warmup)
    selection = select(whole, wanted.window)
    selection = replace(selection, notes=(*selection.notes, *notes))
    part = whole.within(selection.window)
    results, missing = run_all(names or OVERVIEW, part, strict=bool(names))
    verdict = None if names else measure_verdict(part)
    if wanted.as_json:
        out(to_json(document_of(whole, selection, results, missing, verdict)))
    elif wanted.as_csv:
        out(to_csv(table_of(results[names[0]], whole)))
    elif verdict is None:
        print_view(
            lambda width: Group(*results_view(whole, selection, results, (wanted.rows, width)))
        )
    else:
        print_view(
            lambda width: overview_view(whole, selection, verdict, results, (wanted.rows, width))
        )

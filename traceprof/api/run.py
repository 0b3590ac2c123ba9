"""An opened trace or run: its tables, pages, and files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from traceprof.api.results import Page, Result, displayable_result
from traceprof.api.tables import Tables
from traceprof.comparison import EXPLAIN
from traceprof.comparison.explaining import explain
from traceprof.comparison.runs_named import name_of_files, summary_of
from traceprof.errors import UsageError
from traceprof.export import exporter_called
from traceprof.export.request import Exported, Request, check_analyses, check_tables
from traceprof.files import write_file
from traceprof.measures import analysis_names
from traceprof.model.table import Table
from traceprof.query.engine import Limits
from traceprof.render.formatting import note_text, sentences
from traceprof.render.html_text import facts_html
from traceprof.render.pictures.figure import (
    THEMES,
    NotebookFigure,
    NotebookPage,
    timeline_figure,
)
from traceprof.render.registry import Options
from traceprof.render.report.render import render_report
from traceprof.render.timeline.render import render_timeline
from traceprof.session.answer import page
from traceprof.session.caveats import caveats, caveats_of_stream, selected
from traceprof.session.cutting import Cutting, cut_run
from traceprof.session.operations import OPERATIONS, OperationFilter, operations
from traceprof.session.options import Align, Opening, split_cluster
from traceprof.session.querying import query
from traceprof.session.run import open_run

if TYPE_CHECKING:
    import pandas as pd

FIGURES: Final = (
    *("samples_per_s", "steps_per_s", "step_period_ns", "waited_ns"),
    *("compute_ratio", "exposed_communication_ratio", "exposed_transfer_ratio", "idle_ratio"),
)
"""The measures of a run in its headline metrics."""


_MAX_NOTEBOOK_ITEMS: Final = 300_000
"""A notebook file holds the pages that it shows."""


class Run(Tables):
    """An opened trace or run. Notebooks display its results.

    >>> import traceprof as tp
    >>> tp.open("run/").within("steady").breakdown().to_frame()
    """

    def cut(
        self,
        output: str | Path,
        *,
        devices: Collection[int] | None = None,
        ranks: Collection[int] | None = None,
        tables: Collection[str] | None = None,
        clip: bool = False,
        keep_environment: bool = False,
        force: bool = False,
    ) -> Path:
        """Write the window to ``output`` as a trace in the same format; return its path.

        Args:
            output: a file, or a new folder for a run of several files.
            devices: keep only these GPUs, by their numbers in the file.
            ranks: keep only these ranks.
            tables: keep only these events ("kernels", "copies", "ranges" …) or tables of the file.
            clip: shorten events that cross the edge of the window.
            keep_environment: keep environment variables, program output, and possible secrets.
            force: replace the output if it exists.

        Raises:
            TraceError: a file cannot be read or cut.
            UsageError: the window is not in this run, or ``output`` cannot be written.
        """
        cutting = Cutting(devices, ranks, tables, clip, keep_environment)
        return cut_run(self, Path(output), cutting, force=force)[0].path

    def figure(self, *, title: str = "", theme: str = "light") -> NotebookFigure:
        """Return the window as a plotly figure for notebooks.

        The figure has at most 48 lanes, grouped by process, GPUs first. It has 1,500 bars with
        hover text, and shows shorter events as density. The axis is in ms after the run's start.

        >>> run.within("step:3..5").figure()

        Args:
            title: the heading of the figure.
            theme: "light" or "dark".

        Raises:
            TraceprofError: a file cannot be read, or the window or the theme is invalid.
        """
        if theme not in THEMES:
            raise UsageError(f"theme {theme!r}: expected {' or '.join(THEMES)}")
        whole = self.within("all").trace()
        part = selected(self).window.hull
        return timeline_figure(whole, window=part, title=title, theme=theme, width=None)

    def timeline(self, *, title: str = "", height: int = 700) -> NotebookPage:
        """Return the interactive timeline of `traceprof timeline` for notebooks.

        It needs no extension, no server, and no network. ``.html`` is the page as text. Above
        300,000 events, short neighboring events are merged.

        >>> run.within("step:3..5").timeline()

        Args:
            title: the heading; by default the file name.
            height: of the frame in the notebook, in pixels.

        Raises:
            TraceprofError: a file cannot be read, or the window is not in this run.
        """
        whole, heading = self.within("all").of_ranks(), title or self.paths[0].name
        page = render_timeline(
            whole,
            title=heading,
            window=selected(self).window.hull,
            max_items=_MAX_NOTEBOOK_ITEMS,
        )
        return NotebookPage(page, heading, height)

    def page(self) -> Page:
        """Return the page of `traceprof analyze`: where the time goes and what would fix it.

        Raises:
            TraceprofError: a file cannot be read, or the window is not in this run.
        """
        return Page(page(self))

    def figures(self) -> dict[str, float]:
        """Return the known headline metrics of the run, for a program's logger.

        The metrics are throughput, step time, and GPU time shares, as on the page and in
        `traceprof runs add`. Each name ends with the unit.

        Raises:
            TraceprofError: a file cannot be read, or the window is not in this run.
        """
        summary = summary_of(self, name_of_files(self.paths), {})
        measures = ((name, summary.measure(name)) for name in FIGURES)
        return {name: value for name, value in measures if value is not None}

    def report(self, output: str | Path, *, title: str = "", force: bool = False) -> Path:
        """Write all tables and charts to one HTML page that works offline; return its path.

        Raises:
            TraceError: a file cannot be read.
            UsageError: the window is not in this run, or ``output`` cannot be written.
        """
        heading = title or self.paths[0].name
        document = page(self, analysis_names())
        text = render_report(document, self.within("all").of_ranks(), Options(title=heading))
        write_file(Path(output), text, force=force, inputs=self.paths)
        return Path(output)

    def export(
        self,
        to: str,
        output: str | Path,
        *,
        tables: Iterable[str] | None = None,
        results: Iterable[str] = (),
        ranks: Collection[int] | None = None,
        keep_secrets: bool = False,
        force: bool = False,
    ) -> Exported:
        """Convert the run for other tools; return the path, the sizes, and remarks.

        >>> tp.open("run.sqlite").export("perfetto", "run.json")

        Args:
            to: "perfetto", "chrome", "parquet", "arrow", "csv", "tensorboard", or "openmetrics".
            output: a file, or a new folder.
            tables: export only these tables of the trace.
            results: export these results instead of the trace, or "all" (for parquet, arrow, csv,
                and openmetrics).
            ranks: export only these ranks.
            keep_secrets: do not mask possible secrets.
            force: replace the output if it exists.

        Raises:
            UsageError: the format or table does not exist, or the output cannot be written.
            TraceError: a file cannot be read.
        """
        analyses = tuple(check_analyses(results)) if results else ()
        table_names = None if tables is None else check_tables(tables)
        request = Request(
            *(Path(output), table_names, analyses, ranks, force),
            has_tracks=tables is None and ranks is None,
        )
        opening = replace(self.opening, keeps_secrets=keep_secrets)
        run = open_run(self.paths, opening).within(self.window)
        exported = exporter_called(to).load()(run, request)
        for note in caveats_of_stream(run).notes:
            exported.remark(note_text(note))
        return exported

    def ops(
        self,
        *,
        name: str | None = None,
        kind: Literal["kernel", "copy", "memset"] | None = None,
        longest: bool = False,
        rows: int | None = None,
    ) -> pd.DataFrame:
        """Return every kernel, copy, and memset of the window, as `traceprof ops` lists them.

        ``attrs["remarks"]`` lists caveats about the recording.

        Args:
            name: include only operations whose name matches this regular expression.
            kind: include only operations of this kind.
            longest: sort by duration, longest first. Default: sort by start time.
            rows: the maximum number of rows. Default: all.

        Raises:
            TraceError: a file cannot be read.
            UsageError: ``name`` is not a regular expression, or the window is not in this run.
            NotRecordedError: the trace does not contain GPU activity.
        """
        operation_filter = OperationFilter(name=name, kind=kind, n_rows=rows, longest_first=longest)
        chunks = list(operations(self, operation_filter).chunks())
        frame = (Table.stacked(chunks) if chunks else OPERATIONS.of_rows()).to_frame()
        frame.attrs["remarks"] = sentences(caveats(self).notes)
        return frame

    def explain(self, window: str = "slowest", against: str | None = None) -> Result:
        """Break down why a step ("step:37") or window took longer than ``against``.

        The default of ``against`` is the steady step of median length.

        Raises:
            TraceError: a file cannot be read.
            UsageError: a window is not in this run, or there is no window to compare with.
            NotRecordedError: no GPU was recorded in both windows.
        """
        return displayable_result(explain(self, window, against), EXPLAIN)

    def query(self, sql: str, *, rows: int = 1_000_000, timeout_s: float = 60.0) -> pd.DataFrame:
        """Return the rows of a SELECT statement on the window (default: the whole run).

        >>> run.query("SELECT name, sum(duration_ns) AS ns FROM kernels GROUP BY name")

        ``traceprof query --schema`` lists the views. Unknown values are None. ``attrs["is_cut"]``
        is True if there are more than ``rows`` rows. ``attrs["remarks"]`` lists caveats about the
        recording.

        Raises:
            UsageError: the statement is invalid, is not a SELECT, or needs too much time or memory.
            TraceError: a file cannot be read.
        """
        answer = query(self, sql, Limits(n_rows=rows, seconds=timeout_s))
        import pandas as pd

        frame = pd.DataFrame(answer.rows.rows, columns=list(answer.rows.columns))
        remarks = [*answer.remarks, *sentences(answer.caveats.notes)]
        frame.attrs |= {"is_cut": answer.rows.is_cut, "remarks": remarks}
        return frame

    def _repr_html_(self) -> str:
        return facts_html("traceprof run", self._known())


def open(
    paths: str | Path | Sequence[str | Path],
    *,
    rules: str | Path | None = None,
    align: str = Align.AUTO,
    gpu: str | None = None,
    links: Sequence[str] = (),
    hardware: str | Path | None = None,
    link_from: str | Path | None = None,
    samples: str | Path | None = None,
    racks: Sequence[str] = (),
    cluster: str | Path | None = None,
    warmup: int | None = None,
    step_ranges: str | None = None,
    jobs: int = 1,
    allow_missing: bool = False,
    one_run: bool = False,
    cache: bool = True,
) -> Run:
    """Open the trace or run in ``paths``. traceprof reads the files on first use.

    Args:
        paths: a file, or a run: its directory, a pattern, its files, or a manifest.
        rules: classify kernels with the rules in this TOML file before the built-in rules.
        align: how to align the clocks of ranks: "auto" or "collectives" (ends of shared
            collectives, else wall time), "utc" (wall time), or "none".
        gpu: the GPU model, such as h100-sxm.
        links: the rates of links: "pcie=gen4x16", "nic=400Gb/s".
        hardware: a TOML file with more GPU models and links.
        link_from: the output of nccl-tests, with the bandwidths to compare collectives with.
        samples: the output of nvidia-smi, dcgmi, or rocm-smi from the time of the recording.
        racks: the hosts of racks: "r1=node[1-4],node9".
        cluster: a Dask cluster that analyzes the ranks of a run (tcp://host:8786, or local), or a
            TOML file with the ranks of [hosts] and the hosts of [racks].
        warmup: the number of leading warm-up steps. Default: detect them.
        step_ranges: a regular expression that matches the whole names of ranges that are steps.
        jobs: the number of processes that analyze the ranks of a run.
        allow_missing: skip ranks whose files cannot be read.
        one_run: treat all files as ranks of one run.
        cache: read results for unchanged files from the user's cache, and write results to it.

    Raises:
        UsageError: ``align`` is invalid.
    """
    if align not in (ways := [way.value for way in Align]):
        raise UsageError(f"align {align!r}: expected one of {', '.join(ways)}")
    scheduler, hosts = split_cluster(str(cluster)) if cluster else ("", None)
    opening = Opening(
        rules=path_of(rules),
        align=Align(align),
        gpu=gpu,
        links=tuple(links),
        hardware=path_of(hardware),
        link_from=path_of(link_from),
        samples=path_of(samples),
        racks=tuple(racks),
        cluster=hosts,
        warmup_steps=warmup,
        step_ranges=step_ranges,
        jobs=jobs,
        scheduler=scheduler,
        allow_missing=allow_missing,
        is_one_run=one_run,
        is_cached=cache,
    )
    return Run.over(open_run(as_path_list(paths), opening))


def as_path_list(paths: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    """Return ``paths`` as a sequence; a single path becomes a list with one path."""
    return [paths] if isinstance(paths, str | Path) else paths


def path_of(path: str | Path | None) -> Path | None:
    """Return ``path`` as a Path, or None."""
    return None if path is None else Path(path)

"""A trace or a run that was opened: its tables, pages and files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from traceprof.api.results import Page, Result, shown
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
from traceprof.render.html_text import piece_of_html
from traceprof.render.pictures.figure import THEMES, NotebookFigure, timeline_figure
from traceprof.render.registry import Options
from traceprof.render.report.render import render_report
from traceprof.session.answer import page
from traceprof.session.cutting import Cutting, cut_run
from traceprof.session.doubts import doubts, doubts_of_stream, selected
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
"""The measures of a run that its headline figures are."""


class Run(Tables):
    """A run whose results show themselves.

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
        """Write the window to ``output`` as a trace of the same format; return its path.

        Args:
            output: a file; of a run of several files a new folder.
            devices: only the work of these, by their numbers in the file.
            ranks: only these.
            tables: only the events of these tables, as `traceprof cut --tables` takes them.
            clip: shorten what crosses the border of the window.
            keep_environment: leave environments, outputs of programs and secrets in.
            force: replace a file that is there.

        Raises:
            TraceError: a file cannot be read or cut.
            UsageError: the window is none of this run, or ``output`` cannot be written.
        """
        cutting = Cutting(devices, ranks, tables, clip, keep_environment)
        return cut_run(self, Path(output), cutting, force=force)[0].path

    def figure(self, *, title: str = "", theme: str = "light") -> NotebookFigure:
        """Return the window as a plotly figure that shows itself in notebooks.

        At most 48 lanes under the names of their processes, devices first; 1,500 bars with hover,
        everything shorter as density behind them. The axis is in ms after the start of the run.

        >>> run.within("step:3..5").figure()

        Args:
            title: its heading.
            theme: "light" or "dark".

        Raises:
            TraceprofError: a file cannot be read, or the window or the theme is none.
        """
        if theme not in THEMES:
            raise UsageError(f"theme {theme!r}: expected {' or '.join(THEMES)}")
        whole = self.within("all").trace()
        part = selected(self).window.hull
        return timeline_figure(whole, window=part, title=title, theme=theme, width=None)

    def page(self) -> Page:
        """Return what `traceprof analyze` prints: where the time went, and what would fix it.

        Raises:
            TraceprofError: a file cannot be read, or the window is none of this run.
        """
        return Page(page(self))

    def figures(self) -> dict[str, float]:
        """Return the run in a few numbers, those that are known: for the logger of a program.

        Throughput, the period of a step, and what the devices did, as `traceprof runs add` keeps
        them: the unit is at the end of the name.

        Raises:
            TraceprofError: a file cannot be read, or the window is none of this run.
        """
        kept = summary_of(self, name_of_files(self.paths), {})
        known = ((name, kept.measure(name)) for name in FIGURES)
        return {name: value for name, value in known if value is not None}

    def report(self, output: str | Path, *, title: str = "", force: bool = False) -> Path:
        """Write everything on one HTML page, which works offline; return its path.

        Raises:
            TraceError: a file cannot be read.
            UsageError: the window is none of this run, or ``output`` cannot be written.
        """
        heading = title or self.paths[0].name
        found = page(self, analysis_names())
        text = render_report(found, self.within("all").of_ranks(), Options(title=heading))
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
        """Write the run in a form that other tools read; return what was written.

        >>> tp.open("run.sqlite").export("perfetto", "run.json")

        Args:
            to: "perfetto", "chrome", "parquet", "arrow", "csv", "tensorboard" or "openmetrics".
            output: a file, or a new folder.
            tables: only these tables of the trace.
            results: these results instead of the trace (parquet, arrow, csv; of openmetrics
                which); "all" for all.
            ranks: only these.
            keep_secrets: leave in what looks like a secret.
            force: replace what is there.

        Raises:
            UsageError: there is no such form or table, or it cannot be written.
            TraceError: a file cannot be read.
        """
        asked = tuple(check_analyses(results)) if results else ()
        wanted = None if tables is None else check_tables(tables)
        request = Request(Path(output), wanted, asked, ranks, force)
        opening = replace(self.opening, keeps_secrets=keep_secrets)
        run = open_run(self.paths, opening).within(self.window)
        done = exporter_called(to).load()(run, request)
        for note in doubts_of_stream(run).notes:
            done.remark(note_text(note))
        return done

    def ops(
        self,
        *,
        name: str | None = None,
        kind: Literal["kernel", "copy", "memset"] | None = None,
        longest: bool = False,
        rows: int | None = None,
    ) -> pd.DataFrame:
        """Return every kernel, copy and memset of the window one by one, as `traceprof ops` does.

        In ``attrs``: "remarks", on what is in doubt.

        Args:
            name: only those whose name matches this regular expression.
            kind: only these.
            longest: the longest first, not the earliest.
            rows: at most so many.

        Raises:
            TraceError: a file cannot be read.
            UsageError: ``name`` is no regular expression, or the window is none of this run.
            NotRecordedError: no work of devices was recorded.
        """
        chosen = OperationFilter(name=name, kind=kind, n_rows=rows, longest_first=longest)
        chunks = list(operations(self, chosen).chunks())
        frame = (Table.stacked(chunks) if chunks else OPERATIONS.of_rows()).to_frame()
        frame.attrs["remarks"] = sentences(doubts(self).notes)
        return frame

    def explain(self, window: str = "slowest", against: str | None = None) -> Result:
        """Return why a step ("step:37"), or a window, took longer than another one.

        ``against`` is that other one; left out, the steady step of median length.

        Raises:
            TraceError: a file cannot be read.
            UsageError: a window is none of this run, or there is nothing to hold it against.
            NotRecordedError: no device was recorded in both of them.
        """
        return shown(explain(self, window, against), EXPLAIN)

    def query(self, sql: str, *, rows: int = 1_000_000, timeout_s: float = 60.0) -> pd.DataFrame:
        """Return what a SELECT says of the window, without one of the whole run.

        >>> run.query("SELECT name, sum(duration_ns) AS ns FROM kernels GROUP BY name")

        The views are those that ``traceprof query --schema`` prints; unknown values are None. In
        ``attrs``: "is_cut", whether there were more ``rows``; "remarks", on what is in doubt.

        Raises:
            UsageError: the statement is wrong, no SELECT, or needs too much time or memory.
            TraceError: a file cannot be read.
        """
        found = query(self, sql, Limits(n_rows=rows, seconds=timeout_s))
        import pandas as pd

        frame = pd.DataFrame(found.rows.rows, columns=list(found.rows.columns))
        remarks = [*found.remarks, *sentences(found.doubts.notes)]
        frame.attrs |= {"is_cut": found.rows.is_cut, "remarks": remarks}
        return frame

    def _repr_html_(self) -> str:
        return piece_of_html("traceprof run", self._known())


def open(
    paths: str | Path | Sequence[str | Path],
    *,
    rules: str | Path | None = None,
    align: str = Align.AUTO,
    gpu: str | None = None,
    links: Sequence[str] = (),
    hardware: str | Path | None = None,
    racks: Sequence[str] = (),
    cluster: str | Path | None = None,
    warmup: int | None = None,
    step_ranges: str | None = None,
    jobs: int = 1,
    allow_missing: bool = False,
    one_run: bool = False,
    cache: bool = True,
) -> Run:
    """Return the trace or run in ``paths``; nothing is read before something is asked.

    Args:
        paths: a file, or a run: its directory, a pattern, its files, a manifest.
        rules: a TOML file of rules that say what kernels do, tried before the built-in ones.
        align: how the clocks of ranks are put together: auto, collectives, utc or none.
        gpu: the model of the GPUs, such as h100-sxm.
        links: links and their rates: "pcie=gen4x16", "nic=400Gb/s".
        hardware: a TOML file with more GPUs and links.
        racks: hosts of racks: "r1=node[1-4],node9".
        cluster: a Dask cluster that looks at the ranks of a run, tcp://host:8786 or local; or a
            TOML file: the ranks of [hosts], the hosts of [racks].
        warmup: how many leading steps are warm-up; left out, they are found.
        step_ranges: a regular expression of the ranges that are steps, by their whole name.
        jobs: in how many processes the ranks of a run are looked at.
        allow_missing: leave ranks out whose files cannot be read.
        one_run: the files are ranks of one run, whatever they look like.
        cache: whether results of files that did not change may come from the user's cache.

    Raises:
        UsageError: ``align`` is none of these.
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
    return Run.over(open_run(several(paths), opening))


def several(paths: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    """Return paths of which one may stand alone."""
    return [paths] if isinstance(paths, str | Path) else paths


def path_of(path: str | Path | None) -> Path | None:
    """Return the path that a text means."""
    return None if path is None else Path(path)

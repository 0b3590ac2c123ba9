"""The public API: what ``import traceprof`` gives for reading traces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.comparison import EXPLAIN
from traceprof.comparison import Comparison as PlainComparison
from traceprof.comparison.accuracy import accuracy as reached
from traceprof.comparison.comparing import compare_named
from traceprof.comparison.explaining import explain
from traceprof.comparison.records import list_of_runs
from traceprof.comparison.runs_named import (
    keep_file,
    name_of_files,
    summaries_of,
    summary_of,
    with_places,
)
from traceprof.comparison.scaling.compared import scaling as sizes_compared
from traceprof.errors import UsageError
from traceprof.model.results import Result as PlainResult
from traceprof.model.summary import Summary
from traceprof.query.engine import Limits
from traceprof.render.briefing import head_of
from traceprof.render.escape import html_list
from traceprof.render.formatting import sentences
from traceprof.render.html_text import piece_of_html, result_html
from traceprof.render.pictures.figure import THEMES, NotebookFigure, timeline_figure
from traceprof.session.answer import Document, answer
from traceprof.session.cutting import Cutting, cut_run
from traceprof.session.options import Align, Opening, split_cluster
from traceprof.session.querying import query
from traceprof.session.run import Run as SessionRun
from traceprof.session.run import open_run
from traceprof.snapshots.measured import memory as memory_held
from traceprof.store import Store

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Comparison",
    "Result",
    "Run",
    "Runs",
    "accuracy",
    "compare",
    "memory",
    "open",
    "runs",
    "scaling",
]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result(PlainResult):
    """A result that shows itself: its tables by `to_frame`, scalars, notes and `sentences`.

    ``ranks`` gives the rank of each process that has one; ``doubts`` must be read with all of it.
    """

    ranks: Mapping[int, int] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The notes as people read them."""
        return sentences(self.notes)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(table)} rows" for name, table in self.tables.items())
        return "\n".join((f"<traceprof {self.name}: {sizes}>", *self.doubts))

    def _repr_html_(self) -> str:
        return html_list(self.doubts) + result_html(self, self.ranks)


class Run(SessionRun):
    """A run whose results show themselves.

    >>> import traceprof as tp
    >>> tp.open("run/").within("steady").breakdown().to_frame()
    """

    def result(self, name: str) -> Result:
        """Return the result of the analysis called ``name``.

        Raises:
            UsageError: there is no such analysis, or the window is none of this run.
            NotRecordedError: the trace lacks the data.
        """
        return _shown(answer(self, [name], strict=True), name)

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
            UsageError: the window is none of this run, or the theme is none.
        """
        if theme not in THEMES:
            raise UsageError(f"theme {theme!r}: expected {' or '.join(THEMES)}")
        whole = self.within("all").trace()
        part = self.selection.window
        return timeline_figure(whole, window=part, title=title, theme=theme, width=None)

    def explain(self, window: str = "slowest", against: str | None = None) -> Result:
        """Return why a step ("step:37"), or a window, took longer than another one.

        ``against`` is that other one; left out, the steady step of median length.

        Raises:
            UsageError: a window is none of this run, or there is nothing to hold it against.
            NotRecordedError: no device was recorded in both of them.
        """
        return _shown(explain(self, window, against), EXPLAIN)

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
        import pandas as pd  # noqa: PLC0415 (half of what a small command costs)

        frame = pd.DataFrame(found.rows.rows, columns=list(found.rows.columns))
        remarks = [*found.remarks, *sentences(found.doubts.notes)]
        frame.attrs |= {"is_cut": found.rows.is_cut, "remarks": remarks}
        return frame

    def __getattr__(self, name: str) -> Callable[[], Result]:
        self._check_name(name)
        return lambda: self.result(name.replace("_", "-"))

    def _repr_html_(self) -> str:
        return piece_of_html("traceprof run", self._known())


class Runs:
    """The database of runs: what was kept of them when their traces are gone.

    >>> kept = traceprof.runs()
    >>> kept.add("night/", network="calico")
    >>> kept.list(network="calico")[["name", "samples_per_s"]]
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, **labels: str) -> pd.DataFrame:
        """Return the runs that have all of ``labels``, with their key measures."""
        return list_of_runs(self._store, labels).results["runs"].to_frame()

    def get(self, name: str) -> Summary:
        """Return what was kept of a run: by its name, its number, or how its name begins.

        Raises:
            UsageError: there is none, or there are several.
        """
        return self._store.get(name)

    def add(
        self, run: str | Path | SessionRun | Summary, name: str | None = None, **labels: str
    ) -> str:
        """Keep a run, in files or opened, and return its name.

        A ``name`` that is given must be free; left out, one that is taken gets a number.

        Raises:
            UsageError: the name is taken, or the files hold several runs.
            TraceError: it cannot be read.
        """
        if isinstance(run, str | Path):
            return keep_file(self._store, run, None, name, labels)[0]
        if isinstance(run, SessionRun):
            summary = summary_of(run, name or name_of_files(run.paths), labels)
        else:
            summary = replace(run, name=name or run.name).labelled(**labels)
        return self._store.add(with_places(summary), numbered=name is None)

    def remove(self, name: str) -> None:
        """Remove a run, by its whole name or its number.

        Raises:
            UsageError: there is none.
        """
        self._store.remove([name])

    def __repr__(self) -> str:
        return f"<traceprof runs in {self._store.path}>"


def runs(db: str | Path | None = None) -> Runs:
    """Return the database of runs in the file ``db``; it is made when the first run is added.

    Left out, it is the one that ``TRACEPROF_RUNS`` names, else the user's own.
    """
    return Runs(Store.at(db))


def _shown(document: Document, name: str) -> Result:
    found = document.results[name]
    own = {field.name: getattr(found, field.name) for field in fields(PlainResult)}
    return Result(**own, ranks=document.ranks, doubts=head_of(document).doubts)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(PlainComparison):
    """Runs against runs: its results by name, and ``sentences``, the verdict."""

    @property
    def sentences(self) -> list[str]:
        """The verdict as people read it."""
        return sentences(self.verdict)

    def to_frame(self, name: str = "causes") -> pd.DataFrame:
        """Return a table of any of the results, such as judged, causes, parts or kernels.

        Raises:
            KeyError: there is none.
        """
        for result in self.results.values():
            if name in result.tables:
                return result.to_frame(name)
        raise KeyError(name)

    def __repr__(self) -> str:
        return f"<traceprof comparison {self.title}: {', '.join(self.results)}>"

    def _repr_html_(self) -> str:
        head = head_of(self)
        facts = [("", text) for text in (*head.sentences, *head.warnings, *head.remarks)]
        first = next(iter(self.results), "")
        answering = "judged" if "judged" in self.results else first
        table = result_html(self.results[answering], {}) if answering else ""
        return piece_of_html(head.title, facts) + table


def compare(
    base: str | Path | Sequence[str | Path],
    new: str | Path | Sequence[str | Path],
    *,
    max_regression: str | Sequence[str] = (),
    window: str | None = None,
    db: str | Path | None = None,
) -> Comparison:
    """Return what is different in ``new``, and whether that is more than chance.

    Args:
        base: a trace, a run, a file of ``traceprof runs export`` or the name of a run in the
            database; several of the same thing, and the run is the unit of the statistics.
        new: what is held against it.
        max_regression: how much worse it may get: "5%", or of a measure "step_own_ns=5%". The
            result "limits" says whether it is.
        window: what traces are seen through.
        db: the database of runs; left out, the user's own.

    Raises:
        TraceprofError: a run cannot be found or read, or a limit is not understood.
    """
    limits = [max_regression] if isinstance(max_regression, str) else max_regression
    found = compare_named(_several(base), _several(new), limits=limits, window=window, db=_path(db))
    return _comparison(found)


def scaling(
    *runs: str | Path | Summary,
    base: float | None = None,
    by: Sequence[str] = (),
    ignored: Sequence[str] = (),
    assumed: str = "",
    db: str | Path | None = None,
) -> Comparison:
    """Return how the throughput of ``runs`` grows with their size, and where the rest was lost.

    >>> tp.scaling("1gpu/", "2gpu/", "4gpu/").to_frame("losses")

    Args:
        runs: traces, runs, tables of rates, logs, names in the database, or what it gives.
        base: the size that is held for ideal; left out, the smallest of each group.
        by: what the size is ("gpus" or "nodes"), and labels whose groups stand side by side.
        ignored: labels that make no groups: runs that differ in them alone are repeats.
        assumed: "weak" or "strong", where batches are not known.
        db: the database of runs; left out, the user's own.

    Raises:
        TraceprofError: a run cannot be found or read, or none tells its size and throughput.
    """
    found = _summaries(runs, db)
    return _comparison(sizes_compared(found, base=base, by=by, ignored=ignored, assumed=assumed))


def accuracy(
    *runs: str | Path | Summary,
    to: float | None = None,
    metric: str | None = None,
    is_lower: bool | None = None,
    base: str | None = None,
    db: str | Path | None = None,
) -> Comparison:
    """Return when each of ``runs`` first reached a target, and what more devices gave.

    >>> tp.accuracy("1node.log", "8nodes.log", to=0.759).to_frame("reached")

    Args:
        runs: logs, traces, runs, names in the database, or what it gives.
        to: the target; left out, that of the runs, else the best that all of them reach.
        metric: top1, val_loss …; left out, an accuracy, else a loss.
        is_lower: whether lower is better; left out, by the name of the metric.
        base: what speed-ups are against, a name or a number; left out, the fewest devices.
        db: the database of runs; left out, the user's own.

    Raises:
        TraceprofError: a run cannot be found or read, or none has the metric.
    """
    found = _summaries(runs, db)
    return _comparison(reached(found, target=to, metric=metric, is_lower=is_lower, base=base))


def memory(*snapshots: str | Path) -> Comparison:
    """Return what held a GPU's memory, by snapshots of PyTorch's allocator.

    Raises:
        TraceprofError: one cannot be read, or is no snapshot.
    """
    return _comparison(memory_held([Path(one) for one in snapshots]))


def _summaries(runs: Sequence[str | Path | Summary], db: str | Path | None) -> list[Summary]:
    each = ([r] if isinstance(r, Summary) else summaries_of([r], db=_path(db)) for r in runs)
    return [own for found in each for own in found]


def _comparison(found: PlainComparison) -> Comparison:
    return Comparison(**{own.name: getattr(found, own.name) for own in fields(PlainComparison)})


def _several(paths: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    return [paths] if isinstance(paths, str | Path) else paths


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
        cache: whether results of files that did not change may come from the user's cache.

    Raises:
        UsageError: ``align`` is none of these.
    """
    if align not in (ways := [way.value for way in Align]):
        raise UsageError(f"align {align!r}: expected one of {', '.join(ways)}")
    scheduler, hosts = split_cluster(str(cluster or ""))
    opening = Opening(
        rules=_path(rules),
        align=Align(align),
        gpu=gpu,
        links=tuple(links),
        hardware=_path(hardware),
        racks=tuple(racks),
        cluster=hosts,
        warmup_steps=warmup,
        step_ranges=step_ranges,
        jobs=jobs,
        scheduler=scheduler,
        allow_missing=allow_missing,
        is_cached=cache,
    )
    return Run.over(open_run(_several(paths), opening))


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)

"""The public API: what ``import traceprof`` gives for reading traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from traceprof.errors import UsageError
from traceprof.model.results import Result as PlainResult
from traceprof.render.formatting import sentences
from traceprof.render.html_text import piece_of_html, result_html
from traceprof.session.answer import Document, answer
from traceprof.session.explaining.explain import explain
from traceprof.session.explaining.spec import NAME as EXPLAIN
from traceprof.session.opening import Align, Opening
from traceprof.session.run import Run as SessionRun
from traceprof.session.run import open_run

__all__ = ["Result", "Run", "open"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result(PlainResult):
    """A result that shows itself: its tables by `to_frame`, scalars, notes and `sentences`.

    ``ranks`` gives the rank of each process that has one, in a run of several.
    """

    ranks: Mapping[int, int] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        """The notes as people read them."""
        return sentences(self.notes)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(frame)} rows" for name, frame in self.tables.items())
        return f"<traceprof {self.name}: {sizes}>"

    def _repr_html_(self) -> str:
        return result_html(self, self.ranks)


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

    def explain(self, window: str = "slowest", against: str | None = None) -> Result:
        """Return why a step ("step:37"), or a window, took longer than another one.

        ``against`` is that other one; left out, the steady step of median length.

        Raises:
            UsageError: a window is none of this run, or there is nothing to hold it against.
            NotRecordedError: no device was recorded in both of them.
        """
        return _shown(explain(self, window, against), EXPLAIN)

    def __getattr__(self, name: str) -> Callable[[], Result]:
        self._check_name(name)
        return lambda: self.result(name.replace("_", "-"))

    def _repr_html_(self) -> str:
        return piece_of_html("traceprof run", self._known())


def _shown(document: Document, name: str) -> Result:
    found = document.results[name]
    own = {field.name: getattr(found, field.name) for field in fields(PlainResult)}
    return Result(**own, ranks=document.ranks)


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
        cluster: a TOML file: the ranks of [hosts], the hosts of [racks].
        warmup: how many leading steps are warm-up; left out, they are found.
        step_ranges: a regular expression of the ranges that are steps, by their whole name.

    Raises:
        UsageError: ``align`` is none of these.
    """
    ways = [way.value for way in Align]
    if align not in ways:
        raise UsageError(f"align {align!r}: expected one of {', '.join(ways)}")
    opening = Opening(
        rules=_path(rules),
        align=Align(align),
        gpu=gpu,
        links=tuple(links),
        hardware=_path(hardware),
        racks=tuple(racks),
        cluster=_path(cluster),
        warmup_steps=warmup,
        step_ranges=step_ranges,
    )
    named = [paths] if isinstance(paths, str | Path) else paths
    return Run.over(open_run(named, opening))


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)

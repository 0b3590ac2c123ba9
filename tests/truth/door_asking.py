"""One trace, opened once, and what is seen of it through every door.

Commands run in this process. They share the run that was opened, and a cache of their own, as
commands one after the other share the user's; an asker that ``is_fresh`` opens the trace anew for
each.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

import traceprof as tp
from tests.truth.door_exhibits import (
    Exhibit,
    Row,
    from_csv,
    from_frame,
    from_html,
    from_json,
    from_text,
    is_known,
)
from tests.truth.door_figures import PARTS, SIGNATURES, named
from tests.truth.door_timeline import Timeline, timeline_of
from traceprof import processes
from traceprof.cli import app
from traceprof.errors import TraceprofError

__all__ = ["Asker", "Said", "asking"]

_CHANGED: Final = ("TRACEPROF_CACHE", "TRACEPROF_RUNS", "COLUMNS", "NO_COLOR", "FORCE_COLOR")
_OPENS: Final = "open_run"
MOST_KEPT: Final = 250
"""Of a longer table `runs add` keeps the first rows alone, and says so."""
_IN: Final = "traceprof.session.run"


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, what it said beside that, and its exit code."""

    text: str
    error: str
    code: int


@contextmanager
def _in_the_place_of(name: str, old: Any, new: Any) -> Iterator[None]:
    """Let every module of traceprof that imported ``old`` have ``new``, and those that come."""

    def put(one: Any, other: Any) -> None:
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("traceprof") and vars(module).get(name) is one:
                setattr(module, name, other)

    put(old, new)
    try:
        yield
    finally:
        put(new, old)


@dataclass
class Asker:
    """What is asked about one trace, each question once; only within `asking`."""

    trace: Path
    folder: Path
    is_fresh: bool = False
    opened: dict[tuple[str, ...], Any] = field(default_factory=dict)
    crashes: list[str] = field(default_factory=list)
    _said: dict[tuple[str, ...], Said] = field(default_factory=dict)
    _pages: dict[tuple[str, ...], dict[str, Exhibit]] = field(default_factory=dict)

    def command(self, *words: str) -> Said:
        """Return what ``traceprof`` says to ``words``, where "T" is the trace."""
        if words not in self._said:
            named_so = [str(self.trace) if word == "T" else word for word in words]
            done = CliRunner().invoke(app, named_so)
            error, said = done.exception, done.stderr
            if error is not None and not isinstance(error, SystemExit):
                said = str(error)
            if error is not None and not isinstance(error, SystemExit | TraceprofError):
                asked = " ".join(words).replace(str(self.folder), "…")
                self.crashes.append(f"traceprof {asked}: {type(error).__name__}: {error}")
            self._said[words] = Said(done.stdout, said, done.exit_code)
        return self._said[words]

    def text(self, *words: str) -> Exhibit:
        """Return what a command prints."""
        return self._read(words, lambda text: from_text(text, SIGNATURES))

    def json(self, *words: str) -> Exhibit:
        """Return what a command prints as JSON."""
        return self._read((*words, "--json"), from_json)

    def csv(self, table: str, *words: str) -> Exhibit:
        """Return what a command prints as CSV, as the table called ``table``."""
        return self._read((*words, "--csv"), lambda text: from_csv(text, table))

    def _read(self, words: Sequence[str], read: Callable[[str], Exhibit]) -> Exhibit:
        said = self.command(*words)
        return read(said.text) if said.code == 0 else Exhibit(closed=said.error.strip())

    def html(self, section: str, *words: str) -> Exhibit:
        """Return a section of what a command writes as a page; "" for what is in none."""
        return self.sections(*words).get(section, Exhibit(closed="no such section"))

    def sections(self, *words: str) -> dict[str, Exhibit]:
        """Return what a command writes as a page, by section."""
        if words not in self._pages:
            page = self.folder / "page.html"
            page.unlink(missing_ok=True)
            self.command(*words, "-o", str(page))
            text = page.read_text("utf-8") if page.exists() else ""
            self._pages[words] = from_html(text, SIGNATURES)
        return self._pages[words]

    def chart_of_steps(self) -> Exhibit:
        """Return the first chart of the report's steps: a row per step.

        Where a bar is the mean of several it stands for all of them, and says no length of one.
        """
        shown = self.html("steps", "report", "T")
        charts = shown.tables.get("charts", ())
        joined = re.search(r"Step time of (\d+) .*\(each bar is the mean of (\d+)", shown.text)
        lengths: dict[int, float] = {}
        for trace in charts[0]["data"] if charts else ():
            is_part = named(f"share: {trace.get('name')}").removeprefix("share: ") in PARTS
            is_part &= trace.get("visible", True) is True  # the first of its tabs
            for step, ms in zip(trace.get("x", ()), trace.get("y", ()), strict=False):
                if is_part and isinstance(step, int) and ms is not None:
                    lengths[step] = lengths.get(step, 0.0) + ms * 1e6
        if joined and lengths:
            n_steps, n_each = map(int, joined.groups())
            numbers = [step + i for step in lengths for i in range(n_each)][:n_steps]
            lengths = dict.fromkeys(numbers, math.nan)
        return Exhibit("", {"chart": self._with_chosen(lengths)} if lengths else {})

    def explained(self, *form: str) -> Exhibit:
        """Return what `explain` says of the chosen step; ``form`` is --json or nothing."""
        if self.chosen_step is None:
            return Exhibit(closed="no step to explain")
        words = ("explain", "T", f"step:{self.chosen_step}")
        return self.json(*words) if form else self.text(*words)

    def slowest(self) -> Exhibit:
        """Return what `explain` says without a step, where the page knows slow steps."""
        is_known = "slower by" in self.text("T").text
        return self.text("explain", "T") if is_known else Exhibit(closed="no slow step")

    @cached_property
    def timeline(self) -> Timeline | None:
        """What the timeline of the whole trace holds."""
        page = self.folder / "timeline.html"
        page.unlink(missing_ok=True)
        said = self.command("timeline", "T", "-o", str(page))
        return timeline_of(page.read_text("utf-8")) if said.code == 0 else None

    def steps_drawn(self) -> Exhibit:
        """Return the steps of the timeline."""
        found, rows = self.timeline, self.json("T").tables.get("steps.steps", ())
        if found is None:
            return Exhibit(closed="no timeline")
        steps = self._with_chosen(found.steps)
        if len({row["process"] for row in rows}) > 1:  # those of one process are drawn
            steps = [{**row, "chosen": False} for row in steps]
        return Exhibit("", {"steps": steps})

    def _with_chosen(self, lengths: dict[int, float]) -> list[Row]:
        """Return a row for each step, and which of them is the one that is explained."""
        chosen = self.chosen_step
        return [{"step": step, "ns": ns, "chosen": step == chosen} for step, ns in lengths.items()]

    def that_step(self) -> Exhibit:
        """Return the rows of `show steps` with the chosen one among them."""
        shown, chosen = self.json("show", "steps", "T"), self.chosen_step
        rows = shown.tables.get("steps.steps", ())
        return Exhibit("", {"steps.steps": [{**r, "chosen": r["step"] == chosen} for r in rows]})

    @cached_property
    def chosen_step(self) -> int | None:
        """The step that is explained: the last but one of the page; none of a pattern."""
        rows = self.json("T").tables.get("steps.steps", ())
        steps = sorted({int(row["step"]) for row in rows})
        return None if len(steps) < 3 or self.is_pattern else steps[-2]

    @cached_property
    def is_pattern(self) -> bool:
        """Whether the steps are iterations of a pattern."""
        return any(row.get("is_pattern") for row in self.json("T").tables.get("steps.scalars", ()))

    @cached_property
    def window(self) -> str:
        """What the default window is called."""
        return next((row.get("label", "") for row in self.json("T").tables.get("window", ())), "")

    @cached_property
    def run(self) -> tp.Run:
        """The run, as Python has it."""
        return tp.open(self.trace)

    def frame(self, table: str, window: str | None = None) -> Exhibit:
        """Return a table as a frame: "breakdown.devices"."""
        return self._python(
            lambda: from_frame(self._result(table.partition(".")[0], window).to_frame(), table)
        )

    def sentences(self, noun: str, window: str | None = None) -> Exhibit:
        """Return the sentences of a table in Python, and its scalars."""

        def read() -> Exhibit:
            result = self._result(noun, window)
            scalars = {name: value for name, value in result.scalars.items() if is_known(value)}
            return Exhibit("\n".join(result.sentences), {f"{noun}.scalars": [scalars]})

        return self._python(read)

    def figures(self, window: str | None = None) -> Exhibit:
        """Return the headline figures in Python."""
        return self._python(lambda: Exhibit("", {"figures": [self.run.within(window).figures()]}))

    def page(self, window: str | None = None) -> Exhibit:
        """Return the page as a text in Python."""
        return self._python(lambda: from_text(str(self.run.within(window).page()), SIGNATURES))

    def _result(self, noun: str, window: str | None) -> Any:
        return getattr(self.run.within(window), noun)()

    def _python(self, read: Callable[[], Exhibit]) -> Exhibit:
        try:
            return read()
        except TraceprofError as error:
            return Exhibit(closed=str(error))

    def assistant(self, tool: str, **asked: Any) -> Exhibit:
        """Return what a tool of the server for assistants says; "T" is the trace."""
        server = import_module("traceprof.mcp_server")
        tools = server.Tools(server.Folders([self.trace.parent]))
        named_so = {key: self.trace.name if own == "T" else own for key, own in asked.items()}

        def read() -> Exhibit:
            reply = getattr(tools, tool)(**named_so)
            return from_text(reply.body or reply.text, SIGNATURES)

        return self._python(read)

    def kept(self) -> Exhibit:
        """Return what `runs add` keeps of the run in its database."""
        said = self.command("runs", "add", "T")
        if said.code:
            return Exhibit(closed=said.error.strip())
        tables: dict[str, Sequence[Row]] = {}
        database = sqlite3.connect(os.environ["TRACEPROF_RUNS"])
        database.row_factory = sqlite3.Row
        with database:
            names = [row[0] for row in database.execute("SELECT name FROM sqlite_schema")]
            (run,) = database.execute("SELECT * FROM runs").fetchall()
            tables["runs"] = [dict(run)]
            for name in names:
                if name == "measures" or name.startswith("result_"):
                    rows = database.execute(
                        f'SELECT * FROM "{name}" WHERE run_id = ? ORDER BY "row"', (run["id"],)
                    )
                    kept = [dict(row) for row in rows]
                    tables[_table_of(name)] = kept if len(kept) < MOST_KEPT else ()
        database.close()
        tables["figures"] = [{row["measure"]: row["value"] for row in tables.pop("measures", ())}]
        return Exhibit("", tables)

    def kept_list(self) -> Exhibit:
        """Return the list of kept runs, of which there is one."""
        self.command("runs", "add", "T")
        return self.text("runs", "list")


@contextmanager
def asking(asker: Asker) -> Iterator[None]:
    """Let ``asker`` ask: within this all share its opened run, its cache and its database."""
    before = {name: os.environ.pop(name, None) for name in _CHANGED}
    cache = "0" if asker.is_fresh else str(asker.folder / "cache")
    os.environ |= {"TRACEPROF_CACHE": cache, "TRACEPROF_RUNS": str(asker.folder / "runs.db")}
    open_run = getattr(import_module(_IN), _OPENS)

    def open_once(paths: Sequence[Path | str], opening: Any = None) -> Any:
        named_so = tuple(str(Path(path).absolute()) for path in paths)
        if named_so not in asker.opened:
            asker.opened[named_so] = open_run(paths, opening)
        return asker.opened[named_so]

    keep = processes.keep_freed_memory
    processes.keep_freed_memory = lambda: None
    try:
        with _in_the_place_of(_OPENS, open_run, open_run if asker.is_fresh else open_once):
            yield
    finally:
        processes.keep_freed_memory = keep
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _table_of(name: str) -> str:
    """Return the name of a kept table as JSON has it: steps.steps of result_steps."""
    analysis, _, table = name.removeprefix("result_").partition("__")
    return f"{analysis}.{table or analysis}" if name != "measures" else name

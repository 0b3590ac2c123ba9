"""Server of the Model Context Protocol: AI assistants query the traces in the given folders.

The server only reads. Its answers are the text of the command line, limited in length. It opens
only paths inside the folders that the user named at start.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from traceprof.comparison.comparing import compare_named
from traceprof.comparison.explaining import explain as explained
from traceprof.errors import TraceError, TraceprofError, UsageError
from traceprof.formats.runs.files import files_of
from traceprof.measures import names_shown, nouns
from traceprof.query.engine import Limits
from traceprof.render.escape import plain_text
from traceprof.render.formatting import note_text
from traceprof.render.registry import Answered, Options, render
from traceprof.render.rows_text import QUERY_FORMS, schema_text
from traceprof.render.text.contents import render_contents
from traceprof.session.answer import answer, page
from traceprof.session.contents import describe
from traceprof.session.options import Opening
from traceprof.session.querying import query, views
from traceprof.session.run import Run, open_run
from traceprof.version import __version__

MAX_CHARACTERS: Final = 30_000
"""Limit of one answer in characters, about 8,000 tokens. A longer answer is cut and says so."""
_MAX_ROWS: Final = 200
_MAX_FILES: Final = 200
_WIDTH: Final = 100
_MAX_QUERY_S: Final = 30.0
_MAX_QUERY_BYTES: Final = 1 << 30
_MAX_ARGUMENT_CHARACTERS_BY_NAME: Final = {"sql": 100_000}
_MAX_ARGUMENT_CHARACTERS: Final = 4096
"""Longest text argument: the longest path on Linux."""
_SUFFIXES: Final = (".sqlite", ".json", ".nsys-rep", ".nvprof", ".nvvp", ".xplane.pb", ".db")
_INSTRUCTIONS: Final = """\
Analyze recorded traces of GPU training (Nsight Systems, nvprof, torch.profiler, traceprof).
First call `info` without a trace to list the traces. Then call `page` to see where the time goes
and what would fix it. `tables` and `query` return the numbers behind the page. `explain` breaks
down why a step was slow. `compare` compares two traces.
Windows: steady, step:3..5, 12ms..30ms, range:NAME, all.
Data that was not recorded is not zero. The answers list missing data: report it to the user.
"""


class Folders:
    """The folders that the server may read.

    Raises:
        TraceError: one of them is not a folder.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots = [folder.resolve() for folder in folders]
        for folder, root in zip(folders, self._roots, strict=True):
            if not root.is_dir():
                raise TraceError(f"{folder} is not a folder: name an existing folder")

    def path(self, text: str) -> Path:
        """Return the resolved path of the trace or run ``text`` inside one of the folders.

        Raises:
            UsageError: the path, or a file that it lists, is outside the folders.
            TraceError: the path does not exist.
        """
        try:
            paths = [(root / text).resolve() for root in self._roots]
            inside = [path for path in paths if self._holds(path)]
            existing = [path for path in inside if path.exists()]
        except (OSError, ValueError, RuntimeError) as error:  # name too long, or circular links
            raise TraceError(f"cannot open {text}: {error}") from error
        if not inside:
            raise UsageError(f"{text} is outside the folders of this server: {self}")
        chosen = (existing or inside)[0]
        for found in files_of([chosen]):
            parts = [found, *(found.rglob("*") if found.is_dir() else ())]
            if not all(self._holds(part.resolve()) for part in parts):
                raise UsageError(f"{text} leads to {found}, which is outside the folders: {self}")
        return chosen

    def listed(self) -> Iterator[str]:
        """Yield files with a trace suffix, as `path` accepts them; skip links to the outside."""
        for root in self._roots:
            for path in sorted(root.rglob("*")):
                parts = path.relative_to(root).parts
                if any(part.startswith(".") for part in parts):
                    continue
                if path.is_file() and self._holds(path.resolve()):
                    name = str(Path(*parts))
                    if name.removesuffix(".gz").endswith(_SUFFIXES):
                        yield name if len(self._roots) == 1 else str(path)

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)

    def __str__(self) -> str:
        return ", ".join(map(str, self._roots))


class Tools:
    """The tools of the server, one per method. The docstring is what the assistant sees."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def _run(self, trace: str, window: str | None = None) -> Run:
        return open_run([self._folders.path(trace)]).within(window or None)

    def info(self, trace: str = "") -> str:
        """List the contents of a trace or run: profiler, machines, ranks, event counts.

        Without a trace, list the available files.
        """
        if trace:
            contents = describe([self._folders.path(trace)], Opening())
            return render_contents(contents, Options(width=_WIDTH, is_whole=True))
        names = list(self._folders.listed())
        more = len(names) - _MAX_FILES
        lines = [*names[:_MAX_FILES], *([f"… {more} more"] if more > 0 else [])]
        return "\n".join(lines) or f"no traces found in {self._folders}"

    def page(self, trace: str, window: str = "") -> str:
        """Report where the step time goes and what would fix it (as `traceprof analyze` does)."""
        return _rendered(page(self._run(trace, window)))

    def findings(self, trace: str, window: str = "", rows: int = 10) -> str:
        """List ranked advice: evidence, what to do, the saving, and when it does not apply."""
        return _rendered(answer(self._run(trace, window), ["findings"], strict=True), rows)

    def tables(
        self, trace: str = "", noun: str = "", by: str = "", window: str = "", rows: int = 20
    ) -> str:
        """Return one table as Markdown, such as kernels by class or collectives by caller.

        Without a noun, list the available tables and their groupings.
        """
        if not noun:
            return "\n".join(_table_list())
        names = names_shown(noun, by or None)
        found = answer(self._run(trace, window), names, strict=True)
        return render("markdown", found, Options(rows=_checked_row_limit(rows)))

    def explain(self, trace: str, step: str = "slowest", against: str = "") -> str:
        """Break down why a step ("step:37", or "slowest") was slower than a typical step."""
        return _rendered(explained(self._run(trace), step, against or None))

    def compare(self, base: str, new: str, window: str = "") -> str:
        """Compare two traces or runs, and test whether the difference is significant."""
        paths = [self._folders.path(trace) for trace in (base, new)]
        return _rendered(compare_named(paths[:1], paths[1:], window=window or None))

    def query(self, trace: str = "", sql: str = "", window: str = "all", rows: int = 50) -> str:
        """Run one SELECT on kernels, copies, ranges, steps …; return Markdown.

        Without SQL, list the views and their columns.
        """
        if not sql:
            return schema_text(views())
        limit = _checked_row_limit(rows)
        limits = Limits(n_rows=limit, seconds=_MAX_QUERY_S, sqlite_bytes=_MAX_QUERY_BYTES)
        result = query(self._run(trace, window), sql, limits)
        lines = [QUERY_FORMS["markdown"](result.rows, _WIDTH), *result.remarks]
        lines += map(note_text, result.caveats.notes)
        return "\n".join(
            [*lines, f"only the first {limit} rows are shown"] if result.rows.is_cut else lines
        )


_TOOLS: Final = ("info", "page", "findings", "tables", "explain", "compare", "query")


def server_of(folders: Sequence[Path]) -> MCPServer[Any]:
    """Return a server that answers questions about the traces in ``folders``.

    Raises:
        TraceError: one of them is not a folder.
    """
    tools = Tools(Folders(folders))
    server: MCPServer[Any] = MCPServer(
        "traceprof", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR"
    )
    annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    lock = threading.Lock()
    for name in _TOOLS:
        function = _as_tool(getattr(tools, name), lock)
        server.tool(annotations=annotations, structured_output=False)(function)
    return server


def _as_tool(tool: Callable[..., str], lock: threading.Lock) -> Callable[..., str]:
    """Return ``tool`` with checked arguments, one call at a time, cut answers, and text errors."""
    signature = inspect.signature(tool)

    @functools.wraps(tool)
    def answered(*args: Any, **kwargs: Any) -> str:
        try:
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                _check_text(name, value)
            with lock:
                return _cut(tool(*args, **kwargs))
        except TraceprofError as error:
            raise ToolError(plain_text(error)) from error

    return answered


def _check_text(name: str, value: object) -> None:
    """Reject a text that cannot be a path, window, name, or SQL statement.

    Raises:
        UsageError: it is too long, or contains a NUL character or half of a surrogate pair.
    """
    if not isinstance(value, str):
        return
    limit = _MAX_ARGUMENT_CHARACTERS_BY_NAME.get(name, _MAX_ARGUMENT_CHARACTERS)
    if len(value) > limit:
        raise UsageError(f"{name}: {len(value)} characters; use at most {limit}")
    if "\0" in value:
        raise UsageError(f"{name}: contains a NUL character (U+0000); remove it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name}: contains half of a surrogate pair; use valid Unicode") from error


def _rendered(document: Answered, rows: int | None = None) -> str:
    limit = None if rows is None else _checked_row_limit(rows)
    return render("text", document, Options(rows=limit, width=_WIDTH, is_whole=True))


def _checked_row_limit(rows: int) -> int:
    """Return ``rows``, limited to `_MAX_ROWS`.

    Raises:
        UsageError: ``rows`` is below 1.
    """
    if rows < 1:
        raise UsageError(f"rows {rows}: expected 1 to {_MAX_ROWS}")
    return min(rows, _MAX_ROWS)


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    left_out = len(text) - MAX_CHARACTERS
    return (
        f"{text[:MAX_CHARACTERS]}\n… {left_out} more characters; request fewer rows or a smaller "
        "window"
    )


def _table_list() -> Iterator[str]:
    """Yield a line for each table, followed by its groupings."""
    for noun, entries in nouns().items():
        yield f"{noun}: {entries[0].summary}"
        yield from (f"  by {entry.way}: {entry.summary}" for entry in entries if len(entries) > 1)

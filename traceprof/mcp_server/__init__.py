"""Server of the Model Context Protocol: AI assistants query the traces in the given folders.

The server only reads. It opens only paths inside the folders that the user named at start.
`traceprof.mcp_server.replies` limits the length of the answers.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import Field

from traceprof.comparison.comparing import compare_named
from traceprof.comparison.explaining import explain as explained
from traceprof.errors import TraceError, TraceprofError, UsageError
from traceprof.formats.runs.files import files_of
from traceprof.mcp_server.replies import (
    DEFAULT_TOKENS,
    MAX_TOKENS,
    MIN_TOKENS,
    Reply,
    ReplyContent,
    findings_of,
    table_of_rows,
    tables_of_document,
    with_short_names,
)
from traceprof.measures import names_shown, nouns
from traceprof.query.engine import Limits
from traceprof.render.briefing import findings_for_people, head_of
from traceprof.render.escape import plain_text
from traceprof.render.formatting import note_text
from traceprof.render.registry import Answered, Options, render
from traceprof.render.rows_text import QUERY_FORMS
from traceprof.render.text.contents import render_contents
from traceprof.session.answer import answer, page
from traceprof.session.contents import describe
from traceprof.session.options import Opening
from traceprof.session.querying import query, views
from traceprof.session.run import Run, open_run
from traceprof.version import __version__

_MAX_ROWS: Final = 200
_RANGES: Final = {"rows": (1, _MAX_ROWS), "max_tokens": (MIN_TOKENS, MAX_TOKENS)}
_MAX_FILES: Final = 200
_WIDTH: Final = 100
_TABLE_WIDTH: Final = 150
"""Kernel names stay readable at this width."""
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
Findings have an id: cite it. Column names end with the unit (_ns, _bytes, _ratio).
Data that was not recorded is not zero. The answers list missing data: report it to the user.
"""


_NOUNS: Final = nouns()  # enums in the schema only: our errors suggest a name
_WAYS: Final = sorted({entry.way for entries in _NOUNS.values() for entry in entries if entry.way})
_WINDOW: Final = (
    "The analyzed part: steady (steps after warm-up), all, step:3..5, 12ms..30ms, 30%..50%, or "
    "range:NAME. Default: "
)
Trace: TypeAlias = Annotated[
    str, Field(description="Path of a trace, or of a folder with one trace per rank, from `info`.")
]
Base: TypeAlias = Annotated[str, Field(description="The trace or run before the change.")]
New: TypeAlias = Annotated[str, Field(description="The trace or run after the change.")]
Window: TypeAlias = Annotated[
    str, Field(description=f"{_WINDOW}steady; for `query`, all.", examples=["step:3..5", "all"])
]
Noun: TypeAlias = Annotated[
    str, Field(description="Name of the table.", json_schema_extra={"enum": ["", *_NOUNS]})
]
Way: TypeAlias = Annotated[
    str,
    Field(
        description="Grouping of the table. `tables` without a noun lists the groupings of each.",
        json_schema_extra={"enum": ["", *_WAYS]},
    ),
]
Step: TypeAlias = Annotated[
    str, Field(description="The step or window to explain: slowest, step:37, or a window.")
]
Against: TypeAlias = Annotated[
    str, Field(description="The step to compare with. Default: the step of median duration.")
]
Sql: TypeAlias = Annotated[
    str,
    Field(description="One SELECT in SQLite syntax. Times are in ns, sizes in bytes."),
]
Rows: TypeAlias = Annotated[
    int,
    Field(
        description=f"Maximum number of rows, 1 to {_MAX_ROWS}.",
        json_schema_extra={"minimum": 1, "maximum": _MAX_ROWS},
    ),
]
FullNames: TypeAlias = Annotated[
    bool, Field(description="Do not shorten names. Kernel names can have thousands of characters.")
]
MaxTokens: TypeAlias = Annotated[
    int,
    Field(
        description=f"Approximate length limit of the answer, {MIN_TOKENS} to {MAX_TOKENS} tokens.",
        json_schema_extra={"minimum": MIN_TOKENS, "maximum": MAX_TOKENS},
    ),
]


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
            if not os.access(root, os.R_OK | os.X_OK):
                raise TraceError(f"{folder}: Permission denied")

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

    def info(self, trace: Trace = "") -> Reply:
        """List the contents of a trace or run: profiler, machines, ranks, event counts.

        Without a trace, list the available files.
        """
        if trace:
            contents = describe([self._folders.path(trace)], Opening())
            return Reply(render_contents(contents, Options(width=_WIDTH)))
        names = list(self._folders.listed())
        more = len(names) - _MAX_FILES
        lines = [*names[:_MAX_FILES], *([f"… {more} more"] if more > 0 else [])]
        return Reply("\n".join(lines) or f"no traces found in {self._folders}")

    def page(self, trace: Trace, window: Window = "") -> Reply:
        """Report where the step time goes and what would fix it, with the ids of the findings."""
        found = page(self._run(trace, window))
        result = found.results.get("findings")
        rows = [] if result is None else findings_for_people(result)
        return Reply(_rendered(found), findings=findings_of(rows, ("id", "title", "saving_ns")))

    def findings(self, trace: Trace, window: Window = "", rows: Rows = 10) -> Reply:
        """List ranked advice: evidence, what to do, the saving, and when it does not apply."""
        found = answer(self._run(trace, window), ["findings"], strict=True)
        shown = findings_for_people(found.results["findings"])
        listed = findings_of(shown[:rows])
        return Reply(_remarks(found), _rendered(found, rows), listed, is_cut=len(shown) > rows)

    def tables(
        self,
        trace: Trace = "",
        noun: Noun = "",
        by: Way = "",
        window: Window = "",
        rows: Rows = 20,
        full_names: FullNames = False,
    ) -> Reply:
        """Return one table, such as kernels by class or collectives by caller.

        Without a noun, list the available tables and their groupings.
        """
        if not noun:
            return Reply("\n".join(_table_list()))
        found = answer(self._run(trace, window), names_shown(noun, by or None), strict=True)
        tables = tables_of_document(found, rows, full_names=full_names)
        options = Options(rows, _TABLE_WIDTH, is_whole=full_names, has_full_names=full_names)
        return Reply(_remarks(found), render("text", found, options), tables=tables)

    def explain(self, trace: Trace, step: Step = "slowest", against: Against = "") -> Reply:
        """Break down why a step was slower than a typical step."""
        found = explained(self._run(trace), step, against or None)
        return Reply(_remarks(found), _rendered(found), tables=tables_of_document(found, 10))

    def compare(self, base: Base, new: New, window: Window = "") -> Reply:
        """Compare two traces or runs, and test whether the difference is significant."""
        paths = [self._folders.path(trace) for trace in (base, new)]
        found = compare_named(paths[:1], paths[1:], window=window or None)
        return Reply(_remarks(found), _rendered(found), tables=tables_of_document(found, 10))

    def query(
        self,
        trace: Trace = "",
        sql: Sql = "",
        window: Window = "all",
        rows: Rows = 50,
        full_names: FullNames = False,
    ) -> Reply:
        """Run one SELECT on views such as kernels, copies, ranges, and steps.

        Without SQL, list the views and their columns.
        """
        if not sql:
            return Reply("\n".join(f"{view.name}: {', '.join(view.names)}" for view in views()))
        limits = Limits(n_rows=rows, seconds=_MAX_QUERY_S, sqlite_bytes=_MAX_QUERY_BYTES)
        result = query(self._run(trace, window), sql, limits)
        shown = result.rows if full_names else with_short_names(result.rows)
        remarks = [*result.remarks, *map(note_text, result.caveats.notes)]
        if shown.is_cut:
            remarks.append(f"only the first {rows} rows are shown")
        text = "\n".join([QUERY_FORMS["markdown"](shown, _WIDTH), *remarks])
        return Reply("\n".join(remarks), text, tables=[table_of_rows(shown)], is_cut=shown.is_cut)


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
        server.tool(annotations=annotations)(_as_tool(getattr(tools, name), lock))
    return server


def _as_tool(tool: Callable[..., Reply], lock: threading.Lock) -> Callable[..., CallToolResult]:
    """Return ``tool`` with checked arguments, one call at a time, short answers, and text errors.

    It gets a parameter ``max_tokens``.
    """
    signature = inspect.signature(tool, eval_str=True)

    @functools.wraps(tool)
    def answered(*args: Any, max_tokens: int = DEFAULT_TOKENS, **kwargs: Any) -> CallToolResult:
        try:
            given = signature.bind(*args, **kwargs).arguments
            for name, value in {**given, "max_tokens": max_tokens}.items():
                _check_argument(name, value)
            with lock:
                return tool(*args, **kwargs).within(max_tokens)
        except TraceprofError as error:
            raise ToolError(plain_text(error)) from error

    limit = inspect.Parameter(
        "max_tokens", inspect.Parameter.KEYWORD_ONLY, default=DEFAULT_TOKENS, annotation=MaxTokens
    )
    answered.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), limit],
        return_annotation=Annotated[CallToolResult, ReplyContent],
    )
    return answered


def _check_argument(name: str, value: object) -> None:
    """Reject a number out of range, and a text that cannot be a path, window, name, or SQL.

    Raises:
        UsageError: a text is too long, or contains a NUL character or half of a surrogate pair.
    """
    least, most = _RANGES.get(name, (0, 0))
    if isinstance(value, int) and most and not least <= value <= most:
        raise UsageError(f"{name} {value}: expected {least} to {most}")
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
    return render("text", document, Options(rows=rows, width=_WIDTH))


def _remarks(document: Answered) -> str:
    """Return the sentences above the results: window, verdict, and caveats."""
    head = head_of(document)
    lines = (head.title, head.where, *head.sentences, *head.warnings, *head.lost, *head.remarks)
    return "\n".join(map(plain_text, filter(None, lines)))


def _table_list() -> Iterator[str]:
    """Yield a line for each table, followed by its groupings."""
    for noun, entries in nouns().items():
        yield f"{noun}: {entries[0].summary}"
        yield from (f"  by {entry.way}: {entry.summary}" for entry in entries if len(entries) > 1)

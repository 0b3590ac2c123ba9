"""`traceprof mcp`, asked by the SDK's own client over standard input and output."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import MS, Plan, make_run
from tests.requirements import ROOT, require
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.runs.manifest import MANIFEST_KEY

TOOLS = {"info", "page", "findings", "tables", "explain", "compare", "query"}


LONG_NAMES = [f"void {name}<float, int, {'x' * 2000}>(int)" for name in "abc"]
"""Names of kernels in wordy.sqlite; two of its four names have the same short name."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two ranks, of which the second is slower, and what lies outside of them."""
    require("mcp")
    outside = tmp_path_factory.mktemp("outside")
    folder = outside / "traces"
    for name, extra_ns in (("base", 0), ("slow", 20 * MS)):
        (folder / name).mkdir(parents=True)
        for member in make_run(Plan(n_ranks=2, extra_ns={(1, "forward"): extra_ns})):
            write_nsys(member.trace, folder / name / f"rank{member.rank}.sqlite")
    write_nsys(make_run(Plan(n_ranks=1)).members[0].trace, outside / "secret.sqlite")
    (folder / "link.sqlite").symlink_to(outside / "secret.sqlite")
    listed = {MANIFEST_KEY: 1, "ranks": [{"rank": 0, "file": "../secret.sqlite"}]}
    (folder / "loop.sqlite").symlink_to(folder / "loop.sqlite")
    builder = TraceBuilder()
    for i, name in enumerate([*LONG_NAMES, LONG_NAMES[0].replace("float", "half")] * 40):
        builder.kernel(name, 1000 * i, 1000 * i + 900)
    write_nsys(builder.build(), folder / "wordy.sqlite")
    (folder / "host.xplane.pb").touch()
    (folder / "rank0.json.gz").touch()
    (folder / "notes.txt").touch()
    (folder / "manifest.json").write_text(json.dumps(listed))
    return folder


def asked(folder: Path, ask: Callable[[Any], Awaitable[Any]], *arguments: str) -> Any:
    """Start the server on ``folder`` as an assistant does, and return what ``ask`` returns."""
    mcp = pytest.importorskip("mcp")
    stdio = pytest.importorskip("mcp.client.stdio")
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "traceprof", "mcp", *(arguments or (str(folder),))],
        env={"PYTHONPATH": str(ROOT), "TRACEPROF_CACHE": "0", "PATH": os.environ.get("PATH", "")},
        cwd=str(folder),
    )

    async def session() -> Any:
        async with (
            stdio.stdio_client(server) as (read, write),
            mcp.ClientSession(read, write) as client,
        ):
            await client.initialize()
            return await ask(client)

    return run_apart(session)


def run_apart(function: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
    """Return what ``function`` returns, run in another thread.

    A browser that another test has open keeps its event loop running in this one.
    """
    anyio = pytest.importorskip("anyio")
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, function, *arguments).result()


async def texts(client: Any, *calls: tuple[str, dict[str, Any]]) -> list[tuple[bool, str]]:
    """Return of each call whether it failed, and what it said."""
    found = []
    for name, arguments in calls:
        result = await client.call_tool(name, arguments)
        (content,) = result.content
        found.append((result.is_error, content.text))
    return found


def test_an_assistant_finds_what_there_is_and_asks_about_it(folder: Path) -> None:
    async def ask(client: Any) -> tuple[Any, list[tuple[bool, str]]]:
        listed = await client.list_tools()
        answers = await texts(
            client,
            ("info", {}),
            ("info", {"trace": "base"}),
            ("page", {"trace": "slow"}),
            ("findings", {"trace": "slow"}),
            ("tables", {}),
            ("tables", {"trace": "base", "noun": "kernels", "by": "class", "rows": 1}),
            ("explain", {"trace": "base", "step": "step:3"}),
            ("compare", {"base": "base", "new": "slow"}),
            ("query", {}),
            ("query", {"trace": "base", "sql": "SELECT count(*) AS n FROM steps"}),
            ("query", {"trace": "base", "sql": "SELECT 1 FROM kernels", "rows": 2}),
        )
        return listed, answers

    listed, answers = asked(folder, ask)
    assert {tool.name for tool in listed.tools} == TOOLS
    assert all(tool.annotations.read_only_hint for tool in listed.tools)
    assert all(tool.description for tool in listed.tools)
    assert not any(failed for failed, _ in answers), answers
    said = [text for _, text in answers]
    assert said[0].splitlines() == [
        *("base/rank0.sqlite", "base/rank1.sqlite", "host.xplane.pb"),
        *("manifest.json", "rank0.json.gz"),
        *("slow/rank0.sqlite", "slow/rank1.sqlite", "wordy.sqlite"),
    ]
    assert "rank 1: 40 kernels, 0 copies and memsets" in said[1]
    assert "Straggler: the other ranks wait for rank 1" in said[2]
    assert "Caveat " in said[3]
    assert "  by class: GPU time by kernel class and phase" in said[4].splitlines()
    assert "3 more rows" in said[5]
    assert "step 3" in said[6]
    assert "slow" in said[7]
    assert "kernels" in said[8]
    assert "| 20 |" in said[9]
    assert said[10].endswith("only the first 2 rows are shown")


def test_nothing_outside_the_folder_is_read_and_errors_are_words(folder: Path) -> None:
    outside = str(folder.parent / "secret.sqlite")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("page", {"trace": outside}),
        ("page", {"trace": "../secret.sqlite"}),
        ("page", {"trace": "base/../../secret.sqlite"}),
        ("page", {"trace": "link.sqlite"}),
        ("page", {"trace": "manifest.json"}),
        ("compare", {"base": "base", "new": outside}),
        ("query", {"trace": "../secret.sqlite", "sql": "SELECT 1"}),
        ("page", {"trace": "nothing.sqlite"}),
        ("tables", {"trace": "base", "noun": "kernles"}),
        ("query", {"trace": "base", "sql": "DELETE FROM kernels"}),
        ("query", {"trace": "base", "sql": "SELECT 1", "rows": 0}),
        ("page", {"trace": "base", "window": "step:99"}),
    ]
    answers = asked(folder, lambda client: texts(client, *calls))
    assert all(failed for failed, _ in answers), answers
    said = [text for _, text in answers]
    assert all("is outside the folders" in text for text in said[:7])
    assert "nothing.sqlite" in said[7]
    assert "did you mean 'kernels'?" in said[8]
    assert "rows 0: expected 1 to 200" in said[10]
    assert not any("Traceback" in text for text in said)
    assert all(
        text.strip() != f"Error executing tool {name}"
        for (name, _), text in zip(calls, said, strict=True)
    )


@pytest.mark.parametrize(
    "trace", ["a\0b", "\x1b]0;x\x07.sqlite", "A" * 100_000, "a\nb\u202e", "x/" * 5_000]
)
def test_any_name_of_a_trace_is_answered_in_one_plain_line(folder: Path, trace: str) -> None:
    server = pytest.importorskip("traceprof.mcp_server")
    errors = pytest.importorskip("mcp.server.mcpserver.exceptions")
    with pytest.raises(errors.ToolError) as found:
        run_apart(server.server_of([folder]).call_tool, "page", {"trace": trace})
    assert not isinstance(found.value, errors.UnexpectedToolError)
    assert str(found.value).isprintable()
    assert len(str(found.value)) < 11_000


ARGUMENTS = [
    *(("info", "trace"), ("page", "trace"), ("page", "window"), ("findings", "trace")),
    *(("findings", "window"), ("tables", "trace"), ("tables", "noun"), ("tables", "by")),
    *(("tables", "window"), ("explain", "trace"), ("explain", "step"), ("explain", "against")),
    *(("compare", "base"), ("compare", "new"), ("compare", "window")),
    *(("query", "trace"), ("query", "sql"), ("query", "window")),
]
GIVEN = {
    "trace": "base",
    "base": "base",
    "new": "slow",
    "noun": "kernels",
    "by": "class",
    "step": "step:3",
    "sql": "SELECT 1",
}
HOSTILE = [
    *("\0", "base\0", "\ud800", "a" * 300, "a" * 5000, "a/" * 2000, "9" * 2000, "x" * 100_001),
    *(
        "../" * 50,
        "\n",
        "\x1b[2J\u202e",
        "%s{0}",
        "~root",
        "/dev/stdin",
        "/proc/self/mem",
        "[",
        "**",
    ),
    *("loop.sqlite", "step:" + "9" * 400, "9" * 400 + "ms..", "range:(a+)+$", "1e999%..", "-1..-2"),
    *(
        "step:-1",
        "step:1..999999999999999999999",
        "NaN..inf",
        "rank:" + "9" * 30,
        "'; DROP",
        "9e999ns",
    ),
]


def test_every_text_argument_of_every_tool_is_among_those_that_are_tried(folder: Path) -> None:
    tools = pytest.importorskip("traceprof.mcp_server").Tools
    known = {
        (name, own.name)
        for name in TOOLS
        for own in inspect.signature(getattr(tools, name), eval_str=True).parameters.values()
        if getattr(own.annotation, "__origin__", None) is str
    }
    assert known == set(ARGUMENTS)


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_whatever_a_text_says_the_answer_is_words(folder: Path, name: str, argument: str) -> None:
    server = pytest.importorskip("traceprof.mcp_server")
    tool = server._as_tool(getattr(server.Tools(server.Folders([folder])), name), threading.Lock())
    names = inspect.signature(tool).parameters
    given = {own: text for own, text in GIVEN.items() if own in names}
    for text in HOSTILE:
        try:
            answer = tool(**given | {argument: text}).content[0].text
        except server.ToolError as error:
            answer = str(error)
        assert answer.strip(), text
        answer.encode()
    for text in ("\0", "\ud800", "a" * 100_001):
        with pytest.raises(server.ToolError, match=f"^{argument}: "):
            tool(**given | {argument: text})


def test_a_query_ends_in_the_middle_of_a_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = pytest.importorskip("traceprof.mcp_server")
    monkeypatch.setattr(server, "_MAX_QUERY_S", 0.1)
    tool = server._as_tool(server.Tools(server.Folders([folder])).query, threading.Lock())
    with pytest.raises(server.ToolError, match=r"stopped after 0\.1 s"):
        tool("base", "SELECT printf('%.*c', 2000000000, 'x')")


def reply_of(folder: Path, name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """Return the text and the structured content of a tool's reply."""
    server = pytest.importorskip("traceprof.mcp_server")
    function = getattr(server.Tools(server.Folders([folder])), name)
    result = server._as_tool(function, threading.Lock())(**arguments)
    (content,) = result.content
    return content.text, result.structured_content


def test_replies_stay_within_the_token_limit_and_report_what_they_omit(
    folder: Path,
) -> None:
    sql = "SELECT name, start_ns, duration_ns FROM kernels"
    for name, arguments in (
        ("tables", {"trace": "wordy.sqlite", "noun": "kernels", "window": "all"}),
        ("query", {"trace": "wordy.sqlite", "sql": sql, "rows": 200}),
        ("compare", {"base": "base", "new": "slow"}),
        ("page", {"trace": "slow"}),
    ):
        for max_tokens in (200, 2000):
            text, structured = reply_of(folder, name, **arguments, max_tokens=max_tokens)
            assert len(text) <= 3 * max_tokens
            assert len(json.dumps(structured, ensure_ascii=False)) <= 3 * max_tokens
    text, structured = reply_of(folder, "query", trace="wordy.sqlite", sql=sql, rows=150)
    (table,) = structured["tables"]
    assert structured["is_cut"]
    assert len(table["rows"]) + table["omitted_row_count"] == 150
    assert "cut here" in text
    small = reply_of(folder, "query", trace="wordy.sqlite", sql=sql, rows=150, max_tokens=10_000)
    assert len(small[1]["tables"][0]["rows"]) == 150
    text, structured = reply_of(folder, "query", trace="base", sql="SELECT 1 AS one")
    assert structured["tables"][0] == {
        "name": "rows",
        "columns": ["one"],
        "rows": [[1]],
        "omitted_row_count": 0,
    }
    assert not structured["is_cut"]
    server = pytest.importorskip("traceprof.mcp_server")
    for max_tokens in (0, 10_001):
        with pytest.raises(server.ToolError, match=f"max_tokens {max_tokens}: expected 200 to"):
            reply_of(folder, "info", max_tokens=max_tokens)


def test_names_are_short_and_stay_different_unless_full_names_are_asked_for(
    folder: Path,
) -> None:
    arguments = {"trace": "wordy.sqlite", "noun": "kernels", "window": "all"}
    text, structured = reply_of(folder, "tables", **arguments)
    names = [row[0] for row in structured["tables"][0]["rows"]]
    assert {"b", "c"} < {*names}
    assert len({*names}) == 4
    assert max(map(len, names)) <= 60
    assert max(map(len, text.splitlines())) <= 150
    _, full = reply_of(folder, "tables", **arguments, full_names=True, max_tokens=10_000)
    assert {*LONG_NAMES} < {row[0] for row in full["tables"][0]["rows"]}


def test_findings_have_ids_and_unknown_values_are_left_out(folder: Path) -> None:
    _, page = reply_of(folder, "page", trace="slow")
    _, advice = reply_of(folder, "findings", trace="slow")
    ids = [finding["id"] for finding in page["findings"]]
    assert "straggler" in ids
    assert [finding["id"] for finding in advice["findings"]] == ids
    straggler = advice["findings"][ids.index("straggler")]
    assert {"title", "kind", "action", "caveat"} <= {*straggler}
    assert "" not in straggler.values() and None not in straggler.values()
    _, one = reply_of(folder, "findings", trace="slow", rows=1)
    assert one["is_cut"] is (len(advice["findings"]) > 1)
    replies = pytest.importorskip("traceprof.mcp_server.replies")
    rows = [{"rule": "host_sync", "number": number} for number in (1, 2)]
    assert replies.findings_of(rows) == [{"id": "host_sync"}, {"id": "host_sync:2"}]


def test_every_parameter_is_described_and_names_are_enums(folder: Path) -> None:
    async def ask(client: Any) -> Any:
        return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asked(folder, ask)}
    for tool in tools.values():
        assert tool.output_schema["properties"].keys() == {"text", "findings", "tables", "is_cut"}
        for name, schema in tool.input_schema["properties"].items():
            assert schema.get("description"), (tool.name, name)
    given = tools["tables"].input_schema["properties"]
    assert {"kernels", "collectives", ""} <= {*given["noun"]["enum"]}
    assert {"class", "caller", ""} <= {*given["by"]["enum"]}
    assert (given["rows"]["minimum"], given["rows"]["maximum"]) == (1, 200)
    assert given["max_tokens"]["default"] == 2000


QUESTIONS: list[tuple[str, str, dict[str, Any], Callable[[dict[str, Any]], bool]]] = [
    ("Which traces are there?", "info", {}, lambda r: "slow/rank1.sqlite" in r["text"]),
    ("How many ranks?", "info", {"trace": "base"}, lambda r: "rank 1: 40 kernels" in r["text"]),
    ("How long is a step?", "page", {"trace": "base"}, lambda r: "200.0 ms" in r["text"]),
    (
        "What is wrong with it?",
        "page",
        {"trace": "slow"},
        lambda r: "straggler" in [finding["id"] for finding in r["findings"]],
    ),
    (
        "What can I do?",
        "findings",
        {"trace": "slow"},
        lambda r: all(finding["action"] for finding in r["findings"]) and bool(r["findings"]),
    ),
    (
        "How long is each step?",
        "tables",
        {"trace": "base", "noun": "steps", "rows": 3},
        lambda r: values(r, "duration_ns")[0] == 200 * MS,
    ),
    (
        "Which rank has the longest forward pass?",
        "tables",
        {"trace": "slow", "noun": "ranks"},
        lambda r: values(r, "rank") == [0, 1],
    ),
    (
        "Is it slower than the base?",
        "compare",
        {"base": "base", "new": "slow"},
        lambda r: "is not significant" in r["text"] and bool(r["tables"]),
    ),
    (
        "Why was step 3 slow?",
        "explain",
        {"trace": "base", "step": "step:3"},
        lambda r: r["tables"][0]["name"] == "causes",
    ),
    (
        "How many kernels run longer than 1 ms?",
        "query",
        {"trace": "base", "sql": "SELECT count(*) AS n FROM kernels WHERE duration_ns > 1e6"},
        lambda r: values(r, "n") == [80],
    ),
]


def values(reply: dict[str, Any], column: str) -> list[Any]:
    table = reply["tables"][0]
    return [row[table["columns"].index(column)] for row in table["rows"]]


def test_ten_questions_are_answered_in_structured_content(folder: Path) -> None:
    async def ask(client: Any) -> list[Any]:
        return [await client.call_tool(name, given) for _, name, given, _ in QUESTIONS]

    assert len(QUESTIONS) == 10
    for (question, *_, is_answer), result in zip(QUESTIONS, asked(folder, ask), strict=True):
        assert not result.is_error, (question, result)
        reply = result.structured_content
        assert is_answer(reply), (question, json.dumps(reply, indent=1)[:3000])
        assert len(json.dumps(reply, ensure_ascii=False)) <= 3 * 2000


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    require("mcp")
    done = subprocess.run(
        [sys.executable, "-m", "traceprof", "mcp", str(tmp_path / "nowhere")],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 3
    assert "nowhere is not a folder" in done.stderr

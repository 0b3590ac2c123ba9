"""Answers questions about damaged files in one process after another, within bounds.

``python -m tests.reliability.worker FOLDER`` reads ``[seed, class, number]`` per line and answers
with ``[verdict, how, text]``. A question that needs more than its CPU time or memory is a defect.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from typer.testing import CliRunner, Result

from tests.reliability import forms, oracle
from tests.reliability.inputs import CLASSES, Question
from traceprof.cli import app
from traceprof.errors import TraceprofError
from traceprof.mcp_server import server_of
from traceprof.mcp_server.replies import MAX_TOKENS
from traceprof.recording.spool import read_events

CPU_S: Final = 20.0
"""What one question may take: the files are small, so that it is a bound of its kind only."""
MEMORY_BYTES: Final = 2 << 30
_DOCUMENTED: Final = (2, 3, 4, 5, 6, 7)
RIGHT, ACCEPTED, REFUSED, DEFECT = "right", "accepted", "documented error", "defect"


class TooSlowError(BaseException):
    """The CPU time is over."""


@contextmanager
def bounded() -> Iterator[None]:
    """Raise `TooSlowError` after `CPU_S`."""

    def over(*_: object) -> None:
        raise TooSlowError

    signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def question_of(folder: Path, seed: int, kind: str, number: int) -> tuple[Question, random.Random]:
    """Make the files of an input in ``folder``; the same for the same seed, class and number."""
    make = next(one for one in CLASSES if one.__name__ == kind)
    rng = random.Random(f"{seed} {kind} {number}")
    return make(folder, rng), rng


def answer(folder: Path, seed: int, kind: str, number: int) -> tuple[str, str, str]:
    """Return the verdict about one input, how it was damaged, and what was said."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    question, _ = question_of(folder, seed, kind, number)
    before = _digests(folder)
    try:
        with bounded():
            verdict, text = _asked(question)
    except TooSlowError:
        verdict, text = DEFECT, f"more than {CPU_S:g} s of CPU: {question.arguments}"
    if kind not in ("databases_of_runs",) and verdict != DEFECT:
        changed = [
            name for name, digest in _digests(folder).items() if before.get(name, digest) != digest
        ]
        if changed:
            verdict, text = DEFECT, f"input changed: {changed}"
    return verdict, question.how, text


def _asked(question: Question) -> tuple[str, str]:
    if question.arguments[0] == "spool":
        return _spool(Path(question.arguments[1]))
    if question.arguments[0] == "mcp":
        return _called(*question.arguments[1:])
    done = CliRunner().invoke(app, list(question.arguments))
    said = f"{' '.join(question.arguments)}: exit {done.exit_code}: {done.stderr[-400:]}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        where = traceback.format_exception(done.exception)
        return DEFECT, f"{' '.join(question.arguments)}: {''.join(where)[-1500:]}"
    wrong = question.judge(done.exit_code, done.stdout, done.stderr) if question.judge else ""
    if wrong:
        return DEFECT, f"{' '.join(question.arguments)}: {wrong}"
    if done.exit_code in _DOCUMENTED:
        lines = done.stderr.rstrip("\n").split("\n")
        is_usage = lines[0].startswith("Usage:")
        errors = [line for line in lines if line.startswith("traceprof: ")]
        is_line = bool(errors) and errors == lines and len(lines) <= 3
        if is_line and question.judge:
            return RIGHT, ""
        return (REFUSED, "") if is_line or is_usage else (DEFECT, said)
    if done.exit_code != 0:
        return DEFECT, said
    return _checked(question, done)


def _checked(question: Question, done: Result) -> tuple[str, str]:
    said, printed = " ".join(question.arguments), done.stdout
    if any(ord(one) < 32 and one not in "\n\t" for one in printed) and "--csv" not in said:
        return DEFECT, f"{said}: controls are printed"
    if "--json" in question.arguments:
        document = json.loads(printed)
        wrong = list(_impossible(document))
        if wrong:
            return DEFECT, f"{said}: {wrong[:5]}"
    if "--csv" in question.arguments:
        differing = list(forms.wrong_rows(question.arguments, done.stdout_bytes))
        if differing:
            return DEFECT, f"{said}: {differing[:5]}"
    if question.trace is None:
        return (RIGHT if question.judge else ACCEPTED), ""
    try:
        wrong = list(oracle.wrongs(question.trace))
    except oracle.UnreadableError:
        return ACCEPTED, ""
    except TraceprofError:
        # Some of it can be shown, not the kernels.
        return ACCEPTED, ""
    return (DEFECT, f"{said}: {wrong}") if wrong else (RIGHT, "")


def _impossible(value: Any, name: str = "") -> Iterator[str]:
    """Yield numbers of an answer that no trace can have: negative lengths, shares above 1."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _impossible(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from _impossible(one, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        is_length = name in _LENGTHS
        if (is_length and value < 0) or abs(value) >= 2**63:
            yield f"{name} = {value}"


_LENGTHS: Final = ("kernel_ns", "busy_ns", "compute_ns", "idle_ns", "total_ns", "n_bytes", "count")


def _called(folder: str, tool: str, arguments: str) -> tuple[str, str]:
    """Call a tool of the MCP server, as its client does."""
    server = server_of([Path(folder)])
    said = f"mcp {tool} {arguments[:300]}"
    try:
        found = anyio.run(server.call_tool, tool, json.loads(arguments))
    except UnexpectedToolError as error:
        where = "".join(traceback.format_exception(error.__cause__))
        return DEFECT, f"{said}: {where[-1500:]}"
    except ToolError as error:
        verdict, text = REFUSED, str(error)
    else:
        verdict, text = ACCEPTED, "".join(one.text for one in found.content)
    if any(ord(one) < 32 and one not in "\n\t" for one in text):
        return DEFECT, f"{said}: controls are said: {text[:200]!r}"
    if len(text) > 3 * MAX_TOKENS:
        return DEFECT, f"{said}: {len(text)} characters"
    return verdict, ""


def _spool(folder: Path) -> tuple[str, str]:
    try:
        parts = list(read_events(folder))
    except TraceprofError:
        return REFUSED, ""
    texts = [path.read_text("utf-8", "replace") for path in folder.glob("events.*.jsonl")]
    n_lines = sum(len(text.splitlines()) for text in texts)
    for part in parts:
        list(part.blocks())
    n_rows = sum(part.n_events for part in parts)
    return (RIGHT, "") if n_rows <= n_lines else (DEFECT, f"{n_rows} events of {n_lines} lines")


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def main() -> None:
    """Answer until standard input ends."""
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    os.environ["TRACEPROF_RUNS"] = str(folder / "default-runs.db")
    answer(folder, 0, "nsys_rows", 0)  # imports what it takes before memory is bounded
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    out = os.fdopen(os.dup(1), "w")
    for count, line in enumerate(sys.stdin):
        try:
            told = answer(folder, *json.loads(line))
        except MemoryError:
            told = (DEFECT, "?", f"more than {MEMORY_BYTES >> 20} MB")
        except BaseException:
            told = (DEFECT, "?", f"the campaign: {traceback.format_exc()[-1500:]}")
        out.write(json.dumps(told) + "\n")
        out.flush()
        if count % 50 == 0:
            gc.collect()


if __name__ == "__main__":
    main()

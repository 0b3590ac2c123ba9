"""``%%traceprof`` in IPython and notebooks: record a cell and show where its time goes."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from traceprof.api.recording import record
from traceprof.api.results import Page
from traceprof.errors import TraceprofError, UsageError

_MAGIC: Final = "traceprof"


class _CellFailedError(Exception):
    """The cell raised an error, which IPython has already shown."""


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%{_MAGIC}: {message}")


def _parser() -> _Arguments:
    parser = _Arguments(prog=f"%%{_MAGIC}", add_help=False, description="Record the cell.")
    parser.add_argument("name", nargs="?", help="assign the run to this variable")
    parser.add_argument("-o", "--output", help="trace file (default: a new temporary file)")
    parser.add_argument("--steps", help="capture only these steps, counted from 0: 10..20")
    parser.add_argument(
        "--step-from",
        help="define a step by: optimizer (or optimizer#2), backward, loader, every-forward, or "
        "range:NAME",
    )
    parser.add_argument("--layers", type=int, default=0, help="record module ranges to this depth")
    parser.add_argument("--force", action="store_true", help="replace the trace if it exists")
    return parser


def load_ipython_extension(shell: Any) -> None:
    """Register the ``%%traceprof`` magic in an IPython shell (``%load_ext traceprof``)."""

    def traceprof(line: str, cell: str) -> Page | None:
        return record_cell(shell, line, cell)

    traceprof.__doc__ = _parser().format_help()
    shell.register_magic_function(traceprof, "cell", _MAGIC)


def _run(shell: Any, cell: str) -> None:
    if not shell.run_cell(cell).success:
        raise _CellFailedError


def record_cell(shell: Any, line: str, cell: str) -> Page | None:
    """Run and record ``cell``; return its page, or None if nothing was recorded.

    A cell that failed has a page, too: of what it did before its error, which IPython shows.

    Raises:
        UsageError: the line is invalid, or the trace cannot be written.
    """
    asked = vars(_parser().parse_args(shlex.split(line)))
    name, output = asked.pop("name"), asked.pop("output")
    if name is not None and not name.isidentifier():
        raise UsageError(
            f"%%{_MAGIC}: {name!r} is not a variable name; to set the trace file, use -o {name}"
        )
    output = output or Path(tempfile.mkdtemp(prefix="traceprof-cell-")) / "cell.sqlite"
    recorded = record(output, **asked)
    with suppress(_CellFailedError), recorded:
        _run(shell, cell)
    if recorded.output is None:
        return None
    if name:
        shell.user_ns[name] = recorded.run
    try:
        return recorded.run.page()
    except TraceprofError as error:
        print(f"traceprof: {error}")
        return None

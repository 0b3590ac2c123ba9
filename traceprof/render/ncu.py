"""Command lines of Nsight Compute that profile one launch of a kernel each."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Final

import pandas as pd

from traceprof.render.escape import plain_text
from traceprof.units import format_duration

__all__ = ["ncu_command", "ncu_lines"]

_PROGRAM: Final = "YOUR PROGRAM"


def ncu_command(function: str, skip: int, program: str = "") -> str:
    """Return what profiles the launch of ``function`` after ``skip`` others of it.

    ncu counts the launches that match in each process by itself.
    """
    name = shlex.quote(plain_text(function))
    return (
        f"ncu --target-processes all --kernel-name {name} --launch-skip {skip} --launch-count 1 "
        f"-- {plain_text(program) or _PROGRAM}"
    )


def ncu_lines(chunks: Iterable[pd.DataFrame]) -> Iterator[str]:
    """Yield, for each kernel, a comment that says which it is, and its command line.

    Columns: at_ns, duration_ns, rank, function, skip, command.
    """
    is_first = True
    for chunk in chunks:
        for row in chunk.to_dict("records"):
            if is_first:
                yield (
                    "# --launch-skip counts from the first launch in the recording: it holds where "
                    "the recording began with the program\n"
                )
                is_first = False
            rank = f", rank {row['rank']}" if row["rank"] >= 0 else ""
            took = format_duration(row["duration_ns"])
            yield f"# at {format_duration(row['at_ns'])}{rank}, {took}\n"
            yield ncu_command(row["function"], row["skip"], row["command"]) + "\n"

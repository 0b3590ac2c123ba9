"""Command lines of Nsight Compute that profile one launch of a kernel each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd

from traceprof.measures.device.ncu import ncu_command
from traceprof.render.escape import plain_text
from traceprof.units import format_duration

__all__ = ["ncu_lines"]


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
            command = ncu_command(row["function"], row["skip"], row["command"])
            yield plain_text(command) + "\n"

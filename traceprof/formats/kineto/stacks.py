"""Python stacks of a Kineto trace (with_stack=True): one event per call of a function.

They are by far the most frequent events: one loop of Python makes millions. Calls below
`MIN_FUNCTION_NS` are dropped while the file is read, so their time belongs to their caller. The
remaining calls become the table ``functions``, and calls of modules become ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.kineto.parse import KinetoEvent
from traceprof.model.table import Names, Table
from traceprof.model.tables import make_table
from traceprof.model.timing import TimeWindow
from traceprof.names.functions import plain_function

FUNCTIONS: Final = ("python_function",)
"""Categories of calls of Python functions and modules."""
MODULE_PREFIX: Final = "nn.Module: "
MIN_FUNCTION_NS: Final = 50_000


def is_function(event: KinetoEvent) -> bool:
    """Return whether an event is a call of a Python function, and not of a module."""
    return event.cat in FUNCTIONS and not str(event.name).startswith(MODULE_PREFIX)


def are_functions(category: Names, name: Names) -> npt.NDArray[np.bool_]:
    """Return which events are calls of Python functions, and not of modules."""
    found: npt.NDArray[np.bool_] = category.isin(FUNCTIONS)
    if found.any():
        texts = name.texts.tolist()
        found &= name.by_text(np.array([not text.startswith(MODULE_PREFIX) for text in texts]))
    return found


def make_functions(
    calls: Mapping[str, npt.NDArray[np.int64]],
    names: Names,
    span: TimeWindow,
    processes: npt.NDArray[np.int64],
) -> Table:
    """Return the calls of Python functions in ``span``, the time of all other rows.

    ``calls`` has start, end, process, and thread of each call. The outermost calls begin before the
    profiler does. Calls outside ``processes`` are dropped: threads of a progress bar have process
    0. Names have no addresses.
    """
    start_ns = np.maximum(calls["start_ns"], span.start_ns)
    end_ns = np.minimum(calls["end_ns"], span.end_ns)
    kept = (start_ns < end_ns) & np.isin(calls["process"], processes)
    plain = Names.coded(map(plain_function, names.texts.tolist()), names.packed, is_sorted=True)
    columns: dict[str, Any] = {**calls, "start_ns": start_ns, "end_ns": end_ns, "name": plain}
    return make_table("functions", {name: column[kept] for name, column in columns.items()})

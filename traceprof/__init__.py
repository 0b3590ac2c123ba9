"""traceprof: where did the step time of a training run go, and what would fix it?

Inside a program that is recorded, `range`, `step`, `epoch`, `metric` and `mark` name things; they
do next to nothing when nobody records, and importing traceprof for them costs next to nothing.
`record` records a part of a program that runs, `handler` passes on what torch.profiler has.

Outside, `open` opens a trace or a run, and every table about it is a method of what it returns;
`runs` is the database of what was kept of runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from traceprof.version import __version__ as __version__

if TYPE_CHECKING:
    from traceprof.annotate.api import epoch, is_recording, mark, metric, range, step
    from traceprof.api import Comparison as Comparison
    from traceprof.api import Page as Page
    from traceprof.api import Recorded as Recorded
    from traceprof.api import Result as Result
    from traceprof.api import Run as Run
    from traceprof.api import Runs as Runs
    from traceprof.api import accuracy as accuracy
    from traceprof.api import compare as compare
    from traceprof.api import elastic as elastic
    from traceprof.api import memory as memory
    from traceprof.api import nodes as nodes
    from traceprof.api import open as open
    from traceprof.api import record as record
    from traceprof.api import runs as runs
    from traceprof.api import scaling as scaling
    from traceprof.integrations.profiler import handler as handler

# Not `open`: `import *` must neither load pandas nor hide what Python calls open.
__all__ = ["epoch", "is_recording", "mark", "metric", "range", "step"]

_READING: Final = frozenset(
    {"Comparison", "Page", "Recorded", "Result", "Run", "Runs", "accuracy", "compare", "elastic"}
    | {"memory", "nodes", "open", "record", "runs", "scaling"}
)
_ELSEWHERE: Final = {
    "handler": "profiler",
    "load_ipython_extension": "notebook",
}
"""What is in a module of `traceprof.integrations`, by its name."""

if not TYPE_CHECKING:  # else a name that is none would be no error of type checkers

    def __getattr__(name: str) -> Any:
        if name in __all__:
            from traceprof.annotate import api as module
        elif name in _READING:
            from traceprof import api as module
        elif name in _ELSEWHERE:
            from importlib import import_module

            module = import_module(f"traceprof.integrations.{_ELSEWHERE[name]}")
        else:
            raise AttributeError(f"module 'traceprof' has no attribute {name!r}")
        globals()[name] = found = getattr(module, name)  # found at once the next time
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_READING, *_ELSEWHERE})

"""traceprof: where does the step time of a training run go, and what would reduce it?

Inside a recorded program, `range`, `step`, `epoch`, `metric`, and `mark` add annotations. They cost
almost nothing when nothing is recorded, and importing traceprof for them loads almost nothing.
`record` records a part of a running program. `handler` hands over the trace of torch.profiler.

Outside the program, `open` opens a trace or a run; each table of the run is a method of the
returned object. `runs` opens the database of stored run summaries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from traceprof.version import __version__ as __version__

if TYPE_CHECKING:
    from traceprof.annotate.api import epoch, is_recording, mark, metric, range, step
    from traceprof.api.comparing import accuracy as accuracy
    from traceprof.api.comparing import compare as compare
    from traceprof.api.comparing import elastic as elastic
    from traceprof.api.comparing import memory as memory
    from traceprof.api.comparing import nodes as nodes
    from traceprof.api.comparing import scaling as scaling
    from traceprof.api.database import Runs as Runs
    from traceprof.api.database import runs as runs
    from traceprof.api.recording import Recorded as Recorded
    from traceprof.api.recording import record as record
    from traceprof.api.results import Comparison as Comparison
    from traceprof.api.results import Page as Page
    from traceprof.api.results import Result as Result
    from traceprof.api.run import Run as Run
    from traceprof.api.run import open as open
    from traceprof.integrations.profiler import handler as handler

# `open` is left out: `import *` must neither load pandas nor shadow the built-in `open`.
__all__ = ["epoch", "is_recording", "mark", "metric", "range", "step"]

_ELSEWHERE: Final = {
    **dict.fromkeys(("Comparison", "Page", "Result"), "api.results"),
    **dict.fromkeys(
        ("accuracy", "compare", "elastic", "memory", "nodes", "scaling"), "api.comparing"
    ),
    **dict.fromkeys(("Run", "open"), "api.run"),
    **dict.fromkeys(("Runs", "runs"), "api.database"),
    **dict.fromkeys(("Recorded", "record"), "api.recording"),
    "handler": "integrations.profiler",
    "load_ipython_extension": "integrations.notebook",
}
"""Name → module that defines it. A recorded program loads no module that reads traces."""

if not TYPE_CHECKING:  # otherwise type checkers would accept any attribute name

    def __getattr__(name: str) -> Any:
        place = "annotate.api" if name in __all__ else _ELSEWHERE.get(name)
        if place is None:
            raise AttributeError(f"module 'traceprof' has no attribute {name!r}")
        from importlib import import_module

        # The next access finds the name without calling this function.
        globals()[name] = found = getattr(import_module(f"traceprof.{place}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({"__version__", *__all__, *_ELSEWHERE} - {"load_ipython_extension"})

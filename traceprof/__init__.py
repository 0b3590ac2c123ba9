"""traceprof: where did the step time of a training run go, and what would fix it?

Inside a program that is recorded, `range`, `step`, `epoch`, `metric` and `mark` name things; they
do next to nothing when nobody records, and importing traceprof for them costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceprof.annotate.api import epoch, is_recording, mark, metric, range, step

__all__ = ["epoch", "is_recording", "mark", "metric", "range", "step"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'traceprof' has no attribute {name!r}")
    from traceprof.annotate import api

    globals()[name] = function = getattr(api, name)  # found at once the next time
    return function

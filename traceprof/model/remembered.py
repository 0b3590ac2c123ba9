"""What was computed of a Trace need not be computed again: a Trace never changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from traceprof.model.trace import Trace

__all__ = ["remembered"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_OfTrace = Callable[Concatenate[Trace, _Parameters], _Result]


def remembered(compute: _OfTrace[_Parameters, _Result]) -> _OfTrace[_Parameters, _Result]:
    """Let a pure function of a Trace (and hashable arguments) run once for each Trace.

    The result is kept as long as the Trace is. Callers share it: they must not modify it.
    """

    @wraps(compute)
    def recall(trace: Trace, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        kept: dict[object, Any] = trace.derived
        key = (compute, args, *sorted(kwargs.items()))
        if key not in kept:
            kept[key] = compute(trace, *args, **kwargs)
        result: _Result = kept[key]
        return result

    return recall

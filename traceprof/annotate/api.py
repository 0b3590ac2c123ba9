"""Mark ranges, steps, epochs, and metrics in a training program.

Calls have almost no overhead unless the program is recorded, with `traceprof record` or from
inside. They work in threads, in forked processes, and in programs without torch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

__all__ = ["epoch", "is_recording", "mark", "metric", "range", "step"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Span(Protocol):
    """A time span of the program; use it as a context manager or as a function decorator."""

    def __enter__(self) -> object:
        """Start the span."""

    def __exit__(self, *error: object) -> None:
        """End the span."""

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Return ``function`` wrapped so that every call is recorded as a span."""


def range(name: str, payload: float = 0) -> Span:
    """Return a range with this name on the calling thread; ``payload`` attaches a number to it.

    The names ``data``, ``forward``, ``backward`` and ``optimizer`` mark the training phases. Use
    them if traceprof cannot detect the phases of your program.
    """
    return _NOTHING if _runtime is None else _Recorded(_runtime.Range, (name, payload))


def step(number: int | None = None, samples: int | None = None) -> Span:
    """Return a training step; explicit steps replace the steps that traceprof detects.

    Args:
        number: The step number. Steps are counted from 0 by default.
        samples: The number of samples in the step. Give it if traceprof cannot see the batch.
    """
    return _NOTHING if _runtime is None else _Recorded(_runtime.Step, (number, samples))


def epoch(number: int | None = None) -> Span:
    """Return an epoch; epochs are counted from 0 unless you give ``number``."""
    return _NOTHING if _runtime is None else _Recorded(_runtime.Epoch, (number,))


def mark(name: str, payload: float = 0) -> None:
    """Record a mark at the current time; ``payload`` attaches a number to it."""
    if _runtime is not None:
        _runtime.mark(name, payload)


def metric(name: str, value: float) -> None:
    """Record the value of a metric (loss, top-1 accuracy, …) at the current time."""
    if _runtime is not None:
        _runtime.metric(name, float(value))


def is_recording() -> bool:
    """Return whether this program is recorded, by `traceprof record` or from inside."""
    return _runtime is not None


def attach(runtime: Any) -> None:
    """Send ranges, steps, and metrics to ``runtime``; None stops recording them.

    ``runtime`` is the module ``_traceprof_runtime.explicit`` of a recording that began inside the
    program.
    """
    global _runtime  # noqa: PLW0603 (one process, one recorder state)
    _runtime = runtime


class _Nothing:
    """The span that every call returns while the program is not recorded."""

    __slots__ = ()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        return function


class _Recorded:
    """A recorded span; each call of a function that it decorates is recorded as a span."""

    __slots__ = ("_arguments", "_make", "_open")

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._make = make
        self._arguments = arguments
        self._open: list[Any] = []

    def __enter__(self) -> _Recorded:
        self._open.append(self._make(*self._arguments))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.pop().end()

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def recorded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            span = self._make(*self._arguments)
            try:
                return function(*args, **kwargs)
            finally:
                span.end()

        return recorded


def _find_runtime() -> Any:
    """Return the runtime that `traceprof record` put on the path; None if nothing is recording."""
    if not os.environ.get("TRACEPROF_DIR"):
        return None
    try:
        from _traceprof_runtime import explicit  # type: ignore[import-not-found]
    except ImportError:
        return None
    return explicit


_NOTHING = _Nothing()
_runtime = _find_runtime()

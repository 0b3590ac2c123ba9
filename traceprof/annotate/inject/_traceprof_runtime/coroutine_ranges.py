"""Ranges of coroutines, which take turns on a thread while ranges of a thread must nest."""

import threading

from . import session, steps
from .clock import time_ns

local = threading.local()  # open: the open ranges, the innermost last


class CoroutineRange:
    """A range from now until `pop`; it is omitted if a range of another coroutine crosses it."""

    def __init__(self, name):
        self._name, self._start_ns = name, time_ns()
        local.__dict__.setdefault("open", []).append(self)

    def pop(self):
        """End the range. Ranges that began within it and are still open cross it."""
        if self not in local.open:
            return
        if local.open[-1] is self:
            session.emitter().add_past(self._start_ns, time_ns(), self._name, steps.number)
        del local.open[local.open.index(self) :]


class Timed:
    """A context manager of a library, with a range of its phase.

    ``begin`` returns the emitter of the range, or None; ``end`` receives it.
    """

    def __init__(self, context, begin, end):
        self._context, self._begin, self._end, self._emitter = context, begin, end, None

    def __getattr__(self, name):
        return getattr(self._context, name)

    def __call__(self, *args, **kwargs):  # some timers are decorators as well
        return self._context(*args, **kwargs)

    def __enter__(self):
        self._emitter = self._begin()
        return self._context.__enter__()

    def __exit__(self, *error):
        try:
            return self._context.__exit__(*error)
        finally:
            if self._emitter is not None:
                self._end(self._emitter)

"""Putting tables together: see `traceprof.model.frames`."""

from traceprof.model.frames import stack

__all__ = ["stack"]

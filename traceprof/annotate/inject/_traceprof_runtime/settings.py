"""What the recorder asked for, from the environment."""

import os

DIRECTORY = os.environ.get("TRACEPROF_DIR", ".")
EMITTER = os.environ.get("TRACEPROF_EMITTER", "auto")  # auto, nvtx (the package), client, spool
FLUSH_PERIOD_S = float(os.environ.get("TRACEPROF_FLUSH_S") or 1)
DISABLED = frozenset(filter(None, os.environ.get("TRACEPROF_DISABLE", "").split(",")))


def layer_depth():
    """Return how deep modules get ranges of their own: 0 for none."""
    return int(os.environ.get("TRACEPROF_LAYERS") or 0)


def windows():
    """Return (skip, active, every) steps of the profiler's windows, or None for no profiler."""
    text = os.environ.get("TRACEPROF_WINDOWS")
    if not text:
        return None
    skip, active, every = (int(number) for number in text.split(","))
    return skip, active, every

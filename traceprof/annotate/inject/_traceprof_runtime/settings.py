"""The recorder's settings, read from environment variables."""

import os

DIRECTORY = os.environ.get("TRACEPROF_DIR", ".")
# Whether the program started its own recording; the program can continue after the recording.
IS_INSIDE = bool(os.environ.get("TRACEPROF_INSIDE"))
EMITTER = os.environ.get("TRACEPROF_EMITTER", "")  # "spool": do not emit NVTX to a profiler
FLUSH_PERIOD_S = float(os.environ.get("TRACEPROF_FLUSH_S") or 0.2)
DISABLED = frozenset(filter(None, os.environ.get("TRACEPROF_DISABLE", "").split(",")))
LAYER_DEPTH = int(os.environ.get("TRACEPROF_LAYERS") or 0)
STEP_FROM = os.environ.get("TRACEPROF_STEP_FROM", "")  # what defines a step; see the module steps
FLOPS = bool(os.environ.get("TRACEPROF_FLOPS"))  # whether to count the FLOPs of one step
DELAY_S = float(os.environ.get("TRACEPROF_DELAY_S") or 0)
DURATION_S = float(os.environ.get("TRACEPROF_DURATION_S") or 0)
LIVE = bool(os.environ.get("TRACEPROF_LIVE"))  # write the live status; capture on request
# Write the live status and its history with few hooks; the user's definition of steps needs all.
ALWAYS = bool(os.environ.get("TRACEPROF_ALWAYS")) and not STEP_FROM
MAX_BYTES = int(os.environ.get("TRACEPROF_MAX_BYTES") or 0)  # limit per process; 0: no limit


def _numbers(variable, separator):
    """Return the integers in an environment variable; None if it is not set."""
    text = os.environ.get(variable)
    return tuple(int(number) for number in text.split(separator)) if text else None


WINDOWS = _numbers("TRACEPROF_WINDOWS", ",")  # skip, active, every: in steps, for torch's profiler
TRY = _numbers("TRACEPROF_TRY", ",")  # number of warm-up steps, number of measured steps
CHANGES = [  # (name, value) of each change to make in the program; value "": the default
    (line.partition("=")[0], line.partition("=")[2])
    for line in os.environ.get("TRACEPROF_CHANGES", "").splitlines()
]
STEPS = _numbers("TRACEPROF_STEPS", "..")  # first and last step to capture
MEMORY = _numbers("TRACEPROF_MEMORY", "..")  # first and last step with a memory history

"""What the recorder asked for, from the environment."""

import os

DIRECTORY = os.environ.get("TRACEPROF_DIR", ".")
IS_INSIDE = bool(
    os.environ.get("TRACEPROF_INSIDE")
)  # begun by a program that runs, and ends before it
EMITTER = os.environ.get("TRACEPROF_EMITTER", "")  # "spool": not to the profiler
FLUSH_PERIOD_S = float(os.environ.get("TRACEPROF_FLUSH_S") or 0.2)
DISABLED = frozenset(filter(None, os.environ.get("TRACEPROF_DISABLE", "").split(",")))
LAYER_DEPTH = int(os.environ.get("TRACEPROF_LAYERS") or 0)
STEP_FROM = os.environ.get("TRACEPROF_STEP_FROM", "")  # what a step is, see the module steps
FLOPS = bool(os.environ.get("TRACEPROF_FLOPS"))  # torch counts those of one step
DELAY_S = float(os.environ.get("TRACEPROF_DELAY_S") or 0)
DURATION_S = float(os.environ.get("TRACEPROF_DURATION_S") or 0)
MAX_BYTES = int(os.environ.get("TRACEPROF_MAX_BYTES") or 0)  # of one process; 0: no limit


def _numbers(variable, separator):
    """Return the whole numbers in a variable, None where it is not set."""
    text = os.environ.get(variable)
    return tuple(int(number) for number in text.split(separator)) if text else None


WINDOWS = _numbers("TRACEPROF_WINDOWS", ",")  # skip, active, every: steps of the profiler
TRY = _numbers("TRACEPROF_TRY", ",")  # steps of warm-up, and steps that are measured
CHANGES = [  # name and value ("" for the usual one) of what is to be changed in the program
    (line.partition("=")[0], line.partition("=")[2])
    for line in os.environ.get("TRACEPROF_CHANGES", "").splitlines()
]
STEPS = _numbers("TRACEPROF_STEPS", "..")  # first and last step to capture
MEMORY = _numbers("TRACEPROF_MEMORY", "..")  # first and last step whose allocations are kept

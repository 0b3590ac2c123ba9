"""The environment in which a recorded program starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import traceprof.annotate
from traceprof.recording.request import RecordRequest

__all__ = ["INJECT_FOLDER", "child_environment", "ignores_injection"]

INJECT_FOLDER: Final = Path(traceprof.annotate.__file__).resolve().parent / "inject"
"""Put first on PYTHONPATH: its sitecustomize waits for torch."""


def child_environment(folder: Path, request: RecordRequest, windows: str = "") -> dict[str, str]:
    """Return the environment of this process with what the hooks need.

    ``windows`` is "skip,active,every" in steps, empty for no windows of the profiler.
    """
    environment = dict(os.environ)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(INJECT_FOLDER), inherited)))
    environment["TRACEPROF_DIR"] = str(folder)
    environment["TRACEPROF_LAYERS"] = str(request.layer_depth)
    environment["TRACEPROF_WINDOWS"] = windows
    environment["TRACEPROF_STEP_FROM"] = request.step_from
    return environment | request.bounds.environment()


def ignores_injection(command: Sequence[str]) -> str | None:
    """Return the option of ``python`` in ``command`` that switches instrumentation off."""
    if not Path(command[0]).name.startswith(("python", "pypy")):
        return None
    for argument in command[1:]:
        if not argument.startswith("-") or argument in ("-c", "-m", "-"):
            return None
        if not argument.startswith("--") and set(argument[1:]) & set("IES"):
            return argument
    return None

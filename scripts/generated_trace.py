"""A generated training job of any size, read as a trace: what benchmarks of pictures draw."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from generate_nsys import Job, generate
from nsys_export import EVENTS_PER_KERNEL

if TYPE_CHECKING:
    from traceprof.model.trace import Trace

__all__ = ["generated_trace"]


def generated_trace(n_events: int, *, gpus: int = 8) -> Trace:
    """Return about ``n_events`` events on ``gpus`` processes of one device each."""
    from traceprof.formats import open_trace

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "generated.sqlite")
        generate(path, round(n_events / EVENTS_PER_KERNEL / gpus), Job(gpus))
        return open_trace(path)

"""A copy of a recording of torch.profiler in which one kernel takes longer, or is called otherwise.

The time is put in where the kernel ends: what follows moves, and what is open then gets longer, as
if the kernel had kept everybody waiting.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

__all__ = ["changed_copy"]


def changed_copy(
    source: Path, target: Path, kernel: str, *, longer_us: int = 0, renamed: str = ""
) -> int:
    """Write a changed copy of the run in ``source``; return how many kernels were changed."""
    target.mkdir()
    changed = 0
    for path in sorted(source.glob("*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        chosen = [e for e in trace["traceEvents"] if _is_kernel(e, kernel)]
        ends = sorted(event["ts"] + event["dur"] for event in chosen)
        changed += len(chosen)
        for event in trace["traceEvents"]:
            _move(event, ends, longer_us)
        for event in chosen:
            event["name"] = renamed or event["name"]
        with gzip.open(target / path.name, "wt", encoding="utf-8") as file:
            json.dump(trace, file)
    return changed


def _is_kernel(event: dict[str, Any], name: str) -> bool:
    return str(event.get("cat", "")).lower() == "kernel" and str(event["name"]) == name


def _move(event: dict[str, Any], ends: list[float], longer_us: int) -> None:
    start = event.get("ts")
    if not isinstance(start, int | float) or event.get("ph") == "M":
        return
    moved = start + longer_us * bisect_right(ends, start)
    if "dur" in event:
        end = start + event["dur"]
        event["dur"] = end + longer_us * bisect_right(ends, end) - moved
    event["ts"] = moved

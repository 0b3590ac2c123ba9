"""The order of runs: the base, then by the number of devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from traceprof.comparison.accuracy.course import devices_of
from traceprof.errors import UsageError
from traceprof.model.summary import Summary

__all__ = ["ordered"]


def ordered(runs: Sequence[Summary], base: str | None = None) -> list[Summary]:
    """Return ``runs`` by their number of devices, those where it is not known last as they came.

    Args:
        runs: the runs, in any order (that of a shell's pattern says nothing).
        base: the one that is to be first, by its name or its number of devices.

    Raises:
        UsageError: no run is such a base.
    """
    sizes = {id(run): devices_of(run) for run in runs}
    known = [run for run in runs if math.isfinite(sizes[id(run)])]
    found = sorted(known, key=lambda run: sizes[id(run)])
    found += [run for run in runs if not math.isfinite(sizes[id(run)])]
    if base is None:
        return found
    first = [run for run in found if run.name == base]
    first = first or [run for run in found if f"{sizes[id(run)]:g}" == base.strip()]
    if not first:
        there = ", ".join(
            f"{run.name} ({sizes[id(run)]:g} devices)" if run in known else run.name
            for run in found
        )
        raise UsageError(f"--base {base}: no run has this name or number of devices: {there}")
    return [*first, *(run for run in found if run not in first)]

"""The racks of a run side by side: time, waiting, and which of them the others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.ranks.groups import GroupTime, frame_of_groups, measure_groups
from traceprof.facts.ranks.groups import GROUPINGS
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Racks", "measure_racks"]

_HOW_TO_KNOW: Final = (
    "say which hosts are in which rack with --rack r1=node[1-4], --cluster FILE ([racks]) or in a "
    "manifest, or record with `traceprof record` under Slurm where it knows the topology"
)


@dataclass(frozen=True, slots=True)
class Racks:
    """The racks in the order of their first ranks."""

    racks: tuple[GroupTime, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per rack, those that hold the others up first."""
        return frame_of_groups(self.racks, "rack")


def measure_racks(trace: Trace) -> Racks:
    """Return where the time of the ranks of each rack went in the window.

    Raises:
        NotRecordedError: no rack of any rank is known.
    """
    return Racks(*measure_groups(trace, GROUPINGS["rack"], _HOW_TO_KNOW))


ANALYSIS = Analysis(
    name="racks",
    needs=(),
    run=measure_racks,
)

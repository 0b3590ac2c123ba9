"""The hosts of a run side by side: time, waiting, and which of them the others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.ranks.groups import GroupTime, frame_of_groups, measure_groups
from traceprof.facts.ranks.groups import GROUPINGS
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Hosts", "measure_hosts"]

_HOW_TO_KNOW: Final = (
    "say which ranks ran where with --cluster FILE ([hosts]) or in a manifest, or record with "
    "`traceprof record`"
)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts in the order of their first ranks."""

    hosts: tuple[GroupTime, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per host, those that hold the others up first."""
        return frame_of_groups(self.hosts, "host")


def measure_hosts(trace: Trace) -> Hosts:
    """Return where the time of the ranks of each host went in the window.

    Raises:
        NotRecordedError: no host of any rank is known.
    """
    return Hosts(*measure_groups(trace, GROUPINGS["host"], _HOW_TO_KNOW, GROUPINGS["rack"]))


ANALYSIS = Analysis(
    name="hosts",
    needs=(),
    run=measure_hosts,
)

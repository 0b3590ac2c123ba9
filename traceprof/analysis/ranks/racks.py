"""The racks of a run side by side: time, waiting, and which of them the others wait for."""

from __future__ import annotations

from typing import Final

from traceprof.facts.ranks.group_times import GROUP_COLUMNS, measure_groups
from traceprof.facts.ranks.groups import Grouping
from traceprof.facts.ranks.late_groups import LATE_GROUPS
from traceprof.facts.ranks.scopes import SCOPES
from traceprof.measures.analyses import Analysis
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, ResultSpec, TableSpec, Unit, key, total

__all__ = ["ANALYSIS"]

_HOW_TO_KNOW: Final = (
    "say which hosts are in which rack with --rack r1=node[1-4], --cluster FILE ([racks]) or in a "
    "manifest, or record with `traceprof record` under Slurm where it knows the topology"
)
SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "racks",
            "one row per rack, those that hold the others up first; times are means of its ranks",
            (key("rack", "the rack"), *GROUP_COLUMNS),
        ),
        LATE_GROUPS,
        SCOPES,
    ),
    scalars=(total("unknown_count", Unit.COUNT, "ranks of which the rack is not known"),),
)


def measure_racks(ranks: Ranks) -> Result:
    """Return where the time of the ranks of each rack went in the window.

    Raises:
        NotRecordedError: no rack of any rank is known.
    """
    found = measure_groups(ranks, Grouping.RACK, _HOW_TO_KNOW)
    return Result(
        "racks",
        SPEC,
        {
            "racks": SPEC.tables[0].frame(found.groups.rename(columns={"name": "rack"})),
            "late_groups": found.late,
            "scopes": found.scopes,
        },
        scalars={"unknown_count": found.unknown_count},
        notes=found.notes,
    )


ANALYSIS = Analysis(
    name="racks",
    spec=SPEC,
    uses=(
        "kernels",
        "copies",
        "collectives",
        "api_calls",
        "ranges",
        "host_ops",
        "processes",
        "devices",
    ),
    of_steps=True,
    of_ranks=measure_racks,
)

"""Clocks of ranks, held against each other by the ends of the collectives that they share."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from traceprof.facts.ranks.alignment import find_alignment
from traceprof.measures.analyses import Analysis
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, ResultSpec, TableSpec, Unit, key, same

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "clocks",
            "one row per rank: its clock against that of the first rank",
            (
                same("rank", Unit.NUMBER, "the rank"),
                same("offset_ns", Unit.NS, "how much the clock is ahead, in the middle"),
                same("drift_ppm", Unit.NUMBER, "how fast that grows, in parts per million"),
                same("residual_ns", Unit.NS, "the median distance of the ends from that line"),
                same("collectives_count", Unit.COUNT, "over how many shared collectives"),
                same("host", Unit.TEXT, "the host of the rank"),
                key("process", "the process of the rank", Unit.NUMBER),
                key("device", "its device, where a process drives several", Unit.NUMBER),
            ),
        ),
    )
)


def measure_alignment(ranks: Ranks) -> Result:
    """Return how the clocks stand to each other, over the whole recording."""
    alignment = find_alignment(ranks)
    table = SPEC.tables[0].frame([asdict(clock) for clock in alignment.clocks])
    return Result("alignment", SPEC, {"clocks": table}, notes=alignment.notes)


ANALYSIS = Analysis(
    name="alignment",
    spec=SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges", "processes"),
    of_ranks=measure_alignment,
)

"""The ranks side by side: where the time of each went, and who waited for whom."""

from __future__ import annotations

from typing import Final

from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.collectives.parallelism import describe_parallelism
from traceprof.facts.ranks.times import times_of_ranks
from traceprof.measures.analyses import Analysis
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    same,
    total,
)

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "ranks",
            "one row per rank: the parts of its device's time, its steps, its share in the waiting",
            (
                key("rank", "the rank", Unit.NUMBER),
                key("device", "its device; all, where it has several"),
                same("step_ns", Unit.NS, "the mean step"),
                total("compute_ns", Unit.NS, "when compute kernels ran"),
                total("exposed_communication_ns", Unit.NS, "communication that no compute hid"),
                total("idle_ns", Unit.NS, "when nothing ran"),
                total("waited_ns", Unit.NS, "in shared collectives, for the last rank to come"),
                derived("last_ratio", Unit.RATIO, "the share of them to which it came last itself"),
                total("exposed_transfer_ns", Unit.NS, "copies that no kernel hid"),
                total("device_memory_ns", Unit.NS, "when only copies inside the device ran"),
                total("collectives_count", Unit.COUNT, "the collectives that it shares"),
                same("host", Unit.TEXT, "its host"),
                key("process", "its process", Unit.NUMBER),
            ),
        ),
    ),
    scalars=(
        total("shared_count", Unit.COUNT, "collectives that ranks share"),
        total("partial_count", Unit.COUNT, "of these, shared by some of the ranks only"),
        total("alone_count", Unit.COUNT, "collectives of single ranks without a partner"),
    ),
)


def measure_ranks(ranks: Ranks) -> Result:
    """Return where the time of each rank went in the window."""
    matches = find_matches(ranks)
    table = SPEC.tables[0].frame(times_of_ranks(ranks))
    scalars = {
        "shared_count": len(matches.table),
        "partial_count": int((matches.table["members"] < len(matches.members)).sum()),
        "alone_count": int((matches.rows["match"] < 0).sum()),
    }
    notes = (_on_matches(len(matches.members), **scalars), *describe_parallelism(ranks))
    return Result("ranks", SPEC, {"ranks": table}, scalars, notes)


def _on_matches(n_ranks: int, shared_count: int, partial_count: int, alone_count: int) -> Note:
    if not shared_count:
        return Note("no collective is shared by several ranks: who waited for whom is not known")
    text = "{shared:count} collectives are shared"
    if partial_count:
        text += ", {partial:count} of them by some of the {ranks:count} ranks only"
    if alone_count:
        text += ", {alone:count} collectives of single ranks have no partner in the trace"
    return Note.of(
        text, shared=shared_count, partial=partial_count, alone=alone_count, ranks=n_ranks
    )


ANALYSIS = Analysis(
    name="ranks",
    spec=SPEC,
    uses=("kernels", "copies", "collectives", "api_calls", "ranges", "processes", "devices"),
    of_steps=True,
    of_ranks=measure_ranks,
)

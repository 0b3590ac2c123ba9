"""Collectives by whose code called them: which phase and layer, and what compute hides of them."""

from __future__ import annotations

from typing import Final

import pandas as pd

from traceprof.facts.collectives.callers import (
    callers_of_collectives,
    phases_of_collectives,
)
from traceprof.facts.collectives.work import find_collectives, require_collectives
from traceprof.measures.analyses import Analysis
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, derived, key, total
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

_KEYS: Final = ["phase", "caller", "op"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "callers",
            "one row per phase, caller and operation, the most exposed first",
            (
                key("phase", "the phase whose code called"),
                key("caller", "the innermost range around the call, empty outside any"),
                key("op", "the operation"),
                total("count", Unit.COUNT, "how many, of all ranks"),
                total("size_bytes", Unit.BYTES, "what ranks handed in, none if one is not known"),
                total("total_ns", Unit.NS, "their times added up"),
                total("exposed_ns", Unit.NS, "what compute does not hide, none if not all known"),
                derived("hidden_ns", Unit.NS, "the rest of total_ns"),
                derived("exposed_ratio", Unit.RATIO, "exposed_ns of total_ns"),
                total("unsized_count", Unit.COUNT, "of these, of unknown size"),
                total("unplaced_count", Unit.COUNT, "of these, timed but not on a device"),
            ),
        ),
    )
)


def measure_callers(trace: Trace) -> Result:
    """Return the collectives that start in the window by the code that called them.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    require_collectives(trace)
    work = find_collectives(trace)
    rows = work["row"].to_numpy()
    timed = work["is_timed"]
    work = pd.DataFrame(
        {
            "phase": phases_of_collectives(trace)[rows],
            "caller": callers_of_collectives(trace)[rows],
            "op": work["op"],
            "size_bytes": work["n_bytes"].clip(lower=0),
            "is_unsized": work["n_bytes"] < 0,
            "total_ns": (work["end_ns"] - work["start_ns"]).where(timed),
            "exposed_ns": work["exposed_ns"].where(timed),
            "is_unplaced": timed & work["exposed_ns"].isna(),
        }
    )
    groups = work.groupby(_KEYS, sort=False)
    table = groups.agg(
        count=("op", "size"),
        unsized_count=("is_unsized", "sum"),
        unplaced_count=("is_unplaced", "sum"),
        size_bytes=("size_bytes", "sum"),
    )
    sums = groups[["total_ns", "exposed_ns"]].sum(min_count=1)
    frame = SPEC.tables[0].frame(table.join(sums).reset_index())
    return Result("callers", SPEC, {"callers": frame})


def _finish(result: Result) -> Result:
    table = result.table
    if table.empty:
        return result.with_table(SPEC.tables[0].frame()).with_notes(
            Note("no collective starts in this window")
        )
    exposed = table["exposed_ns"].where(table["unplaced_count"] == 0)
    total_ns = table["total_ns"]
    table = table.assign(
        size_bytes=table["size_bytes"].where(table["unsized_count"] == 0),
        exposed_ns=exposed,
        hidden_ns=total_ns - exposed,
        exposed_ratio=exposed / total_ns.where(total_ns > 0),
        longest=-total_ns.fillna(0),
        most=-exposed.fillna(0),
    )
    order = table.sort_values(
        ["most", "longest", "caller", "op", "phase"], kind="stable", ignore_index=True
    )
    return result.with_table(order)


ANALYSIS = Analysis(
    name="callers",
    spec=SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges"),
    whole=("ranges",),
    of_steps=True,
    of_rank=measure_callers,
    finish=_finish,
)

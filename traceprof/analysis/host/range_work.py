"""Device work by host range: what was launched inside each NVTX range, and when that ran.

Work belongs to every range that is open on its launching thread at the launch, as in the reports
nvtxgpuproj and nvtxkernsum of ``nsys stats``. Different from these: a range inside another of
its name counts its work once, names are without numbers and the ids of operators, copies and
memsets count beside kernels, and ranges that do not nest (start/end) are left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.host.range_work import (
    NestedRanges,
    nested_ranges,
    ranges_of_work,
    sum_work,
    work_inside,
)
from traceprof.facts.host.self_time import self_time_ns
from traceprof.facts.launches import launches_of
from traceprof.facts.names.ranges import unnumbered_names
from traceprof.model.intervals import union_lengths
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, derived, key, total
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS"]

_Int64Array = npt.NDArray[np.int64]

_NAME: Final = key("name", "the name, without ids of operators and numbers that stand alone")
_DOMAIN: Final = key("domain", 'the NVTX domain; "" for the default one')
SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "range_work",
            "one row per name and domain of range, by device time; ranges nest, so that totals "
            "add up to more than the work there is",
            (
                _NAME,
                _DOMAIN,
                total("count", Unit.COUNT, "how many ranges there are"),
                total("host_ns", Unit.NS, "their durations on the host"),
                total("self_ns", Unit.NS, "of that, the time in no other range inside"),
                total(
                    "device_ns",
                    Unit.NS,
                    "the durations of the kernels and copies launched inside, each once",
                ),
                derived("device_ratio", Unit.RATIO, "device_ns of all kernels and copies"),
                total(
                    "union_ns",
                    Unit.NS,
                    "when a device worked on any of these: the union, added up over devices",
                ),
                total("own_ns", Unit.NS, "device_ns of what no other range inside launched"),
                total(
                    "projected_ns",
                    Unit.NS,
                    "from the first start to the last end of the work of each range, added up",
                ),
                total("work_count", Unit.COUNT, "how many kernels and copies, each once"),
            ),
        ),
        TableSpec(
            "range_kernels",
            "one row per range and kernel launched inside it, by device time",
            (
                _NAME,
                _DOMAIN,
                key("kernel", "the name of the kernel"),
                total("count", Unit.COUNT, "how many were launched inside"),
                total("total_ns", Unit.NS, "their durations"),
            ),
        ),
    ),
    scalars=(
        total("work_ns", Unit.NS, "the durations of all kernels and copies"),
        total("outside_ns", Unit.NS, "the durations of those launched in no range"),
        total("outside_count", Unit.COUNT, "how many these are"),
        total("unlinked_count", Unit.COUNT, "how many of these have no recorded launch"),
    ),
)
_KEYS: Final = ["name", "domain"]


def measure_range_work(trace: Trace) -> Result:
    """Return the device work of the ranges by name; of those that the window cuts, the part inside.

    Work counts for the ranges that launched it, also where these lie before the window.
    """
    nested = nested_ranges(trace)
    kinds, codes = _kinds(trace, nested)
    owners = {name: ranges_of_work(trace, name) for name in DEVICE_TABLES}
    table = _host(trace, kinds, codes, nested).join(_device(trace, nested, codes, owners))
    table = kinds.join(table.fillna(0).astype("int64"))
    table = table[(table["count"] > 0) | (table["work_count"] > 0)].reset_index(drop=True)
    kernels = _kernels(trace, nested, codes, owners["kernels"], kinds)
    return Result(
        "range-work", SPEC, {"range_work": table, "range_kernels": kernels}, _outside(trace, owners)
    )


def _kinds(trace: Trace, nested: NestedRanges) -> tuple[pd.DataFrame, _Int64Array]:
    """Return the distinct names and domains of ranges, and which of them each range is."""
    ranges = trace.whole.ranges.iloc[nested.rows]
    named = pd.DataFrame(
        {"name": unnumbered_names(ranges["name"]), "domain": ranges["domain"].to_numpy()}
    )
    groups = named.groupby(_KEYS, observed=True, sort=True)
    kinds = groups.size().reset_index()[_KEYS].astype(object)
    return kinds, np.asarray(groups.ngroup(), np.int64)


def _host(
    trace: Trace, kinds: pd.DataFrame, codes: _Int64Array, nested: NestedRanges
) -> pd.DataFrame:
    kind_of = np.full(len(trace.whole.ranges), -1, np.int64)
    kind_of[nested.rows] = codes
    kind = kind_of[trace.rows_in_whole("ranges")]
    here = np.flatnonzero(kind >= 0)
    ranges = trace.ranges.iloc[here]
    own = self_time_ns(ranges, ("process", "thread"))
    found = pd.DataFrame(
        {
            "kind": kind[here],
            "count": 1,
            "host_ns": (ranges["end_ns"] - ranges["start_ns"]).to_numpy(np.int64),
            "self_ns": own.to_numpy(np.int64),
        }
    )
    return found.groupby("kind").sum().reindex(kinds.index, fill_value=0)


def _device(
    trace: Trace, nested: NestedRanges, codes: _Int64Array, owners: dict[str, _Int64Array]
) -> pd.DataFrame:
    spans = sum_work(trace, owners, nested.parent, nested.depth)
    by_span = pd.DataFrame(
        {"kind": codes, "own_ns": spans.self_ns, "projected_ns": spans.last_ns - spans.first_ns}
    )
    columns = ["start_ns", "end_ns", "device"]
    work = pd.concat([trace.table(name)[columns] for name in owners], ignore_index=True)
    owner = np.concatenate(list(owners.values()))
    kind, row = work_inside(codes, nested.parent, owner)
    inside = work.iloc[row].assign(kind=kind)
    groups = inside.groupby(["kind", "device"], sort=True)
    number = groups.ngroup().to_numpy(np.int64)
    united = groups.size().rename("work_count").reset_index()
    united["union_ns"] = union_lengths(number, inside["start_ns"], inside["end_ns"], len(united))
    inside["device_ns"] = inside["end_ns"] - inside["start_ns"]
    by_work = united.groupby("kind")[["union_ns", "work_count"]].sum()
    by_work["device_ns"] = inside.groupby("kind")["device_ns"].sum()
    return by_span.groupby("kind").sum().join(by_work)


def _kernels(
    trace: Trace,
    nested: NestedRanges,
    codes: _Int64Array,
    owner: _Int64Array,
    kinds: pd.DataFrame,
) -> pd.DataFrame:
    kind, row = work_inside(codes, nested.parent, owner)
    kernels = trace.kernels[["start_ns", "end_ns", "name"]].iloc[row]
    lengths = (kernels["end_ns"] - kernels["start_ns"]).to_numpy(np.int64)
    found = pd.DataFrame({"kind": kind, "kernel": kernels["name"].array, "total_ns": lengths})
    groups = found.groupby(["kind", "kernel"], observed=True, sort=True)["total_ns"]
    table = groups.agg(count="size", total_ns="sum").reset_index()
    table = table.assign(kernel=table["kernel"].astype(object))
    return kinds.iloc[table.pop("kind").to_numpy(np.int64)].reset_index(drop=True).join(table)


def _outside(trace: Trace, owners: dict[str, _Int64Array]) -> dict[str, int]:
    totals = dict.fromkeys(("work_ns", "outside_ns", "outside_count", "unlinked_count"), 0)
    for name, owner in owners.items():
        work = trace.table(name)
        lengths = (work["end_ns"] - work["start_ns"]).to_numpy(np.int64)
        totals["work_ns"] += int(lengths.sum())
        totals["outside_ns"] += int(lengths[owner < 0].sum())
        totals["outside_count"] += int((owner < 0).sum())
        totals["unlinked_count"] += int((~launches_of(trace, name).is_known).sum())
    return totals


def _finish(result: Result) -> Result:
    work_ns = result.scalars["work_ns"]
    table = result.table
    table = table.assign(device_ratio=table["device_ns"] / (work_ns or float("nan")))
    order = ["device_ns", "host_ns", *_KEYS]
    table = table.sort_values(order, ascending=[False, False, True, True], ignore_index=True)
    kernels = result.tables["range_kernels"].sort_values(
        ["total_ns", *_KEYS, "kernel"], ascending=[False, True, True, True], ignore_index=True
    )
    result = result.with_table(table).with_table(kernels, "range_kernels")
    outside, unlinked = result.scalars["outside_count"], result.scalars["unlinked_count"]
    if not outside:
        return result
    text = "no range launched {count:count} kernels and copies, {lost:ns} ({share:ratio} of all)"
    told = {"count": outside, "lost": result.scalars["outside_ns"], "unlinked": unlinked}
    if unlinked:
        text += "; of {unlinked:count} the launch was not recorded"
    return result.with_notes(Note.of(text, share=told["lost"] / (work_ns or 1), **told))


ANALYSIS = Analysis(
    name="range-work",
    spec=SPEC,
    needs=("ranges",),
    uses=("kernels", "copies", "api_calls"),
    whole=("ranges",),
    of_rank=measure_range_work,
    finish=_finish,
)

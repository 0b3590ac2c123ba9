"""Why a step took longer than the typical one, or a window than another: a sum that is exact.

The five parts of the devices, the mean over them, and what each is made of. Means are floors of
the cumulated share, so that whatever adds up over all devices adds up in the mean, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.errors import NotRecordedError
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.composition import (
    DeviceSpans,
    HostSpans,
    composition_of_devices,
    composition_of_hosts,
)
from traceprof.measures.device.times import used_devices
from traceprof.model.activity import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result
from traceprof.session.answer import Document, document_about
from traceprof.session.explaining.sides import Side, side_of, typical_side
from traceprof.session.explaining.spec import NAME, SPEC
from traceprof.session.run import Run

__all__ = ["explain", "explain_ranks"]

_Int64Array = npt.NDArray[np.int64]
_KEYS: Final = ["part", "kind", "name"]


def explain(run: Run, text: str, against: str | None = None) -> Document:
    """Return what makes the window ``text`` longer than ``against``, or than the typical step.

    Raises:
        UsageError: a window is none of this run, or there is nothing to hold it against.
        NotRecordedError: no device was recorded in both, or neither devices nor phases.
    """
    ranks = run.within("all").of_ranks().whole
    own, result = explain_ranks(ranks, text, against)
    return document_about(ranks, own.selection, {NAME: result})


def explain_ranks(ranks: Ranks, text: str, against: str | None = None) -> tuple[Side, Result]:
    """Return what ``text`` means in the ranks of a run, and what explains it."""
    ranks = ranks.whole
    own = side_of(ranks, text)
    other = typical_side(ranks, own) if against is None else side_of(ranks, against)
    own, other = _of_both(own, other)
    if not any(map(used_devices, ranks.parts)):
        return own, _of_hosts(ranks, own, other)
    if not own.of_devices:
        raise NotRecordedError(f"no device worked in both {own.name} and {other.name}")
    return own, _result(ranks, own, other)


def _of_both(own: Side, other: Side) -> tuple[Side, Side]:
    """Return the two with the devices and the processes that both have."""
    devices = [one for one in own.of_devices if one in other.of_devices]
    hosts = [one for one in own.of_hosts if one in other.of_hosts]
    first, second = (
        replace(
            side,
            of_devices={one: side.of_devices[one] for one in devices},
            of_hosts={one: side.of_hosts[one] for one in hosts},
        )
        for side in (own, other)
    )
    return first, second


def _result(ranks: Ranks, own: Side, other: Side) -> Result:
    why_not = find_blame(ranks).why_not
    causes = _causes(ranks, own.of_devices, other.of_devices, knows_waits=not why_not)
    measures = ["difference_ns", "own_ns", "against_ns"]
    parts = causes.groupby("part")[measures].sum().reindex(list(PARTS), fill_value=0)
    parts = parts.rename_axis("part").reset_index()
    length = {name: int(parts[name].sum()) for name in measures}
    parts["share_ratio"] = parts["difference_ns"] / (length["difference_ns"] or np.nan)
    tables = {
        "causes": causes,
        "parts": parts,
        "phases": _phases(ranks, own.of_hosts, other.of_hosts),
    }
    return Result(
        NAME,
        SPEC,
        {name: SPEC.table(name).frame(table) for name, table in tables.items()},
        {
            "own": own.name,
            "against": other.name,
            "own_ns": length["own_ns"],
            "against_ns": length["against_ns"],
            "difference_ns": length["difference_ns"],
            "devices_count": len(own.of_devices),
        },
        notes=(*_unlike(own, other), *other.notes, *own.notes, *_no_waits(why_not)),
    )


def _of_hosts(ranks: Ranks, own: Side, other: Side) -> Result:
    """Return what the hosts were in, where no device worked anywhere."""
    phases = _phases(ranks, own.of_hosts, other.of_hosts)
    if phases.empty:
        ranks.require("kernels", "copies")
        raise NotRecordedError("no device worked, and no ranges name the phases of a step")
    length = {name: int(phases[name].sum()) for name in ("own_ns", "against_ns", "difference_ns")}
    tables = {"causes": SPEC.table("causes").frame(), "parts": SPEC.table("parts").frame()}
    return Result(
        NAME,
        SPEC,
        {**tables, "phases": SPEC.table("phases").frame(phases)},
        {"own": own.name, "against": other.name, **length, "devices_count": 0},
        notes=(*_unlike(own, other), *other.notes, *own.notes, Note(_NO_DEVICE)),
    )


_NO_DEVICE: Final = "no work of devices was recorded: these are the phases of the host"


def _causes(
    ranks: Ranks, own: DeviceSpans, other: DeviceSpans, *, knows_waits: bool
) -> pd.DataFrame:
    made, usual = (
        composition_of_devices(ranks, spans, knows_waits=knows_waits) for spans in (own, other)
    )
    both = (
        _together(made)
        .add_suffix("_own")
        .join(_together(usual).add_suffix("_against"), how="outer")
    )
    both = both.reset_index()
    both = both.fillna({f"{name}_{side}": 0 for name in ("ns", "count") for side in _SIDES})
    both = both[(both["ns_own"] != 0) | (both["ns_against"] != 0)]
    totals = {side: both[f"ns_{side}"].to_numpy(np.int64) for side in _SIDES}
    counts = {side: both[f"count_{side}"].to_numpy(np.int64) for side in _SIDES}
    gap = totals["own"] - totals["against"]
    more = _of_number(totals, counts)
    order = np.lexsort((-totals["own"], -np.abs(gap)))
    n = len(own)
    found: dict[str, Any] = {name: both[name].to_numpy()[order] for name in _KEYS}
    for side in _SIDES:
        found[f"{side}_ns"] = _means(totals[side][order], n)
        found[f"{side}_count"] = counts[side][order]
        found[f"{side}_bytes"] = both[f"n_bytes_{side}"].to_numpy(np.float64)[order]
    found["difference_ns"] = found["own_ns"] - found["against_ns"]
    if n > 1:
        found["device"] = _mostly_on(made, usual, gap[order], pd.DataFrame(found)[_KEYS])
    is_counted = (counts["own"] + counts["against"] > 0)[order]
    shared = np.rint(more[order] / n)
    found["more_ns"] = np.where(is_counted, shared, np.nan)
    found["longer_ns"] = np.where(is_counted, found["difference_ns"] - shared, np.nan)
    return pd.DataFrame(found)


def _together(made: pd.DataFrame) -> pd.DataFrame:
    """Return what all devices did, by what it was."""
    groups = made.groupby(_KEYS)
    # Sizes of which none is known add up to one that is not known.
    sizes = groups["n_bytes"].sum(min_count=1)
    return groups[["ns", "count"]].sum().assign(n_bytes=sizes)


def _mostly_on(
    own: pd.DataFrame, other: pd.DataFrame, gap: _Int64Array, rows: pd.DataFrame
) -> npt.NDArray[np.float64]:
    """Return the device that has more than half of the difference of each row; NaN: none has."""
    both = pd.concat([own, other.assign(ns=-other["ns"])])
    each = both.groupby([*_KEYS, "device"], as_index=False)["ns"].sum()
    each = each.merge(rows.assign(gap=gap, row=np.arange(len(rows))), on=_KEYS)
    most = each[each["ns"] * np.sign(each["gap"]) * 2 > each["gap"].abs()]
    most = most.assign(size=most["ns"].abs()).sort_values("size", ascending=False, kind="stable")
    found = np.full(len(rows), np.nan)
    first = most.drop_duplicates("row")
    found[first["row"].to_numpy(np.int64)] = first["device"].to_numpy(np.float64)
    return found


_SIDES: Final = ("own", "against")


def _of_number(totals: dict[str, _Int64Array], counts: dict[str, _Int64Array]) -> npt.NDArray[Any]:
    """Return what of each difference there is because there are more of them, or fewer.

    At the mean length of those in the other window; where there are none, of one's own.
    """
    usual = totals["against"] / np.maximum(counts["against"], 1)
    own = totals["own"] / np.maximum(counts["own"], 1)
    each = np.where(counts["against"] > 0, usual, own)
    return np.asarray((counts["own"] - counts["against"]) * each)


def _means(totals: _Int64Array, n: int) -> _Int64Array:
    """Return the ``n``-th part of each, by floor of the cumulated share: they add up as all do."""
    reached = np.append(0, np.cumsum(totals)) // n
    return np.asarray(np.diff(reached), np.int64)


def _phases(ranks: Ranks, own: HostSpans, other: HostSpans) -> pd.DataFrame:
    made, usual = (
        composition_of_hosts(ranks, spans).set_index("phase")["ns"] for spans in (own, other)
    )
    names = [*made.index, *(name for name in usual.index if name not in made.index)]
    totals = [side.reindex(names, fill_value=0).to_numpy(np.int64) for side in (made, usual)]
    order = np.lexsort((-totals[0], -np.abs(totals[0] - totals[1])))
    means = [_means(values[order], max(1, len(own))) for values in totals]
    return pd.DataFrame(
        {
            "phase": np.array(names, object)[order],
            "difference_ns": means[0] - means[1],
            "own_ns": means[0],
            "against_ns": means[1],
        }
    )


def _unlike(own: Side, other: Side) -> list[Note]:
    if (own.step is None) == (other.step is None):
        return []
    return [Note("a step is held against a window: their lengths differ whatever the step does")]


def _no_waits(why_not: str) -> list[Note]:
    return [Note.of("whom ranks wait for is not told: {why}", why=why_not)] if why_not else []

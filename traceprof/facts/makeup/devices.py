"""What each of the five parts of the devices' time is made of, to the ns.

Every ns of a part belongs to one thing: of kernels, copies and collectives that run at once to
the one that began first, so that the others have what they add to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.device.times import device_time, places_in_part, recorded_window
from traceprof.facts.idle.charges import NOTHING, OF_HOST, find_charges
from traceprof.facts.makeup.collectives import COLLECTIVE, WAITING, released_collectives
from traceprof.model.activity import BUSY_PARTS, IDLE, PARTS, Part
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import compact, groups_of
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.workers.remote import measure_of_each

__all__ = ["COPY", "KERNEL", "REST", "Spans", "makeup_of_devices", "work_of_trace"]

_Int64Array = npt.NDArray[np.int64]

Spans: TypeAlias = Mapping[tuple[int, int], TimeWindow]
"""Windows of devices, by the place of their Trace among the ranks and the device's number."""

KERNEL: Final = "kernel"
COPY: Final = "copy"
REST: Final = "rest"
"""What a part is made of beside collectives, waiting, and the causes of idle time."""

_KEYS: Final = ["part", "kind", "name", "device"]
_WITHOUT_HOST: Final = {
    "queued": "(launched, not begun yet)",
    "peer": "(work shared with another device)",
}
"""What idle time is called in which the host held nothing up."""
_PART_OF: Final = {
    "compute": Part.COMPUTE,
    "exposed_communication": Part.COMMUNICATION,
    "exposed_transfer": Part.TRANSFER,
    "device_memory": Part.DEVICE_MEMORY,
}


def makeup_of_devices(ranks: Ranks, spans: Spans, *, knows_waits: bool = True) -> pd.DataFrame:
    """Return what each device did in its span.

    Columns: part (of `PARTS`), kind (`KERNEL`, `COPY`, of communication also "collective" and
    "waiting", of idle time its cause; `REST` for what nothing is known of), name (of the kernel;
    the direction and the host's kind of memory; the operation; whom for; what the host was in),
    device, ns, count (how many began in the span, of idle time how many gaps) and n_bytes (of
    copies, and what ranks hand in; NaN: not known). The ns add up to the spans, as far as they
    were recorded.
    ``knows_waits``: whether it can be told when the others came to a collective.
    """
    released = released_collectives(ranks, knows_waits=knows_waits)
    parts, asked = [], []
    for (place, window), devices in _by_window(spans).items():
        known = ranks if window == ranks.span else ranks.whole  # what is known of a cut Trace
        parts.append(known.parts[place])
        asked.append((window, tuple(devices), released.where(released.isin("device", devices))))
    sums = _added_up(measure_of_each(parts, _of_window, asked))
    kept = (sums["ns"] != 0) | (sums["count"] != 0)
    return sums[kept].astype({"ns": np.int64, "count": np.int64}).reset_index(drop=True)


def _added_up(found: Sequence[pd.DataFrame]) -> pd.DataFrame:
    columns = [*_KEYS, "ns", "count", "n_bytes"]
    every = pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=columns)
    groups = every.groupby(_KEYS, sort=True)
    sums = groups[["ns", "count"]].sum()
    # A sum of sizes of which none is known is not known either.
    return sums.assign(n_bytes=groups["n_bytes"].sum(min_count=1)).reset_index()


def _of_window(
    trace: Trace, window: TimeWindow, devices: Sequence[int], released: CompactTable
) -> pd.DataFrame:
    """Return what the devices of a Trace did in a window, where the Trace is."""
    own = _of_trace(trace.within(window), devices, released.frame())
    return _added_up([rows.assign(device=device) for device, rows in own])


def _by_window(spans: Spans) -> Mapping[tuple[int, TimeWindow], list[int]]:
    found: dict[tuple[int, TimeWindow], list[int]] = {}
    for (place, device), window in spans.items():
        found.setdefault((place, window), []).append(device)
    return found


def _of_trace(
    trace: Trace, devices: Sequence[int], released: pd.DataFrame
) -> Iterator[tuple[int, pd.DataFrame]]:
    """Yield the devices of a Trace that is cut to their window, each with its sums."""
    work = work_of_trace(trace)
    charges = find_charges(trace).times
    for device in devices:
        span = recorded_window(trace, device)
        time = device_time(trace, device).clip(span.start_ns, span.end_ns)
        exposed = time.parts()
        own = work[(work["device"] == device).to_numpy()]
        shared = released[(released["device"] == device).to_numpy()]
        found = []
        for part in BUSY_PARTS:
            left = exposed[part]
            if part == "exposed_communication":
                found += [*_collectives(shared, left, span)]
                left = left - Intervals.union_of(shared["start_ns"], shared["end_ns"])
            chosen = own[(own["place"] == list(Part).index(_PART_OF[part])).to_numpy()]
            found.append(_claims(chosen, left, part, span))
        found.append(_idle(charges[(charges["device"] == device).to_numpy()]))
        found.append(_rest(found, exposed, span.duration_ns))
        yield device, pd.concat(found, ignore_index=True)


def work_of_trace(trace: Trace) -> pd.DataFrame:
    """Return the kernels and copies of the window, whole: what cuts them off is the part.

    Columns: start_ns, end_ns, device, place (in the list of parts), kind, name (both categorical)
    and n_bytes.
    """
    kinds = (KERNEL, COPY)
    columns: dict[str, list[Any]] = {}
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        whole = trace.whole.table(name)
        starts = whole["start_ns"].to_numpy(np.int64)[trace.rows_in_whole(name)]
        is_kernel = name == "kernels"
        own = {
            "start_ns": starts,
            "end_ns": frame["end_ns"].to_numpy(np.int64),
            "device": compact(frame["device"].to_numpy()),
            "place": compact(places_in_part(trace, name)),
            "kind": np.full(len(frame), kinds.index(KERNEL if is_kernel else COPY), np.int8),
            "name": pd.Categorical(frame["name"]) if is_kernel else _routes(frame),
            "n_bytes": np.full(len(frame), np.nan) if is_kernel else _sizes(frame["n_bytes"]),
        }
        for column, values in own.items():
            columns.setdefault(column, []).append(values)
    names = pd.api.types.union_categoricals(columns.pop("name"))
    joined = {column: np.concatenate(columns.pop(column)) for column in list(columns)}
    order = np.argsort(joined["start_ns"], kind="stable")
    work = pd.DataFrame({column: values[order] for column, values in joined.items()}, copy=False)
    kind = pd.Categorical.from_codes(work["kind"].to_numpy(np.int8), pd.Index(kinds))
    return work.assign(kind=kind, name=names[order])


def _routes(copies: pd.DataFrame) -> pd.Categorical:
    """Return the direction of each copy with the kind of the host's memory."""
    columns = [pd.Categorical(copies[name]) for name in ("direction", "src_kind", "dst_kind")]
    groups = groups_of(*(one.codes for one in columns))
    texts = []
    for key in groups.keys:
        direction, source, target = (
            one.categories[code] for one, code in zip(columns, key, strict=True)
        )
        memory = {"h2d": source, "d2h": target}.get(direction, "")
        texts.append(f"{direction} {memory}".strip())
    distinct = list(dict.fromkeys(texts))
    codes = np.array([distinct.index(text) for text in texts], np.int32)[groups.number]
    return pd.Categorical.from_codes(codes, pd.Index(distinct, dtype=object))


def _sizes(n_bytes: pd.Series) -> npt.NDArray[np.float64]:
    return n_bytes.where(n_bytes != ABSENT).to_numpy(np.float64)


def _sums(
    part: str,
    kind: Any,
    name: Any,
    ns: _Int64Array,
    count: npt.NDArray[Any],
    n_bytes: npt.NDArray[np.float64] | None = None,
) -> pd.DataFrame:
    """Return the sums of the rows of each kind and name, both anything with categories."""
    kinds, names = pd.Categorical(kind), pd.Categorical(name)
    groups = groups_of(kinds.codes, names.codes)
    own, named = ([key[place] for key in groups.keys] for place in (0, 1))
    sizes: Any = np.nan
    if n_bytes is not None:
        known = groups.reduced(np.logical_or, ~np.isnan(n_bytes))
        sizes = np.where(known, groups.reduced(np.add, np.nan_to_num(n_bytes)), np.nan)
    return pd.DataFrame(
        {
            "part": part,
            "kind": kinds.categories.astype(object)[own],
            "name": names.categories.astype(object)[named],
            "ns": groups.reduced(np.add, ns.astype(np.int64, copy=False)),
            "count": groups.reduced(np.add, count.astype(np.int64, copy=False)),
            "n_bytes": sizes,
        }
    )


def _first_claims(rows: pd.DataFrame) -> tuple[_Int64Array, _Int64Array]:
    """Return from when to when each row, by start, is the first of those that run."""
    starts, ends = (rows[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    if not len(rows):
        return starts, ends
    reach = np.maximum.accumulate(np.append(starts[0], ends[:-1]))
    first = np.minimum(np.maximum(starts, reach), ends)
    return first, ends


def _claims(rows: pd.DataFrame, left: Intervals, part: str, span: TimeWindow) -> pd.DataFrame:
    first, ends = _first_claims(rows)
    begins = span.holds(rows["start_ns"].to_numpy(np.int64))
    n_bytes = np.where(begins, rows["n_bytes"].to_numpy(), np.nan)
    return _sums(part, rows["kind"], rows["name"], left.covered_ns(first, ends), begins, n_bytes)


def _collectives(rows: pd.DataFrame, left: Intervals, span: TimeWindow) -> Iterator[pd.DataFrame]:
    """Yield what of the exposed communication is waiting for others, and what the collectives."""
    near = span.overlaps(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    rows = rows[near]
    first, ends = _first_claims(rows)
    release = np.clip(rows["release_ns"].to_numpy(np.int64), first, ends)
    part = "exposed_communication"
    begins = span.holds(rows["start_ns"].to_numpy(np.int64))
    waited = left.covered_ns(first, release)
    counts = begins & (waited > 0)
    yield _sums(part, [WAITING] * len(rows), rows["waits_for"], waited, counts)
    n_bytes = np.where(begins, _sizes(rows["n_bytes"]), np.nan)
    worked = left.covered_ns(release, ends)
    yield _sums(part, [COLLECTIVE] * len(rows), rows["op"], worked, begins, n_bytes)


def _idle(charges: pd.DataFrame) -> pd.DataFrame:
    cause, name = (pd.Categorical(charges[own]) for own in ("cause", "name"))
    groups = groups_of(cause.codes, name.codes)
    texts = [
        (str(cause.categories[code]), str(name.categories[named])) for code, named in groups.keys
    ]
    pairs = [(own, text or _unnamed(own)) for own, text in texts]
    distinct = list(dict.fromkeys(pairs))
    places = {pair: place for place, pair in enumerate(distinct)}
    number = np.array([places[pair] for pair in pairs], np.int64)[groups.number]
    keys = pd.DataFrame({"gap": charges["gap"].to_numpy(), "number": number})
    causes, names = (pd.Categorical([pair[place] for pair in distinct])[number] for place in (0, 1))
    lengths = (charges["end_ns"] - charges["start_ns"]).to_numpy(np.int64)
    return _sums(IDLE, causes, names, lengths, ~keys.duplicated().to_numpy())


def _unnamed(cause: str) -> str:
    """Return what idle time is called in which nothing was recorded, or held a device up."""
    return NOTHING if cause in OF_HOST else _WITHOUT_HOST.get(cause, "")


def _rest(
    found: Sequence[pd.DataFrame], exposed: Mapping[str, Intervals], length_ns: int
) -> pd.DataFrame:
    """Return what nothing is known of: each part without all that was found of it."""
    known = pd.concat(found).groupby("part")["ns"].sum()
    busy = {part: exposed[part].total_ns for part in BUSY_PARTS}
    whole = busy | {IDLE: length_ns - sum(busy.values())}
    lost = [whole[part] - int(known.get(part, 0)) for part in PARTS]
    return pd.DataFrame(
        {"part": PARTS, "kind": REST, "name": "", "ns": lost, "count": 0, "n_bytes": np.nan}
    )

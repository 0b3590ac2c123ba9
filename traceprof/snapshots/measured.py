"""What held the memory of devices, as their allocator tells: the answer of `traceprof memory`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from traceprof.comparison import Comparison
from traceprof.errors import TraceError
from traceprof.model.grouping import grouped_by
from traceprof.model.results import Note, Result
from traceprof.model.table import Names, Table
from traceprof.snapshots import MEMORY_NAME
from traceprof.snapshots.kinds import ascending, kinds_of, optimizer_spans, origins_of
from traceprof.snapshots.reading import LIVE, DeviceMemory, read_snapshot, unpacked_bytes
from traceprof.snapshots.replay import BEFORE, Replay, out_of_memory, replay, unaccounted_bytes
from traceprof.snapshots.specs import ABOUT, COLUMNS, KINDS, SPECS
from traceprof.workers.limited import Limited, OutOfTimeError, ProcessDiedError

_MOST_POINTS: Final = 600
_LEAST_TOLD: Final = 0.0005
"""Less would be printed as 0.0 %."""
_PEAK, _RAN_OUT, _END = "at the peak", "when memory ran out", "at the end"
_STEPS_OF_GROWTH: Final = 3
_MUCH_MORE: Final = 1.25
_LEAST_S, _S_PER_MB = 30.0, 4.0
_LEAST_BYTES, _PER_BYTE = 512 << 20, 32
"""An event takes 60 bytes of a pickle; it, its stack and what is measured of it 1000 of memory."""
_EXPANDABLE: Final = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True, eq=False)
class _Device:
    """One device of one snapshot, and what its events tell."""

    name: str
    memory: DeviceMemory

    @cached_property
    def replayed(self) -> Replay:
        return replay(self.memory)

    @cached_property
    def origins(self) -> list[Any]:
        return origins_of(self.replayed)

    @cached_property
    def lives(self) -> Table:
        """What lived, with its kind, and the row of its origin's place."""
        lives = self.replayed.lives
        return lives.assign(kind=kinds_of(self.replayed, self.origins))

    @property
    def keys(self) -> dict[str, Any]:
        return {"snapshot": self.name, "device": self.memory.device}

    def instants(self) -> dict[str, int]:
        """Return the events after which is looked, by what they are called."""
        if not self.replayed.n_events:
            return {_END: BEFORE}
        found = {_PEAK: self.replayed.peak}
        failed = out_of_memory(self.replayed)
        if failed is not None:
            found[_RAN_OUT] = failed
        end = self.replayed.n_events - 1
        if found[_PEAK] != end:
            found[_END] = end
        return found

    def alive_at(self, event: int) -> Table:
        return self.lives.take((self.lives["start"] <= event) & (self.lives["end"] > event))


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """What held the memory of one snapshot's devices: rows by the result that they are of."""

    rows: dict[str, list[dict[str, Any]]]
    curves: list[Table]
    verdict: list[Note]
    notes: list[Note]


def memory(paths: Sequence[Path]) -> Comparison:
    """Return what held the memory of devices in the snapshots of ``paths``.

    A process whose time and memory are bounded by the size of each file reads them.

    Raises:
        TraceError: one cannot be read, is no snapshot, or takes more time or memory than it may.
    """
    sizes = [unpacked_bytes(path) for path in paths]
    most_bytes = _LEAST_BYTES + _PER_BYTE * max(sizes, default=0)
    with Limited(_measure_each, list(paths), most_bytes=most_bytes) as reader:
        found = [_answer(reader, *one) for one in zip(paths, sizes, strict=True)]
    rows = {name: [row for one in found for row in one.rows[name]] for name in SPECS}
    results = {
        name: Result(name, spec, {spec.tables[0].name: spec.tables[0].of_rows(rows[name])})
        for name, spec in SPECS.items()
        if rows[name] or name == MEMORY_NAME
    }
    curves = [curve for one in found for curve in one.curves]
    if curves:
        results[MEMORY_NAME] = results[MEMORY_NAME].with_table(Table.stacked(curves), "curve")
    verdict = tuple(note for one in found for note in one.verdict)
    return Comparison(
        ", ".join(path.name for path in paths),
        results,
        verdict=verdict or (Note("The allocator held no GPU memory."),),
        notes=tuple({repr(note): note for one in found for note in one.notes}.values()),
        about=ABOUT,
    )


def _answer(reader: Limited, path: Path, n_bytes: int) -> _Measured:
    """Return what the process measures of the next snapshot."""
    most_s = _LEAST_S + _S_PER_MB * n_bytes / 1e6
    try:
        found: _Measured = reader.answer(most_s)
    except OutOfTimeError as error:
        raise TraceError(
            f"{path}: reading the snapshot takes more than {most_s:.0f} s, too long for its size; "
            "the file may be damaged"
        ) from error
    except (MemoryError, ProcessDiedError) as error:
        raise TraceError(f"{path}: reading it takes too much memory for its size") from error
    return found


def _measure_each(_parts: Iterator[Any], paths: Sequence[Path]) -> Iterator[_Measured]:
    for path in paths:
        yield _measure([_Device(path.name, one) for one in read_snapshot(path).devices])


def _measure(devices: Sequence[_Device]) -> _Measured:
    found = _Measured({name: [] for name in SPECS}, [], [], [])
    for one in devices:
        rows = _rows(one)
        for name, own in rows.items():
            found.rows[name].extend(own)
        found.curves.append(_curve(one))
        found.verdict.extend(_verdict(one, rows))
        found.notes.extend(_notes(one))
    return found


def _rows(one: _Device) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SPECS}
    rows[MEMORY_NAME] = [_row(one)]
    for when, event in one.instants().items():
        alive = one.alive_at(event)
        rows["kinds"] += _by_kind(one, when, alive)
        rows["holders"] += _holders(one, when, alive)
    rows["steps"] = _steps(one)
    rows["growth"] = _growth(one, rows["steps"])
    return rows


def _row(one: _Device) -> dict[str, Any]:
    replayed, blocks = one.replayed, one.memory.blocks
    is_live = blocks["state"] == LIVE
    reserved = int(one.memory.segments["size_bytes"].sum())
    unused = blocks["size_bytes"][blocks["state"] == "inactive"]
    at_ns = replayed.at_ns(replayed.peak)
    failed = out_of_memory(replayed)
    events = one.memory.events
    left = -1 if failed is None else int(events["free_bytes"][failed])
    return one.keys | {
        "peak_bytes": replayed.level_at(replayed.peak),
        "peak_at_ns": at_ns if at_ns >= 0 else None,
        "start_bytes": int(replayed.level_bytes[0]),
        "end_bytes": int(replayed.level_bytes[-1]),
        "most_reserved_bytes": int(replayed.reserved_bytes.max()),
        "reserved_bytes": reserved,
        "rounding_bytes": int((blocks["size_bytes"] - blocks["requested_bytes"])[is_live].sum()),
        "unused_bytes": int(unused.sum()),
        "largest_unused_bytes": int(unused.max(initial=0)),
        "unused_ratio": int(unused.sum()) / reserved if reserved else None,
        "allocations_count": int((events["action"] == "alloc").sum()),
        "out_of_memory_count": int((events["action"] == "oom").sum()),
        "asked_bytes": None if failed is None else int(events["size_bytes"][failed]),
        "device_free_bytes": left if left >= 0 else None,
    }


def _by_kind(one: _Device, when: str, alive: Table) -> list[dict[str, Any]]:
    whole = int(alive["size_bytes"].sum())
    found = []
    for kind in KINDS:
        sizes = alive["size_bytes"][alive["kind"] == kind]
        if len(sizes):
            own = int(sizes.sum())
            share = own / whole if whole else None
            told = {"held_bytes": own, "held_ratio": share, "allocations_count": len(sizes)}
            found.append(one.keys | {"when": when, "kind": kind} | told)
    return found


def _placed(one: _Device, lives: Table) -> Table:
    """Return ``lives`` with the texts of where they came from."""
    stack = lives["stack"]
    names = ("place", "operator", "module", "calls")
    return lives.assign(
        **{
            name: Names.coded([getattr(origin, name) for origin in one.origins], stack)
            for name in names
        }
    )


def _holders(one: _Device, when: str, alive: Table) -> list[dict[str, Any]]:
    if not len(alive):
        return []
    placed = _placed(one, alive)
    by = ("kind", "place", "operator", "module")
    _, groups = grouped_by(placed, *by)
    sizes = groups.sums(placed["size_bytes"])
    largest = groups.reduced(np.maximum, placed["size_bytes"])
    first = [int(rows[0]) for rows in groups.rows]
    whole = int(alive["size_bytes"].sum())
    found = [
        one.keys
        | {"when": when}
        | {name: placed[name][row] for name in by}
        | {
            "held_bytes": int(sizes[i]),
            "held_ratio": int(sizes[i]) / whole if whole else None,
            "allocations_count": int(groups.counts[i]),
            "largest_bytes": int(largest[i]),
            "calls": placed["calls"][row],
        }
        for i, row in enumerate(first)
    ]
    return sorted(found, key=lambda row: -row["held_bytes"])


def _ends_of_steps(one: _Device) -> list[int]:
    """Return the last event of each step, by our own hooks or by torch's spans of optimizers."""
    at_ns = one.memory.events["at_ns"]
    ends_ns = one.memory.step_ends_ns
    if not len(ends_ns):
        ends_ns = np.sort(optimizer_spans(one.memory.spans)["end_ns"])
    if not len(at_ns) or at_ns[0] < 0:
        return []
    return [int(at) - 1 for at in np.searchsorted(ascending(at_ns), ends_ns, "right")]


def _steps(one: _Device) -> list[dict[str, Any]]:
    ends = _ends_of_steps(one)
    levels, found, begin = one.replayed.level_bytes, [], 0
    for number, end in enumerate(ends):
        level = int(levels[end + 1])
        grown = level - int(levels[ends[number - 1] + 1]) if number else None
        peak = int(levels[begin : end + 2].max())
        told = {"step": number, "peak_bytes": peak, "end_bytes": level, "grown_bytes": grown}
        found.append(one.keys | told)
        begin = end + 1
    return found


def _growth(one: _Device, steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what stayed of each of several steps, where all the memory grows with each."""
    grown = [row["grown_bytes"] for row in steps[1:]]
    if len(grown) < _STEPS_OF_GROWTH - 1 or min(grown) <= 0:
        return []
    ends = np.array(_ends_of_steps(one))
    start = one.lives["start"]
    # What is made in the last step may be freed in the next one, which is not there.
    stays = (start > ends[0]) & (start <= ends[-2]) & (one.lives["end"] > ends[-1])
    placed = _placed(one, one.lives.take(stays))
    if not len(placed):
        return []
    step = np.searchsorted(ends, placed["start"])
    _, groups = grouped_by(placed, "place", "operator")
    found = []
    for rows in groups.rows:
        _, of_step = np.unique(step[rows], return_inverse=True)
        per_step = np.bincount(of_step, placed["size_bytes"][rows])
        per_step = per_step[per_step > 0]
        names = {name: placed[name][int(rows[0])] for name in ("place", "operator", "calls")}
        told = {"per_step_bytes": float(np.median(per_step)), "steps_count": len(per_step)}
        held = int(placed["size_bytes"][rows].sum())
        found.append(one.keys | names | told | {"held_bytes": held})
    return sorted(found, key=lambda row: -row["held_bytes"])


def _curve(one: _Device) -> Table:
    """Return the level over time, of each of equal numbers of events where it was highest."""
    replayed, n_events = one.replayed, one.replayed.n_events
    cuts = np.unique(np.linspace(0, n_events + 1, _MOST_POINTS + 1).astype(int))
    levels = replayed.level_bytes
    pairs = zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    shown = np.unique([at + int(levels[at:end].argmax()) for at, end in pairs if end > at] or [0])
    shown = np.unique(np.append(shown, [0, n_events]))
    columns: dict[str, Any] = {}
    for kind, column in COLUMNS.items():
        own = one.lives.take(one.lives["kind"] == kind)
        if len(own):
            changes = np.zeros(n_events + 2, np.int64)
            np.add.at(changes, own["start"] + 1, own["size_bytes"])
            np.subtract.at(changes, own["end"] + 1, own["size_bytes"])
            columns[column] = np.cumsum(changes)[shown].astype(np.float64)
        else:
            columns[column] = np.full(len(shown), np.nan)
    after = [replayed.at_ns(int(event)) for event in shown - 1]
    keys = {"snapshot": Names.repeated(one.name, len(shown)), "device": one.memory.device}
    return Table(
        keys
        | {
            "event": shown - 1,
            "after_ns": np.where(np.array(after) < 0, np.nan, after),
            "allocated_bytes": levels[shown],
            "reserved_bytes": replayed.reserved_bytes[shown],
        }
        | columns
    )


def _verdict(one: _Device, rows: dict[str, list[dict[str, Any]]]) -> Iterator[Note]:
    (row,) = rows[MEMORY_NAME]
    of_device = rows["kinds"]
    name = f"{one.name}, device {one.memory.device}"
    if row["out_of_memory_count"]:
        yield from _of_failure(name, row)
    when = _RAN_OUT if row["out_of_memory_count"] else of_device[0]["when"] if of_device else _PEAK
    kinds = sorted(
        (own for own in of_device if own["when"] == when), key=lambda own: -own["held_bytes"]
    )
    if kinds:
        shown = [own for own in kinds[:4] if own["held_ratio"] >= _LEAST_TOLD]
        said = ", ".join(f"{{part{i}:ratio}} {own['kind']}" for i, own in enumerate(shown))
        parts = {f"part{i}": own["held_ratio"] for i, own in enumerate(shown)}
        values = {"name": name, "level": sum(own["held_bytes"] for own in kinds), "when": when}
        yield Note.of(f"{{name}}: {{level:bytes}} allocated {{when}}: {said}", **values, **parts)
    first = next((own for own in rows["holders"] if own["when"] == when and own["place"]), None)
    if first is not None:
        yield Note.of(
            "Largest holder with a recorded stack: {place} ({what}), {held:bytes} in {n:count} "
            "allocation(s)",
            place=first["place"],
            what=", ".join(filter(None, (first["kind"], first["operator"]))),
            held=first["held_bytes"],
            n=first["allocations_count"],
        )
    growth = rows["growth"]
    if growth:
        yield Note.of(
            "Memory grows by {size:bytes} per step, allocated by {place}. Check for references "
            "that are kept across steps, such as a list of losses or a tensor with its graph.",
            size=growth[0]["per_step_bytes"],
            place=growth[0]["place"] or growth[0]["operator"] or "code without a recorded stack",
        )


def _of_failure(name: str, row: dict[str, Any]) -> Iterator[Note]:
    yield Note.of(
        "{name}: out of memory: {asked:bytes} requested", name=name, asked=row["asked_bytes"]
    )
    if row["device_free_bytes"] is not None:
        yield Note.of("Free GPU memory: {free:bytes}", free=row["device_free_bytes"])
    if row["unused_bytes"] >= row["asked_bytes"] > row["largest_unused_bytes"]:
        yield Note.of(
            "Fragmentation: {unused:bytes} are reserved but unused, in blocks of at most "
            "{largest:bytes}. Try {setting}.",
            unused=row["unused_bytes"],
            largest=row["largest_unused_bytes"],
            setting=_EXPANDABLE,
        )


def _notes(one: _Device) -> Iterator[Note]:
    if not one.replayed.n_events:
        yield Note(
            "The snapshot contains no allocation history, only the final state. Call "
            "torch.cuda.memory._record_memory_history() first, or record with --memory."
        )
        return
    yield Note(
        "Memory categories are inferred from stacks and lifetimes unless tensors have names."
    )
    lost = unaccounted_bytes(one.replayed)
    if lost:
        yield Note.of(
            "Some events were lost: the events and the blocks differ by {lost:bytes}.",
            lost=abs(lost),
        )
    most, level = int(one.replayed.reserved_bytes.max()), one.replayed.level_at(one.replayed.peak)
    if level and most > _MUCH_MORE * level:
        yield Note.of(
            "The allocator reserved up to {most:bytes}, but at most {level:bytes} were allocated "
            "at a time. Cause: fragmentation, or memory cached before the recording.",
            most=most,
            level=level,
        )

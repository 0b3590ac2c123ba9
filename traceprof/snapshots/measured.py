"""Measure what held GPU memory, from the allocator's events: the answer of `traceprof memory`."""

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
from traceprof.snapshots.advice import advice_note, advice_rows
from traceprof.snapshots.kinds import (
    ascending,
    find_origins,
    kinds_of,
    optimizer_spans,
    stack_rows,
    with_origins,
)
from traceprof.snapshots.reading import LIVE, DeviceMemory, read_snapshot, unpacked_bytes
from traceprof.snapshots.replay import BEFORE, Replay, out_of_memory, replay, unaccounted_bytes
from traceprof.snapshots.specs import ABOUT, COLUMNS, KINDS, SPECS, STACKS
from traceprof.workers.limited import Limited, OutOfTimeError, ProcessDiedError

_MAX_POINTS: Final = 600
_MIN_REPORTED_RATIO: Final = 0.0005
"""Smallest share that is reported; a smaller one would be printed as 0.0%."""
_MAX_ADVICE: Final = 3
_ROWS: Final = (*SPECS, STACKS)
_PEAK, _RAN_OUT, _END = "at the peak", "when memory ran out", "at the end"
_MIN_STEPS_OF_GROWTH: Final = 3
_MIN_RESERVED_FACTOR: Final = 1.25
_MIN_UNUSED_RATIO: Final = 0.02
"""With less unused memory, fragmentation is not the problem."""
_MIN_LIMIT_S, _LIMIT_S_PER_MB = 30.0, 4.0
_MIN_LIMIT_BYTES, _LIMIT_BYTES_PER_BYTE = 512 << 20, 32
"""Memory limit per byte of the file.

An event takes 60 bytes of a pickle. The event, its stack, and its measures take 1000 bytes of
memory.
"""
_EXPANDABLE: Final = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True, eq=False)
class _Device:
    """One device of a snapshot, with cached results of its events."""

    name: str
    memory: DeviceMemory

    @cached_property
    def replayed(self) -> Replay:
        return replay(self.memory)

    @cached_property
    def origins(self) -> list[Any]:
        return find_origins(self.replayed)

    @cached_property
    def lives(self) -> Table:
        """The allocations with their kinds."""
        return self.replayed.lives.assign(kind=kinds_of(self.replayed, self.origins))

    @property
    def keys(self) -> dict[str, Any]:
        return {"snapshot": self.name, "device": self.memory.device}

    def instants(self) -> dict[str, int]:
        """Return the events after which memory is analyzed, by the name of the instant."""
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
    """The results for the devices of a snapshot; ``rows`` are by result name."""

    rows: dict[str, list[dict[str, Any]]]
    curves: list[Table]
    verdict: list[Note]
    notes: list[Note]


def memory(paths: Sequence[Path]) -> Comparison:
    """Return what held GPU memory in the snapshots of ``paths``.

    A process with limits on time and memory, which depend on the file size, reads each file.

    Raises:
        TraceError: a file cannot be read, is not a snapshot, or exceeds the limits.
    """
    sizes = [unpacked_bytes(path) for path in paths]
    most_bytes = _MIN_LIMIT_BYTES + _LIMIT_BYTES_PER_BYTE * max(sizes, default=0)
    with Limited(_measure_each, list(paths), most_bytes=most_bytes) as reader:
        found = [_answer(reader, *measured) for measured in zip(paths, sizes, strict=True)]
    rows = {name: [row for measured in found for row in measured.rows[name]] for name in _ROWS}
    results = {
        name: Result(name, spec, {spec.tables[0].name: spec.tables[0].of_rows(rows[name])})
        for name, spec in SPECS.items()
        if rows[name] or name == MEMORY_NAME
    }
    curves = [curve for measured in found for curve in measured.curves]
    if "holders" in results:
        table = results["holders"].spec.tables[1].of_rows(rows[STACKS])
        results["holders"] = results["holders"].with_table(table, STACKS)
    if curves:
        results[MEMORY_NAME] = results[MEMORY_NAME].with_table(Table.stacked(curves), "curve")
    verdict = tuple(note for measured in found for note in measured.verdict)
    return Comparison(
        ", ".join(path.name for path in paths),
        results,
        verdict=verdict or (Note("The allocator held no GPU memory."),),
        notes=tuple({repr(note): note for measured in found for note in measured.notes}.values()),
        about=ABOUT,
    )


def _answer(reader: Limited, path: Path, n_bytes: int) -> _Measured:
    """Return the results of the process for the next snapshot."""
    most_s = _MIN_LIMIT_S + _LIMIT_S_PER_MB * n_bytes / 1e6
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
        yield _measure([_Device(path.name, device) for device in read_snapshot(path).devices])


def _measure(devices: Sequence[_Device]) -> _Measured:
    found = _Measured({name: [] for name in _ROWS}, [], [], [])
    for device in devices:
        rows = _device_rows(device)
        for name, result_rows in rows.items():
            found.rows[name].extend(result_rows)
        found.curves.append(_curve(device))
        found.verdict.extend(_verdict(device, rows))
        found.notes.extend(_notes(device))
    return found


def _device_rows(device: _Device) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _ROWS}
    rows[MEMORY_NAME] = [_device_row(device)]
    for when, event in device.instants().items():
        alive = device.alive_at(event)
        rows["kinds"] += _kind_rows(device, when, alive)
        rows["holders"] += _holder_rows(device, when, alive)
        stacks = stack_rows(with_origins(alive, device.origins))
        rows[STACKS] += [device.keys | {"when": when} | row for row in stacks]
    rows["steps"] = _step_rows(device)
    rows["growth"] = _growth_rows(device, rows["steps"])
    placed = with_origins(device.lives, device.origins)
    steps_end = np.array(_last_events_of_steps(device), np.int64)
    rows["advice"] = [device.keys | row for row in advice_rows(device.replayed, placed, steps_end)]
    return rows


def _device_row(device: _Device) -> dict[str, Any]:
    replayed, blocks = device.replayed, device.memory.blocks
    is_live = blocks["state"] == LIVE
    reserved = int(device.memory.segments["size_bytes"].sum())
    unused = blocks["size_bytes"][blocks["state"] == "inactive"]
    at_ns = replayed.at_ns(replayed.peak)
    failed = out_of_memory(replayed)
    events = device.memory.events
    left = -1 if failed is None else int(events["free_bytes"][failed])
    return device.keys | {
        "peak_bytes": replayed.level_at(replayed.peak),
        "peak_at_ns": at_ns if at_ns >= 0 else None,
        "start_bytes": int(replayed.level_bytes[0]),
        "end_bytes": int(replayed.level_bytes[-1]),
        "most_reserved_bytes": int(replayed.reserved_bytes.max()),
        "reserved_bytes": reserved,
        "rounding_bytes": int((blocks["size_bytes"] - blocks["requested_bytes"])[is_live].sum()),
        "unused_at_end_bytes": int(unused.sum()),
        "largest_unused_at_end_bytes": int(unused.max(initial=0)),
        "unused_at_end_ratio": int(unused.sum()) / reserved if reserved else None,
        "allocations_count": int((events["action"] == "alloc").sum()),
        "out_of_memory_count": int((events["action"] == "oom").sum()),
        "asked_bytes": None if failed is None else int(events["size_bytes"][failed]),
        "device_free_bytes": left if left >= 0 else None,
    }


def _kind_rows(device: _Device, when: str, alive: Table) -> list[dict[str, Any]]:
    whole = int(alive["size_bytes"].sum())
    found = []
    for kind in KINDS:
        sizes = alive["size_bytes"][alive["kind"] == kind]
        if len(sizes):
            held = int(sizes.sum())
            found.append(
                device.keys
                | {
                    "when": when,
                    "kind": kind,
                    "held_bytes": held,
                    "held_ratio": held / whole if whole else None,
                    "allocations_count": len(sizes),
                }
            )
    return found


def _holder_rows(device: _Device, when: str, alive: Table) -> list[dict[str, Any]]:
    """Return a row per kind, source line, operator, and module, the largest memory first."""
    if not len(alive):
        return []
    placed = with_origins(alive, device.origins)
    by = ("kind", "place", "operator", "module")
    _, groups = grouped_by(placed, *by)
    sizes = groups.sums(placed["size_bytes"])
    largest = groups.reduced(np.maximum, placed["size_bytes"])
    first_rows = [int(rows[0]) for rows in groups.rows]
    whole = int(alive["size_bytes"].sum())
    found = [
        device.keys
        | {"when": when}
        | {name: placed[name][row] for name in by}
        | {
            "held_bytes": int(sizes[i]),
            "held_ratio": int(sizes[i]) / whole if whole else None,
            "allocations_count": int(groups.counts[i]),
            "largest_bytes": int(largest[i]),
            "calls": placed["calls"][row],
        }
        for i, row in enumerate(first_rows)
    ]
    return sorted(found, key=lambda row: -row["held_bytes"])


def _last_events_of_steps(device: _Device) -> list[int]:
    """Return the last event of each step, from our own hooks or from torch's optimizer spans."""
    at_ns = device.memory.events["at_ns"]
    ends_ns = device.memory.step_ends_ns
    if not len(ends_ns):
        ends_ns = np.sort(optimizer_spans(device.memory.spans)["end_ns"])
    if not len(at_ns) or at_ns[0] < 0:
        return []
    return [int(at) - 1 for at in np.searchsorted(ascending(at_ns), ends_ns, "right")]


def _step_rows(device: _Device) -> list[dict[str, Any]]:
    ends = _last_events_of_steps(device)
    levels, found, begin = device.replayed.level_bytes, [], 0
    for number, end in enumerate(ends):
        level = int(levels[end + 1])
        grown = level - int(levels[ends[number - 1] + 1]) if number else None
        found.append(
            device.keys
            | {
                "step": number,
                "peak_bytes": int(levels[begin : end + 2].max()),
                "end_bytes": level,
                "grown_bytes": grown,
            }
        )
        begin = end + 1
    return found


def _growth_rows(device: _Device, steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each step leaves allocated, if the allocated memory grows in every step."""
    grown = [row["grown_bytes"] for row in steps[1:]]
    if len(grown) < _MIN_STEPS_OF_GROWTH - 1 or min(grown) <= 0:
        return []
    ends = np.array(_last_events_of_steps(device))
    start = device.lives["start"]
    # Memory of the last step may be freed in the next one, which was not recorded.
    stays = (start > ends[0]) & (start <= ends[-2]) & (device.lives["end"] > ends[-1])
    placed = with_origins(device.lives.take(stays), device.origins)
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
        found.append(
            device.keys
            | names
            | {
                "per_step_bytes": float(np.median(per_step)),
                "steps_count": len(per_step),
                "held_bytes": int(placed["size_bytes"][rows].sum()),
            }
        )
    return sorted(found, key=lambda row: -row["held_bytes"])


def _curve(device: _Device) -> Table:
    """Return allocated memory over time, with the highest level of each group of events.

    The groups have equal numbers of events.
    """
    replayed, n_events = device.replayed, device.replayed.n_events
    cuts = np.unique(np.linspace(0, n_events + 1, _MAX_POINTS + 1).astype(int))
    levels = replayed.level_bytes
    pairs = zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    shown = np.unique([at + int(levels[at:end].argmax()) for at, end in pairs if end > at] or [0])
    shown = np.unique(np.append(shown, [0, n_events]))
    columns: dict[str, Any] = {}
    for kind, column in COLUMNS.items():
        lives = device.lives.take(device.lives["kind"] == kind)
        if len(lives):
            changes = np.zeros(n_events + 2, np.int64)
            np.add.at(changes, lives["start"] + 1, lives["size_bytes"])
            np.subtract.at(changes, lives["end"] + 1, lives["size_bytes"])
            columns[column] = np.cumsum(changes)[shown].astype(np.float64)
        else:
            columns[column] = np.full(len(shown), np.nan)
    after = [replayed.at_ns(int(event)) for event in shown - 1]
    keys = {"snapshot": Names.repeated(device.name, len(shown)), "device": device.memory.device}
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


def _verdict(device: _Device, rows: dict[str, list[dict[str, Any]]]) -> Iterator[Note]:
    """Yield the main statements about a device: failure, categories, largest holder, growth."""
    (row,) = rows[MEMORY_NAME]
    kind_rows = rows["kinds"]
    name = f"{device.name}, device {device.memory.device}"
    if row["out_of_memory_count"]:
        yield from _failure_notes(name, row)
    when = _RAN_OUT if row["out_of_memory_count"] else kind_rows[0]["when"] if kind_rows else _PEAK
    kinds = sorted(
        (entry for entry in kind_rows if entry["when"] == when),
        key=lambda entry: -entry["held_bytes"],
    )
    if kinds:
        shown = [entry for entry in kinds[:4] if entry["held_ratio"] >= _MIN_REPORTED_RATIO]
        parts_text = ", ".join(
            f"{{part{i}:ratio}} {entry['kind']}" for i, entry in enumerate(shown)
        )
        parts = {f"part{i}": entry["held_ratio"] for i, entry in enumerate(shown)}
        values = {"name": name, "level": sum(entry["held_bytes"] for entry in kinds), "when": when}
        yield Note.of(
            f"{{name}}: {{level:bytes}} allocated {{when}}: {parts_text}", **values, **parts
        )
    largest = next(
        (entry for entry in rows["holders"] if entry["when"] == when and entry["place"]), None
    )
    if largest is not None:
        yield Note.of(
            "Largest holder with a recorded stack: {place} ({what}), {held:bytes} in {n:count} "
            "allocation(s)",
            place=largest["place"],
            what=", ".join(filter(None, (largest["kind"], largest["operator"]))),
            held=largest["held_bytes"],
            n=largest["allocations_count"],
        )
    for advice in rows["advice"][:_MAX_ADVICE]:
        yield advice_note(advice)
    growth = rows["growth"]
    if growth:
        yield Note.of(
            "Memory grows by {size:bytes} per step, allocated by {place}. Check for references "
            "that are kept across steps, such as a list of losses or a tensor with its graph.",
            size=growth[0]["per_step_bytes"],
            place=growth[0]["place"] or growth[0]["operator"] or "code without a recorded stack",
        )


def _failure_notes(name: str, row: dict[str, Any]) -> Iterator[Note]:
    yield Note.of(
        "{name}: out of memory: {asked:bytes} requested", name=name, asked=row["asked_bytes"]
    )
    if row["device_free_bytes"] is not None:
        yield Note.of("Free GPU memory: {free:bytes}", free=row["device_free_bytes"])
    is_much = (row["unused_at_end_ratio"] or 0.0) >= _MIN_UNUSED_RATIO
    if (
        is_much
        and row["unused_at_end_bytes"] >= row["asked_bytes"] > row["largest_unused_at_end_bytes"]
    ):
        yield Note.of(
            "Fragmentation: {unused:bytes} are reserved but unused, in blocks of at most "
            "{largest:bytes}. Try {setting}.",
            unused=row["unused_at_end_bytes"],
            largest=row["largest_unused_at_end_bytes"],
            setting=_EXPANDABLE,
        )


def _notes(device: _Device) -> Iterator[Note]:
    if not device.replayed.n_events:
        yield Note(
            "The snapshot contains no allocation history, only the final state. Call "
            "torch.cuda.memory._record_memory_history() first, or record with --memory."
        )
        return
    yield Note(
        "Memory categories are inferred from stacks and lifetimes unless tensors have names."
    )
    lost = unaccounted_bytes(device.replayed)
    if lost:
        yield Note.of(
            "Some events were lost: the events and the blocks differ by {lost:bytes}.",
            lost=abs(lost),
        )
    most, level = (
        int(device.replayed.reserved_bytes.max()),
        device.replayed.level_at(device.replayed.peak),
    )
    if level and most > _MIN_RESERVED_FACTOR * level:
        yield Note.of(
            "The allocator reserved up to {most:bytes}, but at most {level:bytes} were allocated "
            "at a time. Cause: fragmentation, or memory cached before the recording.",
            most=most,
            level=level,
        )

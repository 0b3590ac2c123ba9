"""``tensorboard``: scalars of every step, a run of TensorBoard for each rank.

The files are records with checksums, each an ``Event`` of protobuf. Only the few fields that
scalars need are written; their numbers are those of TensorFlow's ``event.proto`` and
``summary.proto``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.export.request import Export, Exported, Request
from traceprof.files import new_folder
from traceprof.model.activity import PARTS
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.render.formatting import is_known, note_text
from traceprof.session.answer import Document, answer
from traceprof.session.run import Run
from traceprof.units import NS_PER_MS, NS_PER_S

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, reflected
_MASK_DELTA: Final = 0xA282EAD8
_32_BITS: Final = 0xFFFFFFFF
_64_BITS: Final = 0xFFFFFFFFFFFFFFFF

# Kinds of protobuf's wire format.
_VARINT: Final = 0
_FIXED_64: Final = 1
_LENGTH: Final = 2
_FIXED_32: Final = 5


def _table() -> tuple[int, ...]:
    values = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        values.append(crc)
    return tuple(values)


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``, as iSCSI defines it."""
    crc = _32_BITS
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ _32_BITS


def record(data: bytes) -> bytes:
    """Return ``data`` as a record: its length, the data, and a masked checksum of either."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & _32_BITS)


def version_event(wall_time_s: float) -> bytes:
    """Return what a file begins with: which version of events it has."""
    return _wall_time(wall_time_s) + _text_field(3, "brain.Event:2")


def scalars_event(wall_time_s: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return the scalars of a step by their tags; they are kept in single precision."""
    summary = b"".join(
        _bytes_field(1, _text_field(1, tag) + _key(2, _FIXED_32) + struct.pack("<f", value))
        for tag, value in values.items()
    )
    step_field = _key(2, _VARINT) + _varint(step & _64_BITS)
    return _wall_time(wall_time_s) + step_field + _bytes_field(5, summary)


def _wall_time(seconds: float) -> bytes:
    return _key(1, _FIXED_64) + struct.pack("<d", seconds)


def _text_field(number: int, text: str) -> bytes:
    return _bytes_field(number, text.encode("utf-8", "replace"))


def _bytes_field(number: int, data: bytes) -> bytes:
    return _key(number, _LENGTH) + _varint(len(data)) + data


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_STEPS: Final = "steps"
_COLLECTIVES: Final = "collective-events"
_ROUTES: Final = ("h2d", "d2h")


def _export(run: Run, request: Request) -> Exported:
    if request.tables is not None:
        raise UsageError(
            "--tables cannot be used with --to tensorboard, which writes scalars per step"
        )
    done = Exported(request.output)
    everything = run.within("all") if run.window is None else run
    document = answer(everything, (_STEPS, _COLLECTIVES))
    steps = _steps(document)
    names = _names(run, steps, request)
    rates = _bus_rates(document)
    epoch_ns = document.info.utc_epoch_ns
    if epoch_ns is None:
        done.remark(
            "wall-clock time was not recorded; times are seconds since the start of the run"
        )
    zero_ns = 0 if epoch_ns is None else epoch_ns + document.span.start_ns
    if document.results[_STEPS].scalars["is_pattern"]:
        done.remark(
            "no step markers found; the steps are iterations detected from the kernel sequence"
        )
    with new_folder(request.output) as folder:
        for process, name in names.items():
            own = steps.take(steps["process"] == process)
            # Sums that other processes have, and this one nowhere, are no zeros.
            sums = [f"{route}_bytes" for route in _ROUTES if f"{route}_bytes" in own]
            rows = own.without(*(name for name in sums if not own[name].any())).rows()
            done.n_rows += _write(folder / name, rows, rates, zero_ns)
    return done


def _steps(document: Document) -> Table:
    """Return the table of steps."""
    result = document.results.get(_STEPS)
    if result is None or result.table.empty:
        why = document.missing.get(_STEPS) if result is None else note_text(result.notes[0])
        raise UsageError(f"nothing to write: {why}")
    return result.table


def _names(run: Run, steps: Table, request: Request) -> dict[int, str]:
    """Return what the run of each process is called: by its rank where that is known."""
    table = run.within("all").of_ranks(frozenset({"processes"})).whole.table("processes")
    ranks = dict(zip(table["process"].tolist(), table["rank"].tolist(), strict=True))
    processes = list(dict.fromkeys(steps["process"].tolist()))
    own = {process: int(ranks.get(process, ABSENT)) for process in processes}
    if request.ranks is not None:
        if missing := sorted({*request.ranks} - {*own.values()}):
            known = ", ".join(map(str, sorted({*own.values()} - {ABSENT}))) or "none"
            told = ", ".join(map(str, missing))
            raise UsageError(f"--ranks: no steps of rank {told}; choose from {known}")
        own = {process: rank for process, rank in own.items() if rank in request.ranks}
    several = [rank for rank in own.values() if list(own.values()).count(rank) > 1]
    return {process: _name(process, rank, several) for process, rank in own.items()}


def _name(process: int, rank: int, several: list[int]) -> str:
    if rank == ABSENT:
        return f"process_{process}"
    return f"rank_{rank}_process_{process}" if rank in several else f"rank_{rank}"


def _bus_rates(document: Document) -> Mapping[tuple[int, int], float]:
    """Return the bus bandwidth of the collectives of a process and step, weighted by their time."""
    result = document.results.get(_COLLECTIVES)
    wanted = ("process", "step", "duration_ns", "busbw_bytes_per_s")
    if result is None or not {*wanted} <= {*result.table}:
        return {}
    sums: dict[tuple[int, int], tuple[float, float]] = {}
    for process, step, ns, rate in zip(*(result.table[n].tolist() for n in wanted), strict=True):
        if is_known(step) and is_known(rate) and ns > 0:
            weighted, whole = sums.get((process, int(step)), (0.0, 0.0))
            sums[process, int(step)] = weighted + rate * ns, whole + ns
    return {key: weighted / whole for key, (weighted, whole) in sums.items()}


def _write(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    rates: Mapping[tuple[int, int], float],
    zero_ns: int,
) -> int:
    """Write the scalars of one process; return how many."""
    folder.mkdir()
    # TensorBoard looks for "tfevents" in names, and reads files in their order.
    path = folder / f"events.out.tfevents.{zero_ns // NS_PER_S:010}.traceprof"
    count = 0
    with path.open("wb") as file:
        file.write(record(version_event(zero_ns / NS_PER_S)))
        for row in rows:
            values = dict(_scalars(row))
            rate = rates.get((int(row["process"]), int(row["step"])))
            if rate is not None:
                values["bandwidth/busbw_bytes_per_s"] = rate
            end_ns = zero_ns + int(row["at_ns"]) + int(row["duration_ns"])
            file.write(record(scalars_event(end_ns / NS_PER_S, int(row["step"]), values)))
            count += len(values)
    return count


def _scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield what is known of a step by its tag."""
    duration_ns = float(row["duration_ns"])
    yield "step/duration_ms", duration_ns / NS_PER_MS
    if (rate := _known(row, "samples_per_s")) is not None:
        yield "step/samples_per_s", rate
    if (exposed_ns := _known(row, "exposed_communication_ns")) is not None:
        yield "step/exposed_communication_ms", exposed_ns / NS_PER_MS
    parts = {part: _known(row, f"{part}_ns") for part in PARTS}
    whole_ns = sum(value for value in parts.values() if value is not None)
    for part, value in parts.items():
        if value is not None and whole_ns > 0:
            yield f"parts/{part}_ratio", value / whole_ns
    for route in _ROUTES:
        n_bytes = _known(row, f"{route}_bytes")
        if n_bytes is not None and duration_ns > 0:
            yield f"bandwidth/{route}_bytes_per_s", n_bytes / duration_ns * NS_PER_S


def _known(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return None if value is None or math.isnan(value) else float(value)


EXPORTS: Final[Mapping[str, Export]] = {"tensorboard": _export}

"""Export scalars of every step for ``tensorboard``, with one TensorBoard run per rank.

A file is a sequence of records with checksums. Each record is an ``Event`` in protobuf encoding.
traceprof writes only the fields that scalars need, with the field numbers of TensorFlow's
``event.proto`` and ``summary.proto``.
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

_POLYNOMIAL: Final = 0x82F63B78  # the Castagnoli polynomial, bits reflected
_MASK_DELTA: Final = 0xA282EAD8
_32_BITS: Final = 0xFFFFFFFF
_64_BITS: Final = 0xFFFFFFFFFFFFFFFF

# Wire types of protobuf.
_VARINT: Final = 0
_FIXED_64: Final = 1
_LENGTH: Final = 2
_FIXED_32: Final = 5


def _crc_table() -> tuple[int, ...]:
    """Return the CRC-32C of each byte value."""
    values = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        values.append(crc)
    return tuple(values)


_CRC_TABLE: Final = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``, as iSCSI defines it."""
    crc = _32_BITS
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ _32_BITS


def record(data: bytes) -> bytes:
    """Return ``data`` as a record: length, data, and a masked checksum after each of the two."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & _32_BITS)


def version_event(wall_time_s: float) -> bytes:
    """Return the first event of a file, which contains the version of the event format."""
    return _wall_time(wall_time_s) + _text_field(3, "brain.Event:2")


def scalars_event(wall_time_s: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return an event with the scalars of a step, by tag. Values are stored as float32."""
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
    exported = Exported(request.output)
    exported_run = run.within("all") if run.window is None else run
    document = answer(exported_run, (_STEPS, _COLLECTIVES))
    steps = _steps(document)
    names = _run_names(run, steps, request)
    rates = _bus_rates(document)
    epoch_ns = document.info.utc_epoch_ns
    if epoch_ns is None:
        exported.remark(
            "wall-clock time was not recorded; times are seconds since the start of the run"
        )
    zero_ns = 0 if epoch_ns is None else epoch_ns + document.span.start_ns
    if document.results[_STEPS].scalars["is_pattern"]:
        exported.remark(
            "no step markers found; the steps are iterations detected from the kernel sequence"
        )
    with new_folder(request.output) as folder:
        for process, name in names.items():
            process_steps = steps.take(steps["process"] == process)
            # Omit sums that are zero in all steps of this process: they were not recorded.
            sums = [f"{route}_bytes" for route in _ROUTES if f"{route}_bytes" in process_steps]
            rows = process_steps.without(
                *(name for name in sums if not process_steps[name].any())
            ).rows()
            exported.n_rows += _write(folder / name, rows, rates, zero_ns)
    return exported


def _steps(document: Document) -> Table:
    """Return the table of steps.

    Raises:
        UsageError: the run has no steps.
    """
    result = document.results.get(_STEPS)
    if result is None or result.table.empty:
        why = document.missing.get(_STEPS) if result is None else note_text(result.notes[0])
        raise UsageError(f"nothing to write: {why}")
    return result.table


def _run_names(run: Run, steps: Table, request: Request) -> dict[int, str]:
    """Return the name of the TensorBoard run of each process: by its rank, if known.

    Raises:
        UsageError: a selected rank has no steps.
    """
    table = run.within("all").of_ranks(frozenset({"processes"})).whole.table("processes")
    ranks = dict(zip(table["process"].tolist(), table["rank"].tolist(), strict=True))
    processes = list(dict.fromkeys(steps["process"].tolist()))
    process_ranks = {process: int(ranks.get(process, ABSENT)) for process in processes}
    if request.ranks is not None:
        if missing := sorted({*request.ranks} - {*process_ranks.values()}):
            known = ", ".join(map(str, sorted({*process_ranks.values()} - {ABSENT}))) or "none"
            missing_ranks = ", ".join(map(str, missing))
            raise UsageError(f"--ranks: no steps of rank {missing_ranks}; choose from {known}")
        process_ranks = {
            process: rank for process, rank in process_ranks.items() if rank in request.ranks
        }
    ranks_of_steps = list(process_ranks.values())
    shared = [rank for rank in ranks_of_steps if ranks_of_steps.count(rank) > 1]
    return {process: _run_name(process, rank, shared) for process, rank in process_ranks.items()}


def _run_name(process: int, rank: int, shared_ranks: list[int]) -> str:
    """Return the folder name of a process. ``shared_ranks`` are ranks of several processes."""
    if rank == ABSENT:
        return f"process_{process}"
    return f"rank_{rank}_process_{process}" if rank in shared_ranks else f"rank_{rank}"


def _bus_rates(document: Document) -> Mapping[tuple[int, int], float]:
    """Return the mean bus bandwidth of collectives in bytes/s, by process and step.

    The mean is weighted by the durations of the collectives.
    """
    result = document.results.get(_COLLECTIVES)
    columns = ("process", "step", "duration_ns", "busbw_bytes_per_s")
    if result is None or not {*columns} <= {*result.table}:
        return {}
    sums: dict[tuple[int, int], tuple[float, float]] = {}
    for process, step, ns, rate in zip(*(result.table[n].tolist() for n in columns), strict=True):
        if is_known(step) and is_known(rate) and ns > 0:
            weighted_rate, duration_ns = sums.get((process, int(step)), (0.0, 0.0))
            sums[process, int(step)] = weighted_rate + rate * ns, duration_ns + ns
    return {key: weighted_rate / duration_ns for key, (weighted_rate, duration_ns) in sums.items()}


def _write(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    rates: Mapping[tuple[int, int], float],
    zero_ns: int,
) -> int:
    """Write the scalars of one process to a new folder, and return their number.

    ``zero_ns`` is the wall-clock time at the start of the run; 0 if unknown.
    """
    folder.mkdir()
    # TensorBoard reads files with "tfevents" in their names, in the order of the names.
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
    """Yield the tag and value of each known scalar of a step."""
    duration_ns = float(row["duration_ns"])
    yield "step/duration_ms", duration_ns / NS_PER_MS
    if (rate := _known_value(row, "samples_per_s")) is not None:
        yield "step/samples_per_s", rate
    if (exposed_ns := _known_value(row, "exposed_communication_ns")) is not None:
        yield "step/exposed_communication_ms", exposed_ns / NS_PER_MS
    parts = {part: _known_value(row, f"{part}_ns") for part in PARTS}
    whole_ns = sum(value for value in parts.values() if value is not None)
    for part, value in parts.items():
        if value is not None and whole_ns > 0:
            yield f"parts/{part}_ratio", value / whole_ns
    for route in _ROUTES:
        n_bytes = _known_value(row, f"{route}_bytes")
        if n_bytes is not None and duration_ns > 0:
            yield f"bandwidth/{route}_bytes_per_s", n_bytes / duration_ns * NS_PER_S


def _known_value(row: Mapping[str, Any], name: str) -> float | None:
    """Return a value of the row; None if it is missing or NaN."""
    value = row.get(name)
    return None if value is None or math.isnan(value) else float(value)


EXPORTS: Final[Mapping[str, Export]] = {"tensorboard": _export}

"""Collectives of a Kineto trace: PyTorch's description of each call, linked to its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.kineto.parse import KinetoEvent
from traceprof.formats.kineto.rows import ANNOTATIONS, COLLECTIVES, OPERATORS, Rows
from traceprof.formats.kineto.stacks import FUNCTIONS
from traceprof.formats.shared import collectives
from traceprof.model.grouping import find_matching_rows
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.names.messages import collective_op

_CALL: Final = "record_param_comms"
_SIZES: Final = """
    float float32 4, half float16 2, bfloat16 bfloat16 2, double float64 8, long int64 8,
    int int32 4, short int16 2, char int8 1, byte uint8 1, bool bool 1, complexfloat complex64 8,
    complexdouble complex128 16, float8_e4m3fn float8_e4m3fn 1, float8_e5m2 float8_e5m2 1,
    float8_e4m3fnuz float8_e4m3fnuz 1, float8_e5m2fnuz float8_e5m2fnuz 1"""
_DTYPES: Final = {
    name: (plain, int(n_bytes)) for name, plain, n_bytes in map(str.split, _SIZES.split(","))
}
"""Kineto's name of a data type → torch's name, and the bytes of an element."""


def make_collectives(
    rows: Rows, kernels: Table, api_calls: Table, rank_of: Mapping[int, int]
) -> Table:
    """Return the collectives as the CPU issued them, one row each.

    Sizes come from ``record_param_comms`` (since 2023-12) and from the kernels to which Kineto
    copied its arguments, whose call may precede the trace. Older traces contain no sizes. The
    destination of a send is recorded since 2024-07. ``rank_of`` maps processes to their ranks,
    where known. Files of `traceprof export` contain the collectives themselves.
    """
    calls = rows.of("cpu_op")
    calls = calls.where(calls.named(lambda name: name == _CALL) & _has_op(calls))
    device = rows.of("kernel")
    device = device.where(_has_op(device))
    exported = rows.of(*COLLECTIVES)
    if not len(calls) and not len(device) and not len(exported):
        return empty_table("collectives")
    backend, tied = _backend(rows), _by_external_id(calls, device)
    launched = _keys(device, device.number("correlation"))
    orphans = device.where(~np.isin(launched, _keys(calls, tied)))
    parts = [_described(calls, tied, backend, rank_of)] if len(calls) else []
    if len(orphans):
        described = _described(orphans, orphans.number("correlation"), backend, rank_of)
        parts.append(_at_launches(described, api_calls))
    parts += [_exported(exported)] if len(exported) else []
    table = collectives.link_by_launch(stack("collectives", parts), kernels, api_calls)
    return collectives.link_to_batches(table, kernels, api_calls)


def _at_launches(described: Table, api_calls: Table) -> Table:
    """Return collectives that only kernels describe, at the calls that launched these kernels.

    Without a recorded call, the times remain those of the kernel, and the thread is unknown.
    """
    call = find_matching_rows(described, api_calls, "process", "correlation")
    return make_table(
        "collectives",
        {
            **described.columns,
            **{
                name: np.where(call >= 0, np.append(api_calls[name], ABSENT)[call], described[name])
                for name in ("start_ns", "end_ns", "thread")
            },
        },
    )


def is_collective_event(event: KinetoEvent) -> bool:
    """Return whether `make_collectives`, or an annotation, creates a collective from this event."""
    name, category = str(event.name), event.cat or ""
    if collectives.is_annotated(name):
        return category in (*OPERATORS, *ANNOTATIONS, *FUNCTIONS)
    op = event.arguments.collective
    is_place = category == "kernel" or (category == "cpu_op" and name == _CALL)
    return bool(op) and is_place and collective_op(str(op)) != ""


def _described(
    rows: Rows, correlation: npt.NDArray[np.int64], backend: str, rank_of: Mapping[int, int]
) -> Table:
    """Return collectives from the arguments of ``rows``."""
    names = rows.text("dtype")
    dtypes = [_DTYPES.get(name.lower(), (name, ABSENT)) for name in names.texts.tolist()]
    sizes = names.by_text(np.array([n_bytes for _, n_bytes in dtypes], np.int64))
    sent, received = rows.number("In msg nelems"), rows.number("Out msg nelems")
    op = _ops(rows.text("Collective name"))
    # Only the root of a scatter sends, and a receiver sends nothing.
    elements = np.where((sent > 0) & (op != "scatter"), sent, received)
    known = (sizes > 0) & (elements >= 0)

    return make_table(
        "collectives",
        {
            "start_ns": rows.start_ns,
            "end_ns": rows.end_ns,
            "process": rows.owners,
            "thread": np.where(rows.process == rows.owners, rows.thread, ABSENT),
            "op": op,
            "n_bytes": np.where(known, elements * sizes, ABSENT),
            "dtype": Names.coded((name for name, _ in dtypes), names.packed, is_sorted=True),
            "group": rows.text("Process Group Name"),
            "group_size": rows.number("Group size"),
            "backend": Names.repeated(backend, len(rows)),
            "sequence": rows.number("Seq"),
            "correlation": correlation,
            **_ends(rows, op, rank_of),
        },
    )


def _exported(rows: Rows) -> Table:
    """Return the collectives that `traceprof export` wrote."""
    op = _ops(rows.name)
    return make_table(
        "collectives",
        {
            "start_ns": rows.start_ns,
            "end_ns": rows.end_ns,
            "process": rows.owners,
            "thread": rows.number("thread"),
            "op": op,
            "dtype": rows.text("dtype"),
            "n_bytes": rows.number("bytes"),
            "tag": rows.number("tag"),
            "group": rows.text("Process Group Name"),
            "group_size": rows.number("Group size"),
            "group_rank": rows.number("group_rank"),
            "sequence": rows.number("Seq"),
            "peer": rows.number("Rank"),
            "backend": rows.text("backend"),
            "peer_rank": np.where(op == "send", *(rows.number(end) for end in _ENDS)),
            "correlation": rows.number("correlation"),
        },
    )


_ENDS: Final = ("Dst Rank", "Src Rank")
"""The arguments with the rank at the other end of a send, and of a receive."""


def _ends(rows: Rows, ops: Names, rank_of: Mapping[int, int]) -> dict[str, npt.NDArray[np.int64]]:
    """Return group_rank, peer and peer_rank of each call.

    PyTorch abbreviates the list of ranks of a long group; the rank within the group is then
    unknown.
    """
    listed = rows.text("Process Group Ranks")
    members = list(map(_listed_ranks, listed.texts.tolist()))
    places = np.full(len(rows), ABSENT, np.int64)
    for process, rank in rank_of.items():
        places_of_rank = [ranks.index(rank) if rank in ranks else ABSENT for ranks in members]
        is_of_process = rows.owners == process
        places[is_of_process] = listed.by_text(np.array(places_of_rank, np.int64))[is_of_process]
    ends = [rows.number(end) for end in _ENDS]
    sends = ops == "send"
    is_single = sends | (ops == "recv")
    # For other operations "Rank" is the root.
    peer = np.where(is_single, rows.number("Rank"), ABSENT)
    recorded = np.where(is_single, np.where(sends, *ends), ABSENT)
    from_list = [
        members[code][place] if 0 <= place < len(members[code]) else ABSENT
        for code, place in zip(listed.codes.tolist(), peer.tolist(), strict=True)
    ]
    return {
        "group_rank": places,
        "peer": peer,
        "peer_rank": np.where(recorded >= 0, recorded, np.array(from_list, np.int64)),
    }


def _listed_ranks(text: str) -> list[int]:
    """Return the ranks in a text such as "[0, 1, 2]"; empty if it is abbreviated."""
    numbers = [part.strip() for part in text.strip("[] ").split(",")]
    return [int(number) for number in numbers] if all(map(str.isdigit, numbers)) else []


def _backend(rows: Rows) -> str:
    """Return the most frequent backend in the names of annotations; "" if there is none."""
    prefixes = (name.partition(":")[::2] for name in rows.name.texts.tolist())
    found = [
        backend
        for backend, op in prefixes
        if backend in collectives.ANNOTATING_BACKENDS and collective_op(op)
    ]
    return max(set(found), key=found.count) if found else ""


def _ops(names: Names) -> Names:
    return Names.coded(map(collective_op, names.texts.tolist()), names.packed, is_sorted=True)


def _has_op(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which rows name a known collective operation."""
    return _ops(rows.text("Collective name")) != ""


def _keys(rows: Rows, correlation: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a number for each pair of process and correlation; processes count independently."""
    return np.asarray((rows.owners << 40) + correlation, np.int64)


def _by_external_id(calls: Rows, device: Rows) -> npt.NDArray[np.int64]:
    """Return the correlation of the kernel that has the external ID of each call."""
    ids, correlations = (device.number(name).tolist() for name in ("External id", "correlation"))
    kernel = dict(zip(zip(device.owners.tolist(), ids, strict=True), correlations, strict=True))
    keys = zip(calls.owners.tolist(), calls.number("External id").tolist(), strict=True)
    found = [ABSENT if key[1] == ABSENT else kernel.get(key, ABSENT) for key in keys]
    return np.array(found, np.int64)

"""Records and codes of CUPTI, which nsys and nvprof write unchanged; depth of nested ranges."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import distinct, known
from traceprof.model.activity import Activity
from traceprof.model.grouping import codes_of, rows_by_values
from traceprof.model.intervals import nesting_depth
from traceprof.model.packed import Packed
from traceprof.model.table import Column, Names, Table, spill_to_disk
from traceprof.model.tables import TABLES, empty_table, make_table, sort_order
from traceprof.names.classes import UserRule, classify

Place: TypeAlias = Mapping[str, npt.NDArray[np.int64] | Packed]
"""Time and place of GPU activity: start_ns, end_ns, device, stream, process, correlation."""

_CODED_DIRECTIONS: Final = "unknown h2d d2h h2d d2h d2d d2d d2d d2d h2h p2p h2d d2h p2p"
_COPY_DIRECTIONS: Final = dict(enumerate(_CODED_DIRECTIONS.split()))
"""CUPTI's code of a copy → its direction; 3 and 4 are copies to and from an array."""
UNIFIED_MEMORY_COPIES: Final = (11, 12, 13)
"""Codes of copies with which the driver migrates pages of unified memory."""

MANAGED: Final = 4
_MEMORY: Final = "pageable pinned device array managed device_static managed_static unknown"
MEMORY_KINDS: Final = dict(enumerate(_MEMORY.split()))
SYNC_KINDS: Final = {0: "unknown", 1: "event", 2: "stream_wait", 3: "stream", 4: "context"}
KERNEL_SHAPE: Final = {
    "context": "contextId",
    **{f"grid_{axis.lower()}": f"grid{axis}" for axis in "XYZ"},
    **{f"block_{axis.lower()}": f"block{axis}" for axis in "XYZ"},
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
    "shared_bytes": "sharedMemoryTotal",
}
"""How kernels were launched: column of `kernel_shapes` → column of the table of kernels.

traceprof writes the last column, for recorders that know only the total.
"""
plain_api_name: Final = partial(re.compile(r"(_v\d+)?(_ptsz|_ptds)?(_v\d+)?$").sub, "")
"""Returns the name of an API call without the version of its ABI."""


@cache
def api_names(domain: str) -> Mapping[int, str]:
    """Return CUPTI's number → name of the calls of the CUDA ``runtime`` or ``driver``.

    scripts/cuda_call_names.py generates the tables from CUDA 11.8 and 13.5.
    """
    file = Path(__file__).with_name(f"cuda_{domain}_calls.txt")
    return dict(enumerate(file.read_text(encoding="utf-8").split(), 1))


def names_by_number(numbers: Column, name: Callable[[int], str]) -> Names:
    """Return ``name(number)`` of each of ``numbers``; it is called once per distinct number."""
    place, found = distinct(numbers)
    return Names.coded(map(name, found), place, is_sorted=True)


def decode(codes: Column, meanings: Mapping[int, str]) -> Names:
    """Return the meanings of ``codes``; "unknown" for other codes."""
    return names_by_number(codes, lambda code: meanings.get(code, "unknown"))


def make_kernels(
    place: Place, names: Names, rules: Sequence[UserRule], graph_nodes: Column
) -> Table:
    """Return a table of kernels with these names."""
    return make_table(
        "kernels",
        {
            **place,
            "name": names,
            "activity": classify(names, rules),
            "graph_node": known(graph_nodes),
        },
    )


def make_traced_graphs(place: Place, graphs: Column) -> Table:
    """Return CUDA graphs that were traced as a whole, as rows of kernels.

    ``graphs`` are the IDs of the graphs.
    """
    names = names_by_number(graphs, "CUDA graph {}".format)
    return make_table(
        "kernels",
        {**place, "name": names, "activity": Names.repeated(Activity.CUDA_GRAPH.value, len(names))},
    )


def make_kernel_shapes(place: Place, raw: Mapping[str, Column]) -> Table:
    """Return how kernels were launched; shared memory is the sum of static and dynamic memory.

    If these two are unknown, a recorded total is kept.
    """
    # There is a row per kernel: pack each column before reading the next one.
    shape = {column: Packed(known(raw[stored])) for column, stored in KERNEL_SHAPE.items()}
    static, dynamic = (shape[f"{kind}_shared_bytes"].wide() for kind in ("static", "dynamic"))
    are_known = (static >= 0) & (dynamic >= 0)
    shape["shared_bytes"] = Packed(
        np.where(are_known, static + dynamic, shape["shared_bytes"].wide())
    )
    del static, dynamic
    return make_table("kernel_shapes", {**place, **shape})


def make_copies(
    place: Place,
    raw: Mapping[str, Column],
    src_kinds: Column | None,
    dst_kinds: Column,
    kinds: Mapping[int, str] = MEMORY_KINDS,
) -> Table:
    """Return a table of copies, or of memsets if there are no ``src_kinds``.

    ``kinds`` maps codes of memory kinds to their meanings.
    """
    columns: dict[str, Column] = {
        "n_bytes": known(raw["bytes"]),
        "dst_kind": decode(dst_kinds, kinds),
        "graph_node": known(raw["graphNodeId"]),
    }
    if src_kinds is None:
        columns["direction"] = Names.repeated("memset", len(raw["bytes"]))
    else:
        columns["direction"] = decode(raw["copyKind"], _COPY_DIRECTIONS)
        columns["src_kind"] = decode(src_kinds, kinds)
        columns |= {
            "src_device": known(raw["srcDeviceId"]),
            "dst_device": known(raw["dstDeviceId"]),
        }
    return make_table("copies", {**place, **columns})


def make_syncs(place: Place, codes: Column) -> Table:
    """Return a table of synchronizations with these codes."""
    return make_table("syncs", {**place, "kind": decode(codes, SYNC_KINDS)})


@dataclass(frozen=True, slots=True)
class Annotations:
    """NVTX annotations: ranges, marks, and the number of ranges that were never closed."""

    ranges: Table
    marks: Table
    n_unclosed: int = 0


NO_ANNOTATIONS: Final = Annotations(empty_table("ranges"), empty_table("marks"))


def make_annotations(
    spans: Mapping[str, Column],
    ends: npt.NDArray[np.int64],
    is_nested: npt.NDArray[np.bool_],
    points: Mapping[str, Column],
    n_unclosed: int,
) -> Annotations:
    """Return ranges with the given ``ends`` and their depth, and marks at ``points``."""
    ranges = make_table(
        "ranges",
        {
            **spans,
            "end_ns": np.maximum(spans["start_ns"], ends),
            "kind": Names.coded(["start_end", "push_pop"], codes_of(is_nested), is_sorted=True),
        },
    )
    return Annotations(with_depth(ranges), make_table("marks", points), n_unclosed)


def with_depth(ranges: Table) -> Table:
    """Return ``ranges`` with their depth: the number of enclosing ranges on the same thread."""
    order = sort_order(ranges, TABLES["ranges"])
    ranges = ranges if order is None else ranges.take(order)
    depth = np.zeros(len(ranges), np.int64)
    groups = rows_by_values(ranges["process"], ranges["thread"], ranges["kind"])
    starts, ends = ranges["start_ns"], ranges["end_ns"]
    for rows in groups.values():
        depth[rows] = nesting_depth(starts[rows], ends[rows])
    return ranges.assign(depth=spill_to_disk(depth))

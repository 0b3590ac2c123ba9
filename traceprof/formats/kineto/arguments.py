"""What is taken of an event's arguments, and the whole numbers in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from traceprof.model.tables import ABSENT

__all__ = [
    "ATTRIBUTES",
    "LONGEST_WHOLE",
    "NO_ARGUMENTS",
    "NO_SHAPE",
    "NUMBER_ARGUMENTS",
    "SHAPE",
    "TEXT_ARGUMENTS",
    "Arguments",
    "Number",
    "whole",
]

SHAPE: Final = (
    "context",
    *(f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz"),
    "registers",
    "shared_bytes",
)
"""How a kernel was launched: whole numbers, `ABSENT` where not known."""
NO_SHAPE: Final = (ABSENT,) * len(SHAPE)
LONGEST_WHOLE: Final = 400
"""Digits: far more than fit 64 bits, fewer than Python refuses."""
_INT64: Final = np.iinfo(np.int64)

Number = int | float | str | bool | None


def _named(name: str, default: Any = ABSENT) -> Any:
    return msgspec.field(default=default, name=name)


class Arguments(msgspec.Struct, gc=False):
    """What is taken of an event's ``args``; numbers may be texts."""

    external_id: Number = _named("External id")
    correlation: Number = ABSENT
    device: Number = ABSENT
    stream: Number = ABSENT
    context: Number = ABSENT
    n_bytes: Number = _named("bytes")
    graph_node: Number = _named("graph node id")
    wait_on_stream: Number = ABSENT
    group_size: Number = _named("Group size")
    in_elements: Number = _named("In msg nelems")
    out_elements: Number = _named("Out msg nelems")
    sequence: Number = _named("Seq")
    group_rank: Number = _named("Rank")
    source_rank: Number = _named("Src Rank")
    target_rank: Number = _named("Dst Rank")
    from_device: Number = _named("fromDevice")
    to_device: Number = _named("toDevice")
    allocated: Number = _named("Total Allocated")
    reserved: Number = _named("Total Reserved")
    memory_device: Number = _named("Device Id")
    memory_device_type: Number = _named("Device Type")
    collective: Any = _named("Collective name", "")
    dtype: Any = ""
    group_name: Any = _named("Process Group Name", "")
    group_description: Any = _named("Process Group Description", "")
    group_ranks: Any = _named("Process Group Ranks", "")
    kind: Any = ""
    name: Any = ""
    grid: Any = None
    block: Any = None
    registers: Number = _named("registers per thread")
    shared_bytes: Number = _named("shared memory")

    @property
    def shape(self) -> tuple[int, ...]:
        """How a kernel was launched, as `SHAPE` says; `NO_SHAPE` where the event does not."""
        if self.grid is None:
            return NO_SHAPE
        return (
            whole(self.context),
            *_three(self.grid),
            *_three(self.block),
            whole(self.registers),
            whole(self.shared_bytes),
        )


NO_ARGUMENTS: Final = Arguments()
"""Those of an event that has none; not to be changed."""

_Getters = Mapping[str, Callable[[Sequence[Arguments]], list[Any]]]

# Comprehensions take half of the time of `operator.attrgetter`.
NUMBER_ARGUMENTS: Final[_Getters] = {
    "External id": lambda all_of: [one.external_id for one in all_of],
    "correlation": lambda all_of: [one.correlation for one in all_of],
    "device": lambda all_of: [one.device for one in all_of],
    "stream": lambda all_of: [one.stream for one in all_of],
    "context": lambda all_of: [one.context for one in all_of],
    "bytes": lambda all_of: [one.n_bytes for one in all_of],
    "graph node id": lambda all_of: [one.graph_node for one in all_of],
    "wait_on_stream": lambda all_of: [one.wait_on_stream for one in all_of],
    "Group size": lambda all_of: [one.group_size for one in all_of],
    "In msg nelems": lambda all_of: [one.in_elements for one in all_of],
    "Out msg nelems": lambda all_of: [one.out_elements for one in all_of],
    "Seq": lambda all_of: [one.sequence for one in all_of],
    "Rank": lambda all_of: [one.group_rank for one in all_of],
    "Src Rank": lambda all_of: [one.source_rank for one in all_of],
    "Dst Rank": lambda all_of: [one.target_rank for one in all_of],
    "fromDevice": lambda all_of: [one.from_device for one in all_of],
    "toDevice": lambda all_of: [one.to_device for one in all_of],
    "Total Allocated": lambda all_of: [one.allocated for one in all_of],
    "Total Reserved": lambda all_of: [one.reserved for one in all_of],
    "Device Id": lambda all_of: [one.memory_device for one in all_of],
    "Device Type": lambda all_of: [one.memory_device_type for one in all_of],
}
"""What gets an argument that is a whole number of many events; `ABSENT` where there is none."""
TEXT_ARGUMENTS: Final[_Getters] = {
    "Collective name": lambda all_of: [one.collective for one in all_of],
    "dtype": lambda all_of: [one.dtype for one in all_of],
    "Process Group Name": lambda all_of: [one.group_name for one in all_of],
    "Process Group Description": lambda all_of: [one.group_description for one in all_of],
    "Process Group Ranks": lambda all_of: [one.group_ranks for one in all_of],
    "kind": lambda all_of: [one.kind for one in all_of],
}
"""What gets one that is a text; "" where there is none."""
ATTRIBUTES: Final = {field.encode_name: field.name for field in msgspec.structs.fields(Arguments)}
"""Names of arguments in a file → those of `Arguments`."""


def whole(value: Any) -> int:
    """Return the whole number in a JSON value; `ABSENT` where there is none that fits 64 bits."""
    if isinstance(value, str):
        text = value.removeprefix("-")
        is_whole = text.isascii() and text.isdecimal() and len(text) <= LONGEST_WHOLE
        value = int(value) if is_whole else ABSENT
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not _INT64.min <= value <= _INT64.max:
        return ABSENT
    return int(value)


def _three(sizes: Any) -> tuple[int, int, int]:
    if not isinstance(sizes, list) or len(sizes) != len("xyz"):
        return (ABSENT, ABSENT, ABSENT)
    x, y, z = map(whole, sizes)
    return (x, y, z)

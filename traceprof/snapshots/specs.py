"""What `traceprof memory` tells: its tables, and for what memory may be held."""

from __future__ import annotations

from typing import Final

from traceprof.model.results import ResultSpec
from traceprof.snapshots import MEMORY_NAME
from traceprof.snapshots.kinds import (
    ACTIVATIONS,
    BEFORE_ALL,
    COMMUNICATION,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    TEMPORARY,
    UNKNOWN,
    WORKSPACES,
)

KINDS: Final = (
    *(PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, COMMUNICATION, WORKSPACES),
    *(TEMPORARY, BEFORE_ALL, UNKNOWN),
)
COLUMNS: Final = {kind: f"{kind.replace(' ', '_')}_bytes" for kind in KINDS}
_KEYS: Final = """
    key snapshot: the file
    key device: the number of the GPU
    """
DEVICES: Final = ResultSpec.of(
    "table devices: a row for each device of each snapshot",
    _KEYS,
    """
    derived peak_bytes: most that was allocated at once while allocations were recorded, as it was
        asked for
    derived peak_at_ns [ns]: when that was, after the first event
    derived start_bytes: allocated before the first event
    derived end_bytes: allocated as the snapshot was taken
    derived most_reserved_bytes: most that the allocator held of the device
    derived reserved_bytes: what it held as the snapshot was taken
    derived rounding_bytes: what blocks in use are larger than asked for, at the end
    derived unused_bytes: reserved and not in use, at the end
    derived largest_unused_bytes: the largest piece of it
    derived unused_ratio: of what is reserved
    derived allocations_count: allocations while they were recorded
    derived out_of_memory_count: how often memory ran out
    derived asked_bytes: what was asked for when it last ran out
    derived device_free_bytes: what the device itself had left then
    """,
    "table curve: what was allocated over time, by what it was for; of many events those with most",
    _KEYS,
    """
    key event [number]: the number of the event
    derived after_ns: when, after the first event
    derived allocated_bytes: all of it
    derived reserved_bytes: what the allocator held
    """,
    "\n".join(f"derived {name}: {kind}" for kind, name in COLUMNS.items()),
)
BY_KIND: Final = ResultSpec.of(
    "table kinds: what memory was for; the rows of a time add up",
    _KEYS,
    """
    key when: at the peak, when memory ran out, at the end
    key kind: by the stack of the allocation and how long it lived
    derived held_bytes: allocated, as asked for
    derived held_ratio: of all that was allocated then
    derived allocations_count: how many
    """,
)
HOLDERS: Final = ResultSpec.of(
    "table holders: whose line holds what, most first; the rows of a time add up",
    _KEYS,
    """
    key when: at the peak, when memory ran out, at the end
    key kind: what it is for
    key place: the innermost line of the program's own
    key operator: the operator of ATen, or the node of the backward pass
    key module: the kind of layer
    derived held_bytes: allocated, as asked for
    derived held_ratio: of all that was allocated then
    derived allocations_count: how many
    derived largest_bytes: the largest of them
    derived calls: the Python frames, innermost first
    """,
)
STEPS: Final = ResultSpec.of(
    "table steps: a row for each step of the optimizer",
    _KEYS,
    """
    key step: its number in the snapshot
    derived peak_bytes: most that was allocated in it
    derived end_bytes: allocated at its end
    derived grown_bytes: more than at the end of the one before
    """,
)
GROWTH: Final = ResultSpec.of(
    "table growth: what stays of every step: made in one, never freed",
    _KEYS,
    """
    key place: the innermost line of the program's own
    key operator: the operator of ATen, or the node of the backward pass
    derived per_step_bytes: of a step, the median
    derived steps_count: of how many steps something stayed
    derived held_bytes: in all
    derived calls: the Python frames, innermost first
    """,
)
SPECS: Final = {
    MEMORY_NAME: DEVICES,
    "kinds": BY_KIND,
    "holders": HOLDERS,
    "steps": STEPS,
    "growth": GROWTH,
}
ABOUT: Final = {
    MEMORY_NAME: "memory of devices, as their allocator tells",
    "kinds": "what it was for",
    "holders": "whose line holds it",
    "steps": "step by step",
    "growth": "what grows from step to step",
}

"""Declare the tables of `traceprof memory`, and the categories of memory."""

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
    key snapshot: snapshot file
    key device: number of the GPU
    """
DEVICES: Final = ResultSpec.of(
    "table devices: one row per GPU and snapshot",
    _KEYS,
    """
    derived peak_bytes: highest allocated memory in the recording, as requested
    derived peak_at_ns [ns]: time of the peak after the first event
    derived start_bytes: allocated memory before the first event
    derived end_bytes: allocated memory at the time of the snapshot
    derived most_reserved_bytes: highest memory that the allocator reserved on the GPU
    derived reserved_bytes: memory reserved by the allocator at the time of the snapshot
    derived rounding_bytes: difference between block sizes and requested sizes at the end
    derived unused_at_end_bytes: reserved but unused memory at the time of the snapshot
    derived largest_unused_at_end_bytes: largest block of unused memory at that time
    derived unused_at_end_ratio: unused_at_end_bytes as a share of reserved_bytes
    derived allocations_count: number of recorded allocations
    derived out_of_memory_count: number of out-of-memory errors
    derived asked_bytes: requested size at the last out-of-memory error
    derived device_free_bytes: free GPU memory at the last out-of-memory error
    """,
    "table curve: allocated memory over time, by category; long histories keep the events with the "
    "most memory",
    _KEYS,
    """
    key event [number]: event number
    derived after_ns: time after the first event
    derived allocated_bytes: total allocated memory
    derived reserved_bytes: memory reserved by the allocator
    """,
    "\n".join(f"derived {name}: {kind}" for kind, name in COLUMNS.items()),
)
BY_KIND: Final = ResultSpec.of(
    "table kinds: memory by category; the rows of each point in time add up to the total",
    _KEYS,
    """
    key when: at the peak, when memory ran out, or at the end
    key kind: category, inferred from the stack and the lifetime of the allocation
    derived held_bytes: allocated memory, as requested
    derived held_ratio: share of all allocated memory at that time
    derived allocations_count: number of allocations
    """,
)
STACKS: Final = "stacks"
"""Name of the table of stacks, which flame graphs are drawn from."""
HOLDERS: Final = ResultSpec.of(
    "table holders: memory by source line, largest first; the rows of each point in time add up "
    "to the total",
    _KEYS,
    """
    key when: at the peak, when memory ran out, or at the end
    key kind: memory category
    key place: innermost source line in your program
    key operator: ATen operator, or node of the backward pass
    key module: layer type
    derived held_bytes: allocated memory, as requested
    derived held_ratio: share of all allocated memory at that time
    derived allocations_count: number of allocations
    derived largest_bytes: size of the largest allocation
    derived calls: Python frames, innermost first
    """,
    f"table {STACKS}: memory by category, stack, and operator, largest first; the rows of each "
    "point in time add up to the total",
    _KEYS,
    """
    key when: at the peak, when memory ran out, or at the end
    key kind: memory category
    key frames: Python frames, innermost first; "" if no stack was recorded
    key operator: ATen operator, or node of the backward pass
    derived held_bytes: allocated memory, as requested
    derived allocations_count: number of allocations
    """,
)
STEPS: Final = ResultSpec.of(
    "table steps: one row per optimizer step",
    _KEYS,
    """
    key step: step number in the snapshot
    derived peak_bytes: highest allocated memory in the step
    derived end_bytes: allocated memory at the end of the step
    derived grown_bytes: increase since the end of the previous step
    """,
)
GROWTH: Final = ResultSpec.of(
    "table growth: memory that is allocated in each step and never freed",
    _KEYS,
    """
    key place: innermost source line in your program
    key operator: ATen operator, or node of the backward pass
    derived per_step_bytes: median growth per step
    derived steps_count: number of steps with growth
    derived held_bytes: total memory that is never freed
    derived calls: Python frames, innermost first
    """,
)
ADVICE: Final = ResultSpec.of(
    "table advice: changes that lower the peak, or reserved memory (expandable segments), the "
    "largest saving first; each is an upper bound",
    _KEYS,
    """
    key change: change of the program
    key place: source line in your program whose memory it concerns; "" for the whole program
    derived saves_bytes: peak minus the highest level without this memory. For expandable segments:
        memory that was reserved and not used
    derived failure_saves_bytes: memory that the change removes when memory ran out
    derived is_enough: whether the allocation that failed would fit with this change
    derived fix: how to make the change
    """,
)
SPECS: Final = {
    MEMORY_NAME: DEVICES,
    "advice": ADVICE,
    "kinds": BY_KIND,
    "holders": HOLDERS,
    "steps": STEPS,
    "growth": GROWTH,
}
ABOUT: Final = {
    MEMORY_NAME: "GPU memory, from the PyTorch allocator",
    "advice": "changes that save memory, in bytes",
    "kinds": "memory by category",
    "holders": "memory by source line",
    "steps": "memory by step",
    "growth": "memory growth per step",
}

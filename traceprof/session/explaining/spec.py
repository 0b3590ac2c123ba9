"""What the explanation of a window holds."""

from __future__ import annotations

from typing import Final

from traceprof.model.results import ResultSpec, TableSpec, Unit, derived, key, same

__all__ = ["NAME", "SPEC", "SUMMARY"]

NAME: Final = "explain"
SUMMARY: Final = "why a step, or a window, took longer than another one: `traceprof explain`"

_MEANS: Final = "mean over the devices"

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "causes",
            "what the parts are made of, the largest difference first; the times of a part add up "
            "to it, and all of them to the lengths",
            (
                key("part", "one of the five parts of the devices' time"),
                key(
                    "kind",
                    "kernel, copy, collective (from when its last rank came), waiting (until "
                    "then), the cause of idle time, or rest (nothing is known of it)",
                ),
                key(
                    "name",
                    "of the kernel or operation, the direction and the kind of the host's memory, "
                    "the rank that delays go back to, or what the host was in",
                ),
                derived("difference_ns", Unit.NS, f"how much longer than in the other, {_MEANS}"),
                derived("own_ns", Unit.NS, f"its time, {_MEANS}; what runs at once counts once"),
                derived("against_ns", Unit.NS, "the same in the other"),
                derived("own_count", Unit.COUNT, "how many began, or gaps, of all devices"),
                derived("against_count", Unit.COUNT, "the same in the other"),
                derived("more_ns", Unit.NS, "of the difference: there are more of them, or fewer"),
                derived("longer_ns", Unit.NS, "of the difference: each takes longer, or shorter"),
                derived(
                    "device",
                    Unit.NUMBER,
                    "the device that has more than half of the difference of all together",
                ),
                derived("own_bytes", Unit.BYTES, "copied or handed in, of all devices"),
                derived("against_bytes", Unit.BYTES, "the same in the other"),
            ),
        ),
        TableSpec(
            "parts",
            "the five parts of the devices' time; they add up to the lengths",
            (
                key("part", "the part"),
                derived("difference_ns", Unit.NS, f"how much longer than in the other, {_MEANS}"),
                derived("share_ratio", Unit.RATIO, "difference_ns of that of the lengths"),
                derived("own_ns", Unit.NS, f"its time, {_MEANS}"),
                derived("against_ns", Unit.NS, "the same in the other"),
            ),
        ),
        TableSpec(
            "phases",
            "what the hosts were in, from the start of the step to that of the next one: it begins "
            "and ends earlier than the devices' work, and explains it only so far",
            (
                key("phase", "the phase; what none claims, and what lies between steps, apart"),
                derived("difference_ns", Unit.NS, "how much longer, mean over the processes"),
                derived("own_ns", Unit.NS, "its time, mean over the processes"),
                derived("against_ns", Unit.NS, "the same in the other"),
            ),
        ),
    ),
    scalars=(
        same("own", Unit.TEXT, "what is explained"),
        same("against", Unit.TEXT, "what it is held against"),
        same("own_ns", Unit.NS, "the length of what is explained, mean over the devices"),
        same("against_ns", Unit.NS, "the length of what it is held against"),
        same("difference_ns", Unit.NS, "how much longer it is"),
        same("devices_count", Unit.COUNT, "how many devices these are means over"),
    ),
)

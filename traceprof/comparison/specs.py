"""What a comparison of two sides, and the explanation of a window, hold."""

from __future__ import annotations

from typing import Final

from traceprof.model.results import Column, ResultSpec, TableSpec, Unit, derived, key, same

_PER: Final = "per step (turn, window) and device"


def spec_of(
    name: str, about: str, *columns: Column, scalars: tuple[Column, ...] = ()
) -> ResultSpec:
    """Return what a result of one table holds."""
    return ResultSpec((TableSpec(name, about, columns),), scalars)


def _pair(name: str, unit: Unit, meaning: str) -> tuple[Column, Column]:
    """Return a measure of both sides."""
    return (
        derived(f"base_{name}", unit, f"{meaning}, of the base"),
        derived(f"new_{name}", unit, "the same of the new one"),
    )


def _both(name: str, unit: Unit, meaning: str) -> tuple[Column, Column]:
    """Return a measure of both windows."""
    return derived(f"own_{name}", unit, meaning), derived(f"against_{name}", unit, _IN_OTHER)


_IN_OTHER: Final = "the same in the other"
_DIFFERENCE_NS: Final = derived("difference_ns", Unit.NS, "how much longer in the new one")
_MORE_NS: Final = derived("more_ns", Unit.NS, "of the difference: there are more of them, or fewer")
_LONGER_NS: Final = derived(
    "longer_ns", Unit.NS, "of the difference: each takes longer, or shorter"
)
_NS: Final = _pair("ns", Unit.NS, "its time")
_PART: Final = key("part", "one of the five parts of the devices' time")
_KIND: Final = key(
    "kind",
    "kernel, copy, collective (from when its last rank came), waiting (until then), the cause of "
    "idle time, or rest (nothing is known of it)",
)
_SAME_UNIT: Final = same("unit", Unit.TEXT, "the unit")
_SCALAR_PER: Final = same(
    "per", Unit.TEXT, "what times are told of: step, turn (of a pattern) or window"
)
_STATE: Final = derived(
    "state",
    Unit.TEXT,
    "new, gone, renamed (changed or not), changed (by 5 % and more of itself), or same",
)
_BASE_NAME: Final = derived("base_name", Unit.TEXT, "what the base calls it, where otherwise")

JUDGED: Final = spec_of(
    "judged",
    "what is judged by statistics: the steady steps of both sides, of several runs per side the "
    "medians of the runs",
    key("measure", "what: its name ends with its unit"),
    _SAME_UNIT,
    derived("base", Unit.NUMBER, "the median of the base"),
    derived("new", Unit.NUMBER, "the median of the new one"),
    derived(
        "change_ratio",
        Unit.RATIO,
        "how much larger the new one is: the median over all pairs of steps",
    ),
    derived("low_ratio", Unit.RATIO, "the lower end of the 95 % interval of that"),
    derived("high_ratio", Unit.RATIO, "the upper end of it"),
    derived(
        "smallest_ratio", Unit.RATIO, "the change that would have been seen four times in five"
    ),
    derived(
        "larger_ratio",
        Unit.RATIO,
        "effect size: in how many pairs of a new and a base step the new one is larger (50 %: no "
        "effect)",
    ),
    derived("verdict", Unit.TEXT, "better, worse, no difference shown, or not judged"),
    same("better", Unit.TEXT, "whether higher or lower is better"),
    derived("base_count", Unit.COUNT, "how many steps (or runs) of the base"),
    derived("new_count", Unit.COUNT, "how many of the new one"),
    derived("alike_ratio", Unit.RATIO, "how alike neighbouring steps are, at most"),
    scalars=(
        _SCALAR_PER,
        same("of_runs", Unit.FLAG, "whether runs, not steps, are what is held against one another"),
    ),
)

SETTINGS: Final = spec_of(
    "settings",
    "in what the two differ, what changes the meaning of the numbers first",
    key("setting", "what differs"),
    same("base", Unit.TEXT, "of the base; empty: not recorded"),
    same("new", Unit.TEXT, "of the new one"),
    same("why", Unit.TEXT, "what it does to the comparison"),
    same("spoils", Unit.FLAG, "whether it makes the numbers of different things"),
)

_CAUSES: Final = (
    _PART,
    _KIND,
    key("name", "of the kernel or operation, the direction, the rank, the host's doing"),
    _STATE,
    _DIFFERENCE_NS,
    *_pair("ns", Unit.NS, "its time; what runs at once counts once"),
    *_pair("count", Unit.NUMBER, f"how many begin, {_PER}"),
    _MORE_NS,
    _LONGER_NS,
    same("class", Unit.TEXT, "of kernels the class"),
    _BASE_NAME,
    *_pair("bytes", Unit.BYTES, f"how much was moved, {_PER}"),
)
_PARTS: Final = (
    key("part", "the part"),
    _DIFFERENCE_NS,
    derived("share_ratio", Unit.RATIO, "difference_ns of the length of the base"),
    *_NS,
)
_KINDS: Final = (
    key("part", "the part"),
    key("kind", "the kind, see causes"),
    _DIFFERENCE_NS,
    *_NS,
)
_PHASES: Final = (key("phase", "the phase; what none claims apart"), _DIFFERENCE_NS, *_NS)
DIFFERENCE: Final = ResultSpec(
    (
        TableSpec(
            "causes",
            f"what the difference is made of, {_PER}, the largest first; the times of a part add "
            "up to it, and all of them to the lengths",
            _CAUSES,
        ),
        TableSpec(
            "parts",
            f"the five parts of the devices' time, {_PER}; they add up to the lengths",
            _PARTS,
        ),
        TableSpec("kinds", f"the parts by kind, {_PER}: of idle time the causes", _KINDS),
        TableSpec("phases", "what the hosts were in, per step and process", _PHASES),
    ),
    scalars=(
        same("base", Unit.TEXT, "what the base is called"),
        same("new", Unit.TEXT, "what is held against it"),
        _SCALAR_PER,
        same("base_ns", Unit.NS, "the mean length of the base: the window over its steps"),
        same("new_ns", Unit.NS, "that of the new one"),
        same("difference_ns", Unit.NS, "how much longer the new one is"),
        same("base_count", Unit.COUNT, "how many steps on devices the base is the mean of"),
        same("new_count", Unit.COUNT, "the same of the new one"),
    ),
)

MEASURES: Final = spec_of(
    "measures",
    "the runs in single numbers, those that both sides know; not judged by statistics",
    key("measure", "its name with the unit at its end"),
    _SAME_UNIT,
    derived("base", Unit.NUMBER, "of the base; of several runs the mean"),
    derived("new", Unit.NUMBER, "of the new one"),
    derived("change_ratio", Unit.RATIO, "how much larger the new one is"),
    same("better", Unit.TEXT, "higher or lower; empty: neither"),
    same("scope", Unit.TEXT, "whose it is: run, rank, device or node"),
)

_KERNELS: Final = (
    key("name", "the name of the kernel"),
    _STATE,
    _DIFFERENCE_NS,
    *_NS,
    *_pair("count", Unit.NUMBER, f"how many, {_PER}"),
    *_pair("mean_ns", Unit.NS, "how long one takes"),
    same("activity", Unit.TEXT, "what kind of work it does"),
    _BASE_NAME,
)
_CLASSES: Final = (
    key("activity", "what kind of work it is"),
    _DIFFERENCE_NS,
    *_NS,
    *_pair("count", Unit.NUMBER, f"how many, {_PER}"),
)
KERNELS: Final = ResultSpec(
    (
        TableSpec(
            "kernels",
            f"kernels by name, {_PER}, the largest difference first; times are added up over "
            "streams, hidden or not",
            _KERNELS,
        ),
        TableSpec("classes", f"kernels by class, {_PER}, the largest difference first", _CLASSES),
    )
)

PHASES: Final = spec_of(
    "phases",
    "the phases of the training loop, per step (turn, window) and process",
    key("phase", "the phase"),
    *_pair("host_ns", Unit.NS, "when the host was in it"),
    derived("host_difference_ns", Unit.NS, "how much longer in the new one"),
    *_pair("device_ns", Unit.NS, "how long devices worked on what it launched"),
    derived("device_difference_ns", Unit.NS, "how much longer in the new one"),
)

LAYERS: Final = spec_of(
    "layers",
    f"the layers of the model, {_PER}, the largest difference first",
    key("layer", "the path of the module, else the name of a range or operator"),
    _STATE,
    _DIFFERENCE_NS,
    *_pair("device_ns", Unit.NS, "the durations of all that it launched"),
    *_pair("host_ns", Unit.NS, "when the host was in it"),
    *_pair("count", Unit.NUMBER, "how often it ran"),
)

COLLECTIVES: Final = spec_of(
    "collectives",
    f"the collectives, {_PER}, the largest difference first",
    key("op", "the operation"),
    key("sizes", "the class of what a rank hands in"),
    key("group_size", "how many ranks take part", Unit.COUNT),
    _STATE,
    _DIFFERENCE_NS,
    *_pair("ns", Unit.NS, "their times added up"),
    *_pair("exposed_ns", Unit.NS, "what compute does not hide"),
    *_pair("waited_ns", Unit.NS, "for the last rank"),
    *_pair("busbw_bytes_per_s", Unit.BYTES_PER_S, "what each link must carry"),
    *_pair("count", Unit.NUMBER, "how many"),
    *_pair("bytes", Unit.BYTES, "what a rank hands in"),
)

COPIES: Final = spec_of(
    "copies",
    f"copies by direction and kind of memory, {_PER}, the largest difference first",
    key("direction", "from where to where; or memset"),
    key("src_kind", "the memory that was read"),
    key("dst_kind", "the memory that was written"),
    _STATE,
    _DIFFERENCE_NS,
    *_pair("ns", Unit.NS, "their times added up"),
    *_pair("count", Unit.NUMBER, "how many"),
    *_pair("bytes", Unit.BYTES, "what they moved"),
    *_pair("rate_bytes_per_s", Unit.BYTES_PER_S, "bytes over time"),
)

RANKS: Final = spec_of(
    "ranks",
    "the ranks: means over their steady steps",
    key("rank", "the rank", Unit.NUMBER),
    *_pair("period_ns", Unit.NS, "from the start of a step to that of the next"),
    derived("period_change_ratio", Unit.RATIO, "how much longer in the new one"),
    *_pair("compute_ns", Unit.NS, "of a step when compute kernels ran"),
    *_pair("idle_ns", Unit.NS, "of a step when its devices were idle"),
    *_pair("waited_ns", Unit.NS, "of a step waiting for the last rank"),
)

STEPS: Final = spec_of(
    "steps",
    "the steady steps (or turns) of both sides in their order, of long runs every so many",
    key("side", "base or new"),
    key("run", "the name of the run"),
    key("place", "its place among the steady steps of the run", Unit.NUMBER),
    same("period_ns", Unit.NS, "how long it takes, of several ranks the mean"),
)

METRICS: Final = spec_of(
    "metrics",
    "the metrics of training that all runs have, of several runs of a side the means",
    key("metric", "the metric"),
    *_pair("last", Unit.NUMBER, "the last value"),
    derived("last_difference", Unit.NUMBER, "by how much that of the new is larger"),
    *_pair("best", Unit.NUMBER, "the best value"),
    derived("best_difference", Unit.NUMBER, "by how much that of the new is larger"),
    same("better", Unit.TEXT, "higher or lower; empty: not known"),
    derived("verdict", Unit.TEXT, "of several runs of each: better, worse, or no difference shown"),
    *_pair("epoch", Unit.NUMBER, "after how many epochs the last value is"),
    *_pair("step", Unit.NUMBER, "after how many steps it is"),
)

LIMITS: Final = spec_of(
    "limits",
    "the limits that were set",
    key("measure", "the measure"),
    same("limit_ratio", Unit.RATIO, "how much worse it may get"),
    derived("worse_ratio", Unit.RATIO, "how much worse it is (below 0: better)"),
    derived("is_exceeded", Unit.FLAG, "whether the comparison fails"),
    derived("why", Unit.TEXT, "how that was decided"),
)

ABOUT: Final = {
    "judged": "what is judged, with 95 % intervals",
    "difference": "where the difference is, as a sum",
    "settings": "whether they can be compared: in what they differ",
    "limits": "the limits that were set",
    "kernels": "kernels: new, gone, renamed, changed",
    "phases": "the phases of the training loop",
    "layers": "the layers of the model",
    "collectives": "collectives",
    "copies": "copies",
    "ranks": "the ranks",
    "steps": "the steps (or turns) of both, one by one",
    "metrics": "metrics of training: last and best values",
    "measures": "the runs in single numbers",
}
"""What each result is, in words, in the order in which they are shown."""


EXPLAIN: Final = "explain"
EXPLAIN_SUMMARY: Final = (
    "why a step, or a window, took longer than another one: `traceprof explain`"
)
_MEANS: Final = "mean over the devices"
_LONGER: Final = derived("difference_ns", Unit.NS, f"how much longer than in the other, {_MEANS}")
_EXPLAINED: Final = (
    _PART,
    _KIND,
    key(
        "name",
        "of the kernel or operation, the direction and the kind of the host's memory, the rank "
        "that delays go back to, or what the host was in",
    ),
    _LONGER,
    *_both("ns", Unit.NS, f"its time, {_MEANS}; what runs at once counts once"),
    *_both("count", Unit.COUNT, "how many began, or gaps, of all devices"),
    _MORE_NS,
    _LONGER_NS,
    derived(
        "device",
        Unit.NUMBER,
        "the device that has more than half of the difference of all together",
    ),
    *_both("bytes", Unit.BYTES, "copied or handed in, of all devices"),
)
_PARTS_EXPLAINED: Final = (
    key("part", "the part"),
    _LONGER,
    derived("share_ratio", Unit.RATIO, "difference_ns of that of the lengths"),
    *_both("ns", Unit.NS, f"its time, {_MEANS}"),
)
_PHASES_EXPLAINED: Final = (
    key("phase", "the phase; what none claims, and what lies between steps, apart"),
    derived("difference_ns", Unit.NS, "how much longer, mean over the processes"),
    *_both("ns", Unit.NS, "its time, mean over the processes"),
)
EXPLAIN_SPEC: Final = ResultSpec(
    (
        TableSpec(
            "causes",
            "what the parts are made of, the largest difference first; the times of a part add up "
            "to it, and all of them to the lengths",
            _EXPLAINED,
        ),
        TableSpec(
            "parts",
            "the five parts of the devices' time; they add up to the lengths",
            _PARTS_EXPLAINED,
        ),
        TableSpec(
            "phases",
            "what the hosts were in, from the start of the step to that of the next one: it begins "
            "and ends earlier than the devices' work, and explains it only so far",
            _PHASES_EXPLAINED,
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

"""What a comparison of two sides, and the explanation of a window, hold."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from traceprof.model.results import ResultSpec, TableSpec, columns

SIDES: Final = r"derived base_\1: \2, of the base\nderived new_\1: the same of the new one"
WINDOWS: Final = r"derived own_\1: \2\nderived against_\1: the same in the other"
_PAIR: Final = re.compile(r"^pair (\w+(?: \[\S+\])?): (.+)$", re.MULTILINE)
_TABLE: Final = re.compile(r"^table (\S+): (.+)$", re.MULTILINE)


def spec_of(text: str, pair: str = SIDES) -> ResultSpec:
    """Return what ``text`` declares: tables with their `columns`, and behind "scalars" scalars.

    A line "table NAME: …" begins a table. "pair ns: its time" stands for the two columns that the
    lines of ``pair`` make of it: one of either side.
    """
    unwrapped = re.sub(r"\n +", " ", textwrap.dedent(text).strip())
    tables, _, scalars = _PAIR.sub(pair, unwrapped).partition("\nscalars\n")
    _, *parts = _TABLE.split(tables)
    named = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    found = tuple(TableSpec(name, about, columns(body)) for name, about, body in named)
    return ResultSpec(found, columns(scalars) if scalars else ())


JUDGED: Final = spec_of(
    """
    table judged: what is judged by statistics: the steady steps of both sides, of several runs per
        side the medians of the runs
    key measure: what: its name ends with its unit
    same unit: the unit
    derived base [number]: the median of the base
    derived new [number]: the median of the new one
    derived change_ratio: how much larger the new one is: the median over all pairs of steps
    derived low_ratio: the lower end of the 95 % interval of that
    derived high_ratio: the upper end of it
    derived smallest_ratio: the change that would have been seen four times in five
    derived larger_ratio: effect size: in how many pairs of a new and a base step the new one is
        larger (50 %: no effect)
    derived verdict: better, worse, no difference shown, not clear (the interval holds no change and
        a factor of 2), or not judged
    same better: whether higher or lower is better
    derived base_count: how many steps (or runs) of the base
    derived new_count: how many of the new one
    derived alike_ratio: how alike neighbouring steps are, at most
    scalars
    same per: what times are told of: step, turn (of a pattern) or window
    same of_runs [flag]: whether runs, not steps, are what is held against one another
    """
)
SETTINGS: Final = spec_of(
    """
    table settings: in what the two differ, what changes the meaning of the numbers first
    key setting: what differs
    same base: of the base; empty: not recorded
    same new: of the new one
    same why: what it does to the comparison
    same spoils [flag]: whether it makes the numbers of different things
    """
)
DIFFERENCE: Final = spec_of(
    """
    table causes: what the difference is made of, per step (turn, window) and device, the largest
        first; the times of a part add up to it, and all of them to the lengths
    key part: one of the five parts of the devices' time
    key kind: kernel, copy, collective (from when its last rank came), waiting (until then), the
        cause of idle time, or rest (nothing is known of it)
    key name: of the kernel or operation, the direction, the rank, the host's doing
    derived state: new, gone, renamed (changed or not), changed (by 5 % and more of itself), or same
    derived difference_ns: how much longer in the new one
    pair ns: its time; what runs at once counts once
    pair count [number]: how many begin, per step (turn, window) and device
    derived more_ns: of the difference: there are more of them, or fewer
    derived longer_ns: of the difference: each takes longer, or shorter
    same class: of kernels the class
    derived base_name: what the base calls it, where otherwise
    pair bytes: how much was moved, per step (turn, window) and device
    table parts: the five parts of the devices' time, per step (turn, window) and device; they add
        up to the lengths
    key part: the part
    derived difference_ns: how much longer in the new one
    derived share_ratio: difference_ns of the length of the base
    pair ns: its time
    table kinds: the parts by kind, per step (turn, window) and device: of idle time the causes
    key part: the part
    key kind: the kind, see causes
    derived difference_ns: how much longer in the new one
    pair ns: its time
    table phases: what the hosts were in, per step and process
    key phase: the phase; what none claims apart
    derived difference_ns: how much longer in the new one
    pair ns: its time
    scalars
    same base: what the base is called
    same new: what is held against it
    same per: what times are told of: step, turn (of a pattern) or window
    same base_ns: the mean length of the base: the window over its steps
    same new_ns: that of the new one
    same difference_ns: how much longer the new one is
    same base_count: how many steps on devices the base is the mean of
    same new_count: the same of the new one
    """
)
MEASURES: Final = spec_of(
    """
    table measures: the runs in single numbers, those that both sides know; not judged by statistics
    key measure: its name with the unit at its end
    same unit: the unit
    derived base [number]: of the base; of several runs the mean
    derived new [number]: of the new one
    derived change_ratio: how much larger the new one is
    same better: higher or lower; empty: neither
    same scope: whose it is: run, rank, device or node
    """
)
KERNELS: Final = spec_of(
    """
    table kernels: kernels by name, per step (turn, window) and device, the largest difference
        first; times are added up over streams, hidden or not
    key name: the name of the kernel
    derived state: new, gone, renamed (changed or not), changed (by 5 % and more of itself), or same
    derived difference_ns: how much longer in the new one
    pair ns: its time
    pair count [number]: how many, per step (turn, window) and device
    pair mean_ns: how long one takes
    same activity: what kind of work it does
    derived base_name: what the base calls it, where otherwise
    table classes: kernels by class, per step (turn, window) and device, the largest difference
        first
    key activity: what kind of work it is
    derived difference_ns: how much longer in the new one
    pair ns: its time
    pair count [number]: how many, per step (turn, window) and device
    """
)
PHASES: Final = spec_of(
    """
    table phases: the phases of the training loop, per step (turn, window) and process
    key phase: the phase
    pair host_ns: when the host was in it
    derived host_difference_ns: how much longer in the new one
    pair device_ns: how long devices worked on what it launched
    derived device_difference_ns: how much longer in the new one
    """
)
LAYERS: Final = spec_of(
    """
    table layers: the layers of the model, per step (turn, window) and device, the largest
        difference first
    key layer: the path of the module, else the name of a range or operator
    derived state: new, gone, renamed (changed or not), changed (by 5 % and more of itself), or same
    derived difference_ns: how much longer in the new one
    pair device_ns: the durations of all that it launched
    pair host_ns: when the host was in it
    pair count [number]: how often it ran
    """
)
COLLECTIVES: Final = spec_of(
    """
    table collectives: the collectives, per step (turn, window) and device, the largest difference
        first
    key op: the operation
    key sizes: the class of what a rank hands in
    key group_size [count]: how many ranks take part
    derived state: new, gone, renamed (changed or not), changed (by 5 % and more of itself), or same
    derived difference_ns: how much longer in the new one
    pair ns: their times added up
    pair exposed_ns: what compute does not hide
    pair waited_ns: for the last rank
    pair busbw_bytes_per_s: what each link must carry
    pair count [number]: how many
    pair bytes: what a rank hands in
    """
)
COPIES: Final = spec_of(
    """
    table copies: copies by direction and kind of memory, per step (turn, window) and device, the
        largest difference first
    key direction: from where to where; or memset
    key src_kind: the memory that was read
    key dst_kind: the memory that was written
    derived state: new, gone, renamed (changed or not), changed (by 5 % and more of itself), or same
    derived difference_ns: how much longer in the new one
    pair ns: their times added up
    pair count [number]: how many
    pair bytes: what they moved
    pair rate_bytes_per_s: bytes over time
    """
)
FLOPS: Final = spec_of(
    """
    table flops: operators of PyTorch by precision, per step (turn, window) and device, the largest
        difference first; the last name is empty: kernels of all others
    key operator: the outermost operator whose work is known
    key precision: what its kernels multiply in
    derived state: new, gone, changed (by 5 % and more of itself), or same
    derived difference_ns: how much longer in the new one
    pair ns: the durations of its kernels
    pair count [number]: how many
    pair flop: its FLOPs, by the sizes of its inputs
    pair achieved_flop_per_s: FLOPs over the time of the kernels that have some
    pair bytes: the fewest that it can move
    pair intensity [number]: FLOP per byte
    table peaks: the roofs over them: the dense peaks of what kernels multiply in
    key precision: what they multiply in
    pair peak_flop_per_s: the peak of the device
    pair memory_bytes_per_s: that of its memory
    """
)
RANKS: Final = spec_of(
    """
    table ranks: the ranks: means over their steady steps, of which is known how long they take
    key rank: the rank
    pair period_ns: how long a step takes: on the devices where all are timed there, else from its
        start to that of the next
    derived period_change_ratio: how much longer in the new one
    pair compute_ns: of a step when compute kernels ran
    pair idle_ns: of a step when its devices were idle
    pair waited_ns: of a step waiting for the last rank
    """
)
STEPS: Final = spec_of(
    """
    table steps: the steady steps (or iterations) of both sides in order, of long runs every so
        many
    key side: base or new
    key run: the name of the run
    key place [number]: its place among the steady steps of the run
    same period_ns: how long it takes, of several ranks the mean
    """
)
METRICS: Final = spec_of(
    """
    table metrics: the metrics of training that all runs have, of several runs of a side the means
    key metric: the metric
    pair last [number]: the last value
    derived last_difference [number]: by how much that of the new is larger
    pair best [number]: the best value
    derived best_difference [number]: by how much that of the new is larger
    same better: higher or lower; empty: not known
    derived verdict: of several runs of each: better, worse, or no difference shown
    pair epoch [number]: after how many epochs the last value is
    pair step: after how many steps it is
    """
)
LIMITS: Final = spec_of(
    """
    table limits: the limits that were set
    key measure: the measure
    same limit_ratio: how much worse it may get
    derived worse_ratio: how much worse it is (below 0: better)
    derived is_exceeded: whether the comparison fails
    derived why: how that was decided
    """
)

ABOUT: Final = {
    "judged": "what is compared, with 95 % intervals",
    "difference": "where the difference is, as a sum",
    "settings": "whether they can be compared: in what they differ",
    "limits": "the limits that were set",
    "kernels": "kernels: new, gone, renamed, changed",
    "phases": "the phases of the training loop",
    "layers": "the layers of the model",
    "collectives": "collectives",
    "copies": "copies",
    "flops": "FLOPs and rates by operator of PyTorch",
    "ranks": "the ranks",
    "steps": "the steps (or iterations) of both, one by one",
    "metrics": "metrics of training: last and best values",
    "measures": "the runs in single numbers",
}
"""What each result is, in words, in the order in which they are shown."""


EXPLAIN_SUMMARY: Final = (
    "why a step, or a window, took longer than another one: `traceprof explain`"
)
EXPLAIN_SPEC: Final = spec_of(
    """
    table causes: what the parts are made of, the largest difference first; the times of a part add
        up to it, and all of them to the lengths
    key part: one of the five parts of the devices' time
    key kind: kernel, copy, collective (from when its last rank came), waiting (until then), the
        cause of idle time, or rest (nothing is known of it)
    key name: of the kernel or operation, the direction and the kind of the host's memory, the rank
        that delays go back to, or what the host was in
    derived difference_ns: how much longer than in the other, mean over the devices
    pair ns: its time, mean over the devices; what runs at once counts once
    pair count: how many began, or gaps, of all devices
    derived more_ns: of the difference: there are more of them, or fewer
    derived longer_ns: of the difference: each takes longer, or shorter
    derived device: the device that has more than half of the difference of all together
    pair bytes: copied or handed in, of all devices
    table parts: the five parts of the devices' time; they add up to the lengths
    key part: the part
    derived difference_ns: how much longer than in the other, mean over the devices
    derived share_ratio: difference_ns of that of the lengths
    pair ns: its time, mean over the devices
    table phases: what the hosts were in, from the start of the step to that of the next one: it
        begins and ends earlier than the devices' work, and explains it only so far
    key phase: the phase; what none claims, and what lies between steps, apart
    derived difference_ns: how much longer, mean over the processes
    pair ns: its time, mean over the processes
    scalars
    same own: what is explained
    same against: what it is held against
    same own_ns: the length of what is explained, mean over the devices
    same against_ns: the length of what it is held against
    same difference_ns: how much longer it is
    same devices_count: how many devices these are means over
    """,
    WINDOWS,
)

"""The tables of comparisons of two runs and of explained windows."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from traceprof.model.results import ResultSpec, TableSpec, columns

SIDES: Final = r"derived base_\1: \2, in the base\nderived new_\1: \2, in the new run"
WINDOWS: Final = (
    r"derived explained_\1: \2, in the explained window\n"
    r"derived reference_\1: \2, in the reference window"
)
_PAIR: Final = re.compile(r"^pair (\w+(?: \[\S+\])?): (.+)$", re.MULTILINE)
_TABLE: Final = re.compile(r"^table (\S+): (.+)$", re.MULTILINE)


def spec_of(text: str, pair: str = SIDES) -> ResultSpec:
    """Parse a result specification: tables with their `columns`, then "scalars" and the scalars.

    A line "table NAME: …" starts a table. A line "pair ns: GPU time" expands to two columns, one
    for each side, by the lines of ``pair``.
    """
    unwrapped = re.sub(r"\n +", " ", textwrap.dedent(text).strip())
    tables, _, scalars = _PAIR.sub(pair, unwrapped).partition("\nscalars\n")
    _, *parts = _TABLE.split(tables)
    named = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    found = tuple(TableSpec(name, about, columns(body)) for name, about, body in named)
    return ResultSpec(found, columns(scalars) if scalars else ())


JUDGED: Final = spec_of(
    """
    table judged: measures with a statistical test; the samples are the steady steps of both sides,
        or the median of each run if a side has several runs
    key measure: name of the measure; the name ends with its unit
    same unit: unit
    derived base [number]: base: mean over the steps, or geometric mean over several runs
    derived new [number]: new: mean over the steps, or geometric mean over several runs
    derived change_ratio: relative change from base to new
    derived low_ratio: lower end of the 95% confidence interval of the change
    derived high_ratio: upper end of the 95% confidence interval of the change
    derived smallest_ratio: smallest change that this comparison can detect with 80% power
    derived larger_ratio: effect size: share of pairs of a new and a base step in which the new step
        is larger (50%: no effect)
    derived verdict: better, worse, no difference shown, not clear (the interval contains both no
        change and a factor of 2), or not enough data
    same better: whether higher or lower is better
    derived base_count: number of steps (or runs) of the base
    derived new_count: number of steps (or runs) of the new run
    derived autocorrelation [ratio]: largest autocorrelation of neighboring steps
    scalars
    same per: unit of the times: step, iteration or window
    same of_runs [flag]: whether the test compares runs instead of steps
    """
)
ROWS: Final = spec_of(
    """
    table rows: rows of two tables, matched by sizes and labels
    key row: sizes and labels
    key measure: name of the measure; the name ends with its unit
    derived base [number]: value in the base; geometric mean if the base repeats the row
    derived new [number]: value in the new table
    derived change_ratio: relative change from base to new
    derived base_efficiency_ratio: scaling efficiency in the base: throughput per GPU, relative to
        the row with the fewest GPUs and the same labels
    derived new_efficiency_ratio: scaling efficiency in the new table
    """
)
SETTINGS: Final = spec_of(
    """
    table settings: settings in which the two sides differ, those that invalidate the comparison
        first
    key setting: name of the setting
    same base: value in the base; empty: not recorded
    same new: value in the new run
    same why: effect on the comparison
    same spoils [flag]: whether the difference makes the numbers incomparable
    """
)
DIFFERENCE: Final = spec_of(
    """
    table causes: causes of the difference per step (iteration, window) and GPU, largest difference
        first; the times of a part add up to the part, and all times add up to the length
    key part: one of the five parts of GPU time
    key kind: kernel, copy, collective (from the arrival of the last rank), waiting (until the last
        rank arrives), the cause of idle time, or rest (not recorded)
    key name: kernel, operation, copy direction, rank, or host activity
    derived state: new, gone, renamed (changed or not), changed (by 5% or more), or same
    derived difference_ns: new minus base
    pair ns: GPU time (overlap counted once)
    pair count [number]: number that start, per step (iteration, window) and GPU
    derived from_count_ns: part of the difference that comes from their number
    derived from_duration_ns: part of the difference that comes from the duration of each
    same class: kernel class
    derived base_name: name in the base, if it differs
    pair bytes: bytes moved per step (iteration, window) and GPU
    table parts: the five parts of GPU time, per step (iteration, window) and GPU; they add up to
        the length
    key part: part of GPU time
    derived difference_ns: new minus base
    derived share_ratio: difference_ns divided by the length of the base
    pair ns: GPU time
    table kinds: the parts by kind, per step (iteration, window) and GPU; idle time by cause
    key part: part of GPU time
    key kind: see the kind column of causes
    derived difference_ns: new minus base
    pair ns: GPU time
    table phases: host phases, per step and process
    key phase: phase; time outside all phases is a separate row
    derived difference_ns: new minus base
    pair ns: host time
    scalars
    same base: name of the base
    same new: name of the new run
    same per: unit of the times: step, iteration or window
    same base_ns: mean length of the base: window length divided by the number of steps
    same new_ns: mean length of the new run
    same difference_ns: new_ns minus base_ns
    same base_count: number of steps on GPUs averaged in the base
    same new_count: number of steps on GPUs averaged in the new run
    """
)
MEASURES: Final = spec_of(
    """
    table measures: summary measures recorded by both sides, without a statistical test
    key measure: name of the measure; the name ends with its unit
    same unit: unit
    derived base [number]: value in the base; mean if the base has several runs
    derived new [number]: value in the new run; mean if there are several new runs
    derived change_ratio: relative change from base to new
    same better: higher or lower; empty: neither
    same scope: what the measure describes: run, rank, device or node
    """
)
KERNELS: Final = spec_of(
    """
    table kernels: kernels by name, per step (iteration, window) and GPU, largest difference first;
        times are summed over streams, including overlapped time
    key name: kernel name
    derived state: new, gone, renamed (changed or not), changed (by 5% or more), or same
    derived difference_ns: new minus base
    pair ns: total kernel time
    pair count [number]: number of launches per step (iteration, window) and GPU
    pair mean_ns: mean duration
    same activity: kernel class
    derived base_name: name in the base, if it differs
    table classes: kernel classes, per step (iteration, window) and GPU, largest difference first
    key activity: kernel class
    derived difference_ns: new minus base
    pair ns: total kernel time
    pair count [number]: number of launches per step (iteration, window) and GPU
    """
)
PHASES: Final = spec_of(
    """
    table phases: phases of the training loop, per step (iteration, window) and process
    key phase: phase
    pair host_ns: host time in the phase
    derived host_difference_ns: difference in host time, new minus base
    pair device_ns: GPU time of the work that the phase launched
    derived device_difference_ns: difference in GPU time, new minus base
    """
)
LAYERS: Final = spec_of(
    """
    table layers: model layers, per step (iteration, window) and GPU, largest difference first
    key layer: path of the module, or the name of a range or operator
    derived state: new, gone, renamed (changed or not), changed (by 5% or more), or same
    derived difference_ns: new minus base
    pair device_ns: total GPU time of the work that the layer launched
    pair host_ns: host time in the layer
    pair count [number]: number of executions
    """
)
COLLECTIVES: Final = spec_of(
    """
    table collectives: collectives, per step (iteration, window) and GPU, largest difference first
    key op: operation
    key sizes: size class of the input of a rank
    key group_size [count]: number of participating ranks
    derived state: new, gone, renamed (changed or not), changed (by 5% or more), or same
    derived difference_ns: new minus base
    pair ns: total time
    pair exposed_ns: time not overlapped with compute
    pair waited_ns: time waiting for the last rank
    pair busbw_bytes_per_s: bus bandwidth
    pair count [number]: number of collectives
    pair bytes: input bytes of a rank
    """
)
COPIES: Final = spec_of(
    """
    table copies: copies by direction and memory kind, per step (iteration, window) and GPU, largest
        difference first
    key direction: direction of the copy, or memset
    key src_kind: kind of the source memory
    key dst_kind: kind of the destination memory
    derived state: new, gone, renamed (changed or not), changed (by 5% or more), or same
    derived difference_ns: new minus base
    pair ns: total time
    pair count [number]: number of copies
    pair bytes: bytes moved
    pair rate_bytes_per_s: bytes divided by time
    """
)
FLOPS: Final = spec_of(
    """
    table flops: PyTorch operators by precision, per step (iteration, window) and GPU, largest
        difference first; the row without a name has the kernels of all other operators
    key operator: outermost operator with a known FLOP count
    key precision: precision in which its kernels multiply
    derived state: new, gone, changed (by 5% or more), or same
    derived difference_ns: new minus base
    pair ns: total kernel time
    pair count [number]: number of calls
    pair flop: FLOPs computed from the input sizes
    pair achieved_flop_per_s: FLOPs divided by the time of the kernels with a known FLOP count
    pair bytes: minimum bytes to move
    pair intensity [number]: FLOPs per byte
    table peaks: hardware peaks: dense peak by the precision of the kernels
    key precision: precision in which the kernels multiply
    pair peak_flop_per_s: peak compute rate of the GPU
    pair memory_bytes_per_s: peak memory bandwidth of the GPU
    """
)
RANKS: Final = spec_of(
    """
    table ranks: means over the steady steps of each rank that have a known duration
    key rank: rank
    pair period_ns: step time: on the GPUs if all steps have GPU times, else from step start to step
        start on the host
    derived period_change_ratio: relative change of the step time
    pair compute_ns: time per step with a running compute kernel
    pair idle_ns: time per step in which the GPUs of the rank are idle
    pair waited_ns: time per step waiting for the last rank
    """
)
STEPS: Final = spec_of(
    """
    table steps: steady steps (or iterations) of both sides in order; every Nth step of long runs
    key side: base or new
    key run: name of the run
    key place [number]: position among the steady steps of the run
    same period_ns: step time; mean over the ranks
    """
)
METRICS: Final = spec_of(
    """
    table metrics: training metrics that all runs have; means if a side has several runs
    key metric: name of the metric
    pair last [number]: last value
    derived last_difference [number]: last value of the new run minus last value of the base
    pair best [number]: best value
    derived best_difference [number]: best value of the new run minus best value of the base
    same better: higher or lower; empty: not known
    derived verdict: better, worse, or no difference shown; only if both sides have several runs
    pair epoch [number]: epoch of the last value
    pair step: step of the last value
    """
)
LIMITS: Final = spec_of(
    """
    table limits: regression limits
    key measure: name of the measure
    same limit_ratio: largest accepted regression
    derived worse_ratio: measured regression (negative: improvement)
    derived is_exceeded: whether the limit is exceeded
    derived is_undecided: whether the data is not sufficient to check the limit
    derived why: reason for the decision
    """
)

ABOUT: Final = {
    "judged": "measures with 95% confidence intervals",
    "rows": "rows of the tables, matched by sizes and labels",
    "difference": "where the difference comes from",
    "settings": "settings that differ between the two sides",
    "limits": "regression limits",
    "kernels": "kernels: new, gone, renamed, changed",
    "phases": "phases of the training loop",
    "layers": "model layers",
    "collectives": "collectives",
    "copies": "copies",
    "flops": "FLOPs and FLOP rates by PyTorch operator",
    "ranks": "ranks",
    "steps": "all steps (or iterations) of both sides",
    "metrics": "training metrics: last and best values",
    "measures": "summary measures of the runs",
}
"""The title of each result, in the order in which the results are shown."""


EXPLAIN_SUMMARY: Final = (
    "why a step or window took longer than another step or window: `traceprof explain`"
)
EXPLAIN_SPEC: Final = spec_of(
    """
    table causes: causes of the difference, largest first; the times of a part add up to the part,
        and all times add up to the length
    key part: one of the five parts of GPU time
    key kind: kernel, copy, collective (from the arrival of the last rank), waiting (until the last
        rank arrives), the cause of idle time, or rest (not recorded)
    key name: kernel, operation, copy direction and host memory kind, rank that causes the delay, or
        host activity
    derived difference_ns: explained minus reference window, mean over the GPUs
    pair ns: GPU time, mean over the GPUs (overlap counted once)
    pair count: number that start, or number of gaps, on all GPUs
    derived from_count_ns: part of the difference that comes from their number
    derived from_duration_ns: part of the difference that comes from the duration of each
    derived device: GPU with more than half of the total difference
    pair bytes: bytes copied, or input bytes of collectives, on all GPUs
    table parts: the five parts of GPU time; they add up to the length
    key part: part of GPU time
    derived difference_ns: explained minus reference window, mean over the GPUs
    derived share_ratio: difference_ns divided by the difference of the lengths
    pair ns: GPU time, mean over the GPUs
    table phases: host phases from the start of the step to the start of the next step; the host
        runs ahead of the GPU, so host phases explain GPU time only in part
    key phase: phase; time outside all phases and time between steps are separate rows
    derived difference_ns: explained minus reference window, mean over the processes
    pair ns: host time, mean over the processes
    scalars
    same answer: the difference in words, and whether the thread waits for a CPU core
    same is_usual: whether the explained window is a step that is not slow; only in comparison with
        the typical step
    same explained: explained window
    same reference: reference window
    same explained_ns: length of the explained window, mean over the GPUs
    same reference_ns: length of the reference window, mean over the GPUs
    same difference_ns: explained_ns minus reference_ns
    same devices_count: number of GPUs averaged
    """,
    WINDOWS,
)

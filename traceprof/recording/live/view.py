"""What a running program does now: step time, ranks, stragglers, stalls, and lost processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceprof.recording.live.status import Process, Rows

PHASES: Final = ("data", "forward", "backward", "optimizer")
OTHER: Final = "other"
"""Step time outside the phases: Python code between them."""
_N_NOW: Final = 20
_COMPARED_NS: Final = 500_000_000
_MIN_STEPS: Final = 5
_MIN_EXCESS_RATIO: Final = 0.1
_MIN_EXCESS_NS: Final = 200_000
_MIN_SHARE: Final = 0.8
_MIN_WAITED_RATIO: Final = 0.5
_MAD_FACTOR: Final = 3.0
_MIN_STALL_NS: Final = 5_000_000_000
_STALL_STEPS: Final = 10
_N_BARS: Final = 32
_MAX_TOTAL: Final = 1e15


@dataclass(frozen=True, slots=True)
class RankView:
    """One process now. Times are ns per step (medians of the last steps); None: not known.

    ``work_ns`` is the step time without waiting for other ranks. ``state`` is that of the process,
    or "stalled". ``attempts`` counts the starts of this rank.
    """

    label: str
    rank: int | None
    host: str
    pid: int
    step: int | None
    step_ns: float | None
    work_ns: float | None
    wait_ns: float | None
    phases_ns: dict[str, float]
    samples_per_s: float | None
    tokens_per_s: float | None
    cpu_ratio: float | None
    memory_bytes: int | None
    device_bytes: int | None
    state: str
    since_step_ns: int
    phase: str
    pending: str
    stack: tuple[str, ...]
    attempts: int
    n_steps: int
    n_errors: int


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank for which the other ranks wait. Times are medians, in ns per step.

    ``place`` is the phase that takes most of the additional time, "" if no phase takes half.
    """

    rank: int
    work_ns: float
    excess_ns: float
    waited_ns: float
    place: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far the run, or the epoch, is, according to ``source``, which states its length.

    ``left_ns`` is the time to the end at the mean speed of the last half, with evaluations; None
    until the speed is known.
    """

    done: float
    total: float
    left_ns: float | None
    source: str


@dataclass(frozen=True, slots=True)
class RunView:
    """A run now.

    ``step_ns``, ``usual_ns`` (of the steps before), ``bars_ns``, and ``phases_ns`` are those of the
    straggler; without a straggler, of the rank with the longest steps (``shown``). Rates include
    the time between steps.

    ``progress``: "run" or "epoch" → that of the rank that ends last; empty if no length is known.
    ``bars_ns`` are step times of the last steps, oldest first. ``why_no_straggler`` is set if ranks
    cannot be compared. ``missing`` is the number of ranks without a status; None: unknown.
    """

    ranks: tuple[RankView, ...] = ()
    step: int | None = None
    step_ns: float | None = None
    steps_per_s: float | None = None
    usual_ns: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    shown: str = ""
    bars_ns: tuple[float, ...] = ()
    phases_ns: dict[str, float] = field(default_factory=dict)
    straggler: Straggler | None = None
    why_no_straggler: str = ""
    stalled: tuple[RankView, ...] = ()
    metrics: dict[str, tuple[float | None, int]] = field(default_factory=dict)
    progress: dict[str, RunProgress] = field(default_factory=dict)
    missing: int | None = None
    n_damaged: int = 0
    time_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether no process of the run still runs."""
        return bool(self.ranks) and all(
            rank.state in ("finished", "failed", "killed") for rank in self.ranks
        )


def view_of(processes: Sequence[Process], n_damaged: int = 0) -> RunView:
    """Return what ``processes`` do now. Of several attempts of a rank, the last one counts."""
    current = _current_attempts(processes)
    if not current:
        return RunView(n_damaged=n_damaged, time_s=time.time())
    ranks = tuple(_rank_view(process, attempts) for process, attempts in current)
    running = [
        process
        for (process, _), rank in zip(current, ranks, strict=True)
        if len(process.steps) and rank.state in ("running", "stalled", "lost")
    ] or [process for process, _ in current if len(process.steps)]
    straggler, reason = find_straggler(running)
    slowest = max(running, key=lambda process: _rank_order(process, straggler), default=None)
    sizes = [size for process, _ in current if (size := process.header.world_size) is not None]
    known = {rank.rank for rank in ranks if rank.rank is not None}
    training = [rank for rank in ranks if rank.state != "killed"]
    lowest = next((process for process, _ in current if process.header.metrics), None)
    return RunView(
        ranks=ranks,
        step=max((rank.step for rank in ranks if rank.step is not None), default=None),
        step_ns=_step_ns(slowest) if slowest else None,
        steps_per_s=_rates_of(slowest)[0] if slowest else None,
        usual_ns=_usual_ns(slowest) if slowest else None,
        samples_per_s=_sum_of([rank.samples_per_s for rank in training]),
        tokens_per_s=_sum_of([rank.tokens_per_s for rank in training]),
        shown=_label_of(slowest) if slowest else "",
        bars_ns=_bars_of(slowest.column("duration_ns")) if slowest else (),
        phases_ns=_phases_of(slowest) if slowest else {},
        straggler=straggler,
        why_no_straggler=reason,
        stalled=tuple(rank for rank in ranks if rank.state == "stalled"),
        metrics=dict(lowest.header.metrics) if lowest else {},
        progress=_progress_of([one for one in running if one.state in ("running", "lost")]),
        missing=max(0, max(sizes) - len(known)) if sizes else None,
        n_damaged=n_damaged,
        time_s=time.time(),
    )


def _progress_of(processes: Sequence[Process]) -> dict[str, RunProgress]:
    """Return the progress of the run and of the epoch, of the process that ends last."""
    found: dict[str, RunProgress] = {}
    for process in processes:
        for kind, (done, total, earlier, earlier_ns, source) in process.header.progress.items():
            elapsed_ns = process.header.now_ns + process.silence_ns - earlier_ns
            is_known = done > earlier and elapsed_ns > 0 and total <= _MAX_TOTAL
            left_ns = (total - done) * elapsed_ns / (done - earlier) if is_known else None
            if kind not in found or (left_ns or 0) > (found[kind].left_ns or 0):
                found[kind] = RunProgress(done, total, left_ns, source)
    return found


def _rank_order(process: Process, straggler: Straggler | None) -> tuple[bool, float]:
    """Return the sort key that puts the straggler last, and ranks with longer steps later."""
    is_straggler = straggler is not None and process.header.rank == straggler.rank
    return is_straggler, _step_ns(process)


def _current_attempts(processes: Sequence[Process]) -> list[tuple[Process, int]]:
    """Return the last process of each rank with the number of its attempts."""
    last: dict[object, tuple[Process, int]] = {}
    for process in sorted(processes, key=lambda process: process.header.started_ns):
        rank = process.header.rank
        key = process.path.name if rank is None else rank
        last[key] = (process, last[key][1] + 1 if key in last else 1)
    return [last[key] for key in sorted(last, key=lambda key: (isinstance(key, str), key))]


def _rank_view(process: Process, attempts: int) -> RankView:
    header = process.header
    has_steps = bool(len(process.steps))
    now = process.steps[-_N_NOW:]
    wait_ns = float(np.median(process.column("wait_ns")[-_N_NOW:])) if has_steps else None
    is_known = has_steps and not header.is_wait_unknown
    return RankView(
        label=_label_of(process),
        rank=header.rank,
        host=header.host,
        pid=header.pid,
        step=int(now[-1, 1]) if has_steps else None,
        step_ns=_step_ns(process) if has_steps else None,
        work_ns=float(np.median(_work_of(now))) if is_known else None,
        wait_ns=wait_ns if is_known else None,
        phases_ns=_phases_of(process) if has_steps else {},
        samples_per_s=_rates_of(process)[1],
        tokens_per_s=_tokens_per_s(process),
        cpu_ratio=process.cpu_ratio,
        memory_bytes=header.memory_bytes,
        device_bytes=header.device_bytes[0] if header.device_bytes else None,
        state="stalled" if is_stalled(process) else process.state,
        since_step_ns=process.since_step_ns,
        phase=header.phase,
        pending=header.pending[0] if header.pending else "",
        stack=header.stack,
        attempts=attempts,
        n_steps=header.n_steps,
        n_errors=header.n_errors,
    )


def _label_of(process: Process) -> str:
    header = process.header
    return f"process {header.pid}" if header.rank is None else f"rank {header.rank}"


def is_stalled(process: Process) -> bool:
    """Return whether a running process has ended no step for 10 times its usual step time.

    The limit is at least 5 s. A process that does other recorded work, such as an evaluation, is
    not stalled. A process that has not ended a step yet is starting.
    """
    if process.state != "running" or process.is_active or not len(process.steps):
        return False
    usual_ns = float(np.median(process.column("duration_ns")))
    return process.since_step_ns > max(_MIN_STALL_NS, _STALL_STEPS * usual_ns)


def _step_ns(process: Process) -> float:
    """Return the median duration of the last steps of a process."""
    return float(np.median(process.column("duration_ns")[-_N_NOW:]))


def _usual_ns(process: Process) -> float | None:
    """Return the median duration of the steps before the last ones; None if there are too few."""
    before = process.column("duration_ns")[:-_N_NOW]
    return float(np.median(before)) if len(before) >= _MIN_STEPS else None


def _work_of(steps: Rows) -> Rows:
    """Return the durations of steps without the time that the process waited for other ranks."""
    work: Rows = np.maximum(steps[:, 3] - steps[:, 8], 0)
    return work


def _phases_of(process: Process) -> dict[str, float]:
    """Return the median time of each phase per step, and of the rest of the step.

    In ``record --always``, only data loading is measured, if there is a DataLoader.
    """
    if process.header.is_always:
        data_ns = process.column("data_ns")[-_N_NOW:]
        return {"data": float(np.median(data_ns))} if data_ns.any() else {}
    phases = {name: float(np.median(process.column(f"{name}_ns")[-_N_NOW:])) for name in PHASES}
    return {**phases, OTHER: max(0.0, _step_ns(process) - sum(phases.values()))}


def _rates_of(process: Process) -> tuple[float | None, float | None]:
    """Return the steps and the samples per second of the last steps, with the time between them.

    None where they are unknown: the program has run few steps, or shows no batches.
    """
    now = process.steps[-_N_NOW - 1 :]
    elapsed_ns = int(now[-1, 2] - now[0, 2]) if len(now) else 0
    if elapsed_ns <= 0:
        return None, None
    samples = int(now[1:, 9].sum())
    return (len(now) - 1) * 1e9 / elapsed_ns, samples * 1e9 / elapsed_ns if samples > 0 else None


def _tokens_per_s(process: Process) -> float | None:
    """Return the tokens per second of the last steps, with padding; None if no tokens are known."""
    (n_steps, n_tokens), steps_per_s = process.header.tokens, _rates_of(process)[0]
    if n_steps <= 0 or n_tokens <= 0 or steps_per_s is None:
        return None
    return n_tokens / n_steps * steps_per_s


def _sum_of(rates: Sequence[float | None]) -> float | None:
    """Return the sum of the known rates; None if none is known."""
    return sum(rate for rate in rates if rate) or None


def _bars_of(durations: Rows) -> tuple[float, ...]:
    """Return the medians of consecutive groups of steps, at most `_N_BARS`."""
    parts = np.array_split(durations, min(_N_BARS, max(len(durations), 1)))
    return tuple(float(np.median(part)) for part in parts if len(part))


def find_straggler(processes: Sequence[Process]) -> tuple[Straggler | None, str]:
    """Return the rank for which the others wait (None: none), and why ranks are not compared.

    The same steps of all ranks are compared. The work of a straggler takes longer than the median
    of the other ranks: in the median step by 10% of the step and by three times the spread of the
    other ranks, and in 80% of the steps. The other ranks wait for at least half of that time.
    """
    ranked = [process for process in processes if process.header.rank is not None]
    if len(ranked) < 2:
        return None, ""
    if any(process.header.is_always for process in ranked):
        return None, (
            "Ranks are not compared: `record --always` does not measure waiting. Use "
            "`record --live` to compare them."
        )
    if any(process.header.is_wait_unknown for process in ranked):
        return None, (
            "Ranks are not compared: with NCCL the CPU does not wait in collectives. Run "
            "`traceprof capture` to compare the GPUs."
        )
    common = _common_steps(ranked)
    if len(common) < _MIN_STEPS:
        return None, ""
    rows = [process.steps[np.isin(process.steps[:, 1], common)] for process in ranked]
    rows = [part[np.unique(part[:, 1], return_index=True)[1]] for part in rows]
    work = np.array([_work_of(part) for part in rows], np.float64)
    wait = np.array([part[:, 8] for part in rows], np.float64)
    step_ns = float(np.median([part[:, 3] for part in rows]))
    slow = int(np.argmax(np.median(work, axis=1)))
    others = np.delete(work, slow, axis=0)
    excess = work[slow] - np.median(others, axis=0)
    excess_ns = float(np.median(excess))
    waited_ns = float(np.median(np.delete(wait, slow, axis=0) - wait[slow]))
    spread = np.median(others, axis=1)
    spread_ns = float(np.median(np.abs(spread - np.median(spread))))
    least_ns = max(_MIN_EXCESS_NS, _MIN_EXCESS_RATIO * step_ns, _MAD_FACTOR * spread_ns)
    if excess_ns < least_ns or np.mean(excess > least_ns / 2) < _MIN_SHARE:
        return None, ""
    if waited_ns < _MIN_WAITED_RATIO * excess_ns:
        return None, ""
    rank = ranked[slow].header.rank
    place = _place_of(ranked[slow], [*ranked[:slow], *ranked[slow + 1 :]], excess_ns)
    return Straggler(rank or 0, float(np.median(work[slow])), excess_ns, waited_ns, place), ""


def _common_steps(processes: Sequence[Process]) -> Rows:
    """Return the numbers of the last steps that all processes have recorded: 20, or of 0.5 s.

    In a few short steps, a process that waits for a core once would be slow in most of them.
    """
    n_steps = max(_N_NOW, int(_COMPARED_NS / max(_step_ns(processes[0]), 1.0)))
    common = processes[0].column("number")
    for process in processes[1:]:
        common = np.intersect1d(common, process.column("number"))
    return np.unique(common)[-n_steps:]


def _place_of(slow: Process, others: Sequence[Process], excess_ns: float) -> str:
    """Return the phase in which a slow rank spends at least half of its additional time; "": none.

    The other ranks wait in one of the phases, where they do not spend less time than the slow rank.
    """
    phases = _phases_of(slow)
    others_phases = [_phases_of(process) for process in others]
    more = {
        name: ns - float(np.median([times[name] for times in others_phases]))
        for name, ns in phases.items()
    }
    name = max(more, key=more.__getitem__)
    return name if more[name] >= excess_ns / 2 else ""

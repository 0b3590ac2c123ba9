"""When everything happens: host, device and collectives of all ranks, on one true clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from scripts.nsys_export.step import Kind, Step

__all__ = ["Ints", "Job", "Times", "simulate"]

Ints = npt.NDArray[np.int64]

_LATENCY_NS: Final = 5_000
_GAP_NS: Final = 900
_COLLECTIVE_GAP_NS: Final = 4_000
_JITTER_NS: Final = 800
_START_UP_NS: Final = 150_000_000
"""How much longer the first batch takes: the workers of the loader start."""


@dataclass(frozen=True, slots=True)
class Job:
    """Who computes: how many ranks, which of them is slow in its backward, and by which factor."""

    n_ranks: int
    straggler: int | None = None
    slowdown: float = 1.5


@dataclass(frozen=True, eq=False)
class Times:
    """ns by rank, step and operation; ``start`` and ``end`` are those on the device.

    ``begin`` is when the host of each rank is ready for the step after the last.
    """

    call_start: Ints
    call_end: Ints
    start: Ints
    end: Ints
    begin: Ints


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What chance decides: ns by rank, step and operation, from the beginning of its step."""

    call_start: Ints
    call_end: Ints
    ready: Ints
    length: Ints


def simulate(job: Job, step: Step, begin: Ints, n_steps: int, random: np.random.Generator) -> Times:
    """Return the times of ``n_steps`` steps of ranks whose hosts are ready at ``begin``.

    The host of a rank waits for its device at the end of each step; the ranks meet in the
    collectives. Steps of a job that begins at 0 begin with the first of all.
    """
    drawn = _draw(job, step, n_steps, random, is_first=not begin.any())
    last = step.places(Kind.SYNC)[-1]
    steps = []
    for number in range(n_steps):
        origin = begin[:, None]
        start, end = _on_device(step, origin + drawn.ready[:, number], drawn.length[:, number])
        called = origin + drawn.call_start[:, number]
        returned = origin + drawn.call_end[:, number]
        returned[:, last] = np.maximum(returned[:, last], end.max(axis=1) + 3000)
        begin = returned[:, last] + step.operations[last].pause_ns
        steps.append((called, returned, start, end))
    call_start, call_end, started, ended = (
        np.stack(one, axis=1) for one in zip(*steps, strict=True)
    )
    return Times(call_start, call_end, started, ended, begin)


def _draw(
    job: Job, step: Step, n_steps: int, random: np.random.Generator, *, is_first: bool
) -> _Drawn:
    shape = (job.n_ranks, n_steps, len(step.operations))
    pause: Ints = random.integers(1000, 3500, shape)
    pause += np.array([one.pause_ns for one in step.operations])
    pause[..., 0] = pause[..., 0] * random.lognormal(0, 0.3, shape[:2])
    if is_first:
        pause[:, 0, 0] += _START_UP_NS
    calls = random.integers(1800, 6000, shape)
    call_start: Ints = np.cumsum(calls + pause, axis=-1) - calls - pause
    length = np.exp(0.06 * random.standard_normal(shape, np.float32))
    length *= np.array([one.mean_ns for one in step.operations], np.float32)
    if job.straggler is not None:
        slow = [one.phase == "backward" and one.kind == Kind.KERNEL for one in step.operations]
        length[job.straggler][:, slow] *= job.slowdown
    ready = call_start + _LATENCY_NS + random.integers(0, 3000, shape)
    return _Drawn(call_start, call_start + calls, ready, length.astype(np.int64))


def _on_device(step: Step, ready: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Return start and end, by rank and operation, of what one step does on the devices.

    The first kernel needs the batch. A collective needs the kernel before it; the optimizer needs
    all collectives, those of its own included.
    """
    start = ready.copy()
    start[:, step.uploads] = run_in_order(ready[:, step.uploads], length[:, step.uploads])
    wanted = ready[:, step.compute]
    wanted[:, 0] = np.maximum(wanted[:, 0], (start + length)[:, step.uploads[-1]])
    start[:, step.compute] = run_in_order(wanted, length[:, step.compute])
    end = start + length
    needed = step.compute[np.searchsorted(step.compute, step.reductions) - 1]
    able = np.maximum(ready[:, step.reductions], end[:, needed] + _LATENCY_NS)
    met = _meet(able, length[0, step.reductions])
    start[:, step.reductions], end[:, step.reductions] = met
    _run_optimizer(step, (ready, length), start, end)
    collectives = step.places(Kind.COLLECTIVE)
    end[:, collectives] += start[:, collectives] % _JITTER_NS
    return start, end


def _meet(able: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Return start by rank, and the common end, of collectives that run one after another."""
    finish = run_in_order(able.max(axis=0), length, _COLLECTIVE_GAP_NS) + length
    start = able.copy()
    start[:, 1:] = np.maximum(able[:, 1:], finish[:-1] + _COLLECTIVE_GAP_NS)
    return start, np.broadcast_to(finish, able.shape)


def _run_optimizer(step: Step, drawn: tuple[Ints, Ints], start: Ints, end: Ints) -> None:
    """Fill in the optimizer: one thing after another, collectives as well."""
    ready, length = drawn
    free = np.maximum(end[:, step.compute[-1]], end[:, step.reductions].max(axis=1))
    for place in step.optimizer:
        if step.kinds[place] == Kind.COLLECTIVE:
            start[:, place] = np.maximum(ready[:, place], free + _COLLECTIVE_GAP_NS)
            free = np.full_like(free, start[:, place].max() + length[0, place])
        else:
            start[:, place] = np.maximum(ready[:, place], free + _GAP_NS)
            free = start[:, place] + length[:, place]
        end[:, place] = free


def run_in_order(ready: Ints, length: Ints, gap: int = _GAP_NS) -> Ints:
    """Return when each piece of work begins on a stream that runs them one after another."""
    taken = np.cumsum(length + gap, axis=-1) - (length + gap)
    return np.asarray(taken + np.maximum.accumulate(ready - taken, axis=-1), np.int64)

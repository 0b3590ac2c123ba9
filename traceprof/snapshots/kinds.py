"""What memory was for, by who asked for it and how long it lived.

An allocation of the forward pass that the backward pass still finds is an activation, one of the
backward pass that the optimizer finds a gradient, one of the optimizer that its next step finds its
state. Where our own hooks named the tensors of a snapshot, that is taken instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.table import Array, Names, Table
from traceprof.snapshots.reading import ALLOCATED, NO_STACK
from traceprof.snapshots.replay import BEFORE, Counts, Replay
from traceprof.snapshots.stacks import NOWHERE, Origin, Phase, origin_of

PARAMETERS: Final = "parameters"
GRADIENTS: Final = "gradients"
OPTIMIZER: Final = "optimizer state"
ACTIVATIONS: Final = "activations"
COMMUNICATION: Final = "communication"
WORKSPACES: Final = "workspaces"
TEMPORARY: Final = "temporary"
BEFORE_ALL: Final = "before the recording"
UNKNOWN: Final = "unknown"

_OPTIMIZER_SPAN: Final = "Optimizer.step#"
_ALWAYS: Final = {Phase.COMMUNICATION: COMMUNICATION, Phase.WORKSPACE: WORKSPACES}


def origins_of(replayed: Replay) -> list[Origin]:
    """Return what each stack tells, by its row; the last is that of no stack."""
    return [*map(origin_of, replayed.memory.stacks), NOWHERE]


def phases_of(replayed: Replay, origins: Sequence[Origin]) -> Names:
    """Return the phase of each event: what runs inside an optimizer's step is the optimizer's."""
    memory = replayed.memory
    texts = [str(origin.phase) for origin in origins]
    phases = Names.coded(texts, np.arange(len(texts)))[memory.events["stack"]].plain().copy()
    if not any("::" in frame.name for stack in memory.stacks for frame in stack):
        # Threads of autograd have no frames of Python, and those of C++ were not asked for.
        phases[memory.events["stack"] == NO_STACK] = Phase.BACKWARD
    inside = _in_optimizer(memory.events["at_ns"], optimizer_spans(memory.spans))
    phases[inside & ((phases == Phase.FORWARD) | (phases == Phase.UNKNOWN))] = Phase.OPTIMIZER
    return Names.of(phases)


def _in_optimizer(at_ns: Counts, spans: Table) -> npt.NDArray[np.bool_]:
    """Return whether each event is in a span, its ends included: more have begun than ended."""
    own = spans.take(spans["end_ns"] >= spans["start_ns"])
    n_begun = np.searchsorted(np.sort(own["start_ns"]), at_ns, "right")
    n_ended = np.searchsorted(np.sort(own["end_ns"]), at_ns, "left")
    return (n_begun > n_ended) & (at_ns >= 0)


def optimizer_spans(spans: Table) -> Table:
    """Return the steps of optimizers, as torch names them."""
    names = spans["name"]
    return spans.take(np.array([name.startswith(_OPTIMIZER_SPAN) for name in names], np.bool_))


def kinds_of(replayed: Replay, origins: Sequence[Origin]) -> Names:
    """Return what each of the lives was for."""
    lives, n_events = replayed.lives, replayed.n_events
    phases = phases_of(replayed, origins)
    is_made = replayed.memory.events["action"] == ALLOCATED
    backward = _next(is_made & (phases == Phase.BACKWARD))
    is_step = is_made & (phases == Phase.OPTIMIZER)
    is_step[_begun(replayed)] = True  # a fused optimizer makes nothing
    optimizer = _next(is_step)
    outside = _next(is_made & (phases != Phase.OPTIMIZER))
    start, end = lives["start"], lives["end"]
    at = np.maximum(start, 0)
    is_known = (start != BEFORE) & (n_events > 0)
    phase = phases[at].plain() if n_events else np.full(len(lives), "", object)
    stays = end >= n_events
    found = np.full(len(lives), TEMPORARY, object)
    found[stays] = UNKNOWN
    for name, kind in _ALWAYS.items():
        found[phase == name] = kind
    if n_events:
        is_of = phase == Phase.FORWARD
        found[is_of & (backward[at] < end) & (backward[at] < n_events)] = ACTIVATIONS
        is_of = phase == Phase.BACKWARD
        found[is_of & ((optimizer[at] < n_events) & (optimizer[at] <= end) | stays)] = GRADIENTS
        is_of = phase == Phase.OPTIMIZER
        next_step = optimizer[np.minimum(outside[at], n_events)]
        found[is_of & ((next_step < end) | stays)] = OPTIMIZER
        found[(phase == Phase.MAKING) & stays] = PARAMETERS
    before = ~is_known
    found[before] = BEFORE_ALL if n_events else UNKNOWN
    stack = lives["stack"]
    told = np.array([str(origin.phase) for origin in origins], object)[stack]
    found[before & (stack != NO_STACK) & (told == Phase.MAKING)] = PARAMETERS
    return Names.of(_named_by_us(replayed, found))


def ascending(at_ns: Counts) -> Counts:
    """Return the times of events, none before the one ahead of it: a clock may step back."""
    found: Counts = np.maximum.accumulate(at_ns)
    return found


def _begun(replayed: Replay) -> Counts:
    """Return the first event from the start of each step of an optimizer on."""
    at_ns = replayed.memory.events["at_ns"]
    starts = optimizer_spans(replayed.memory.spans)["start_ns"]
    if not len(at_ns) or at_ns[0] < 0:
        return np.empty(0, np.int64)
    found: Counts = np.searchsorted(ascending(at_ns), starts)
    return found[found < len(at_ns)]


def _next(is_one: Array) -> Counts:
    """Return the first event from each on (and behind the last) that is one; their number: none."""
    n_events = len(is_one)
    places = np.where(is_one, np.arange(n_events), n_events)
    found = np.minimum.accumulate(places[::-1])[::-1]
    return np.append(found, [n_events])


def _named_by_us(replayed: Replay, kinds: Array) -> Array:
    """Return ``kinds`` with those of the tensors that our hooks saw at the end of the recording."""
    tensors, lives = replayed.memory.tensors, replayed.lives
    rows = np.flatnonzero(lives["end"] >= replayed.n_events)
    rows = rows[np.argsort(lives["address"][rows], kind="stable")]
    if not len(tensors) or not len(rows):
        return kinds
    starts = lives["address"][rows]
    at = np.searchsorted(starts, tensors["address"], "right") - 1
    is_in = at >= 0
    is_in &= tensors["address"] < starts[at] + np.maximum(lives["size_bytes"][rows][at], 1)
    kinds[rows[at[is_in]]] = tensors["kind"].plain()[is_in]
    return kinds

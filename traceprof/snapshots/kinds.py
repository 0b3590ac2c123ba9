"""Infer the purpose of memory from the stack and the lifetime of each allocation.

An allocation of the forward pass that still exists in the backward pass is an activation. So is one
of a layer or operator if no backward pass follows: the forward pass ran out of memory, or only this
pass was recorded. An allocation of the backward pass that exists in the optimizer step is a
gradient. One of the optimizer that exists in its next step is optimizer state. Names of tensors
from our own hooks take precedence.

Python frames contain file names, C++ frames contain function names. torch records both with
``stacks="all"``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import grouped_by
from traceprof.model.table import Array, Names, Table
from traceprof.snapshots.reading import ALLOCATED, NO_STACK, Frame, Stack
from traceprof.snapshots.replay import BEFORE, Counts, Replay

PARAMETERS: Final = "parameters"
GRADIENTS: Final = "gradients"
OPTIMIZER: Final = "optimizer state"
ACTIVATIONS: Final = "activations"
COMMUNICATION: Final = "communication"
WORKSPACES: Final = "workspaces"
TEMPORARY: Final = "temporary"
BEFORE_ALL: Final = "allocated before recording began"
UNKNOWN: Final = "unknown"

BELOW: Final = " < "
"""Separator of the frames of a stack, innermost first."""
_OPTIMIZER_SPAN: Final = "Optimizer.step#"
_LIBRARIES: Final = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib(?:64)?[/\\]python3|^<frozen|\.so(?:\.|$)"
    r"|[/\\]torchinductor_[^/\\]*[/\\]|[/\\][a-z0-9]{2}[/\\]c[a-z0-9]{40,}\.py$"
    r"|[/\\]torch[/\\](?:nn|optim|autograd|utils|distributed|_dynamo|_inductor|amp|cuda)[/\\]"
)
_OPERATOR: Final = re.compile(r"^at::_ops::(\w+)::(?:call|redispatch)\(")
_NODE: Final = re.compile(r"\b(\w+Backward\d*)(?:::apply|_apply_functional)")
_MODULE: Final = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\](\w+)\.py$")
_OPTIMIZER: Final = re.compile(
    r"[/\\](?:torch[/\\]optim|deepspeed[/\\]runtime|apex[/\\]optimizers)[/\\]"
)
_ENGINE: Final = ("torch::autograd::Engine::", "torch::autograd::generated::")
_REDUCER: Final = re.compile(r"c10d::|[/\\]torch[/\\]distributed[/\\]|\bnccl\w*\(")
_WORKSPACE: Final = re.compile(r"[Ww]orkspace")
_MAKING_FUNCTIONS: Final = frozenset(
    {
        "_apply",
        "to",
        "cuda",
        "to_empty",
        "reset_parameters",
        "load_state_dict",
        "_load_from_state_dict",
    }
)
_MAKING_FILES: Final = re.compile(r"[/\\]torch[/\\]nn[/\\](?:modules[/\\]\w+|init|parameter)\.py$")
_BASE_MODULES: Final = frozenset({"module", "container"})
_MAX_FRAMES: Final = 12
_MAX_STACK_FRAMES: Final = 60
_FORWARDING: Final = frozenset({"_call_impl", "_wrapped_call_impl"})


class Phase(StrEnum):
    """The part of a training program that requested memory, according to its stack."""

    MAKING = "making the model"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    WORKSPACE = "workspace"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an allocation came from; "" if the stack does not show it.

    ``place`` is the innermost line outside of libraries. ``operator`` is an ATen operator or an
    autograd node. ``module`` is the type of the layer that was called. ``calls`` lists the 12
    innermost Python frames, innermost first. ``frames`` lists up to 60, without those that only
    forward the call of a layer.
    """

    phase: Phase
    place: str
    operator: str
    module: str
    calls: str
    frames: str


NOWHERE: Final = Origin(Phase.UNKNOWN, "", "", "", "", "")


_KIND_BY_PHASE: Final = {Phase.COMMUNICATION: COMMUNICATION, Phase.WORKSPACE: WORKSPACES}
_KIND_AT_END: Final = {
    Phase.MAKING: PARAMETERS,
    Phase.FORWARD: ACTIVATIONS,
    Phase.BACKWARD: GRADIENTS,
    Phase.OPTIMIZER: OPTIMIZER,
    **_KIND_BY_PHASE,
}
"""The kind of memory that exists at the end, if its stack is all that is known of it."""
_CREATIONS: Final = re.compile(
    r"aten::(?:empty|zeros|ones|full|rand|arange|linspace|eye|tensor|_?to\b|_to_copy|copy|clone)"
)
"""Operators that make inputs and caches as well as activations."""


def origin_of(stack: Stack) -> Origin:
    """Return the origin of an allocation with this stack."""
    python = [frame for frame in stack if frame.file.endswith(".py")]
    user_frame = next((frame for frame in python if not _LIBRARIES.search(frame.file)), None)
    node = next((found[1] for frame in stack if (found := _NODE.search(frame.name))), "")
    operators = [found[1] for frame in stack if (found := _OPERATOR.match(frame.name))]
    operator = node or (f"aten::{operators[-1]}" if operators else "")
    own = [frame for frame in python if frame.name not in _FORWARDING]
    modules = [found[1] for frame in python if (found := _MODULE.search(frame.file))]
    return Origin(
        _phase_of(stack, python),
        "" if user_frame is None else _format_frame(user_frame),
        operator,
        next((name for name in modules if name not in _BASE_MODULES), ""),
        BELOW.join(map(_format_frame, python[:_MAX_FRAMES])),
        BELOW.join(map(_format_frame, own[:_MAX_STACK_FRAMES])),
    )


def with_origins(lives: Table, origins: Sequence[Origin]) -> Table:
    """Return ``lives`` with the text columns of their origins."""
    stack = lives["stack"]
    names = ("place", "operator", "module", "calls", "frames")
    return lives.assign(
        **{name: Names.coded([getattr(one, name) for one in origins], stack) for name in names}
    )


def stack_rows(placed: Table) -> list[dict[str, Any]]:
    """Return a row per kind, stack, and operator of allocations, the largest memory first."""
    keys, groups = grouped_by(placed, "kind", "frames", "operator")
    held = {"held_bytes": groups.sums(placed["size_bytes"]), "allocations_count": groups.counts}
    return keys.assign(**held).in_order("-held_bytes", "kind", "frames", "operator").rows()


def _phase_of(stack: Stack, python: list[Frame]) -> Phase:
    names = [frame.name for frame in stack]
    if any(map(_WORKSPACE.search, names)):
        return Phase.WORKSPACE
    if any(_REDUCER.search(frame.name) or _REDUCER.search(frame.file) for frame in stack):
        return Phase.COMMUNICATION
    if any(_OPTIMIZER.search(frame.file) for frame in python):
        return Phase.OPTIMIZER
    if any(name.startswith(_ENGINE) for name in names):
        return Phase.BACKWARD
    if any(
        frame.name in _MAKING_FUNCTIONS and _MAKING_FILES.search(frame.file) for frame in python
    ) or (any(frame.name == "__init__" and _MAKING_FILES.search(frame.file) for frame in python)):
        return Phase.MAKING
    return Phase.FORWARD if python else Phase.UNKNOWN


def _format_frame(frame: Frame) -> str:
    return f"{PurePosixPath(frame.file.replace(chr(92), '/')).name}:{frame.line} {frame.name}"


def find_origins(replayed: Replay) -> list[Origin]:
    """Return the origin of each stack, by its row, followed by the origin for "no stack"."""
    return [*map(origin_of, replayed.memory.stacks), NOWHERE]


def phases_of(replayed: Replay, origins: Sequence[Origin]) -> Names:
    """Return the phase of each event; events within an optimizer step belong to the optimizer."""
    memory = replayed.memory
    texts = [str(origin.phase) for origin in origins]
    phases = Names.coded(texts, np.arange(len(texts)))[memory.events["stack"]].plain().copy()
    if not any("::" in frame.name for stack in memory.stacks for frame in stack):
        # Autograd threads have no Python frames, and C++ frames were not recorded.
        phases[memory.events["stack"] == NO_STACK] = Phase.BACKWARD
    inside = _in_optimizer(memory.events["at_ns"], optimizer_spans(memory.spans))
    phases[inside & ((phases == Phase.FORWARD) | (phases == Phase.UNKNOWN))] = Phase.OPTIMIZER
    return Names.of(phases)


def _in_optimizer(at_ns: Counts, spans: Table) -> npt.NDArray[np.bool_]:
    """Return whether each event is in a span, ends included: more spans have begun than ended."""
    complete = spans.take(spans["end_ns"] >= spans["start_ns"])
    n_begun = np.searchsorted(np.sort(complete["start_ns"]), at_ns, "right")
    n_ended = np.searchsorted(np.sort(complete["end_ns"]), at_ns, "left")
    return (n_begun > n_ended) & (at_ns >= 0)


def optimizer_spans(spans: Table) -> Table:
    """Return the spans of optimizer steps, which torch names."""
    names = spans["name"]
    return spans.take(np.array([name.startswith(_OPTIMIZER_SPAN) for name in names], np.bool_))


def kinds_of(replayed: Replay, origins: Sequence[Origin]) -> Names:
    """Return the purpose of each allocation."""
    lives, n_events = replayed.lives, replayed.n_events
    phases = phases_of(replayed, origins)
    is_made = replayed.memory.events["action"] == ALLOCATED
    backward = _next_event(is_made & (phases == Phase.BACKWARD))
    is_step = is_made & (phases == Phase.OPTIMIZER)
    is_step[_first_events_of_steps(replayed)] = True  # a fused optimizer allocates nothing
    optimizer = _next_event(is_step)
    outside = _next_event(is_made & (phases != Phase.OPTIMIZER))
    start, end = lives["start"], lives["end"]
    at = np.maximum(start, 0)
    phase = phases[at].plain() if n_events else np.full(len(lives), "", object)
    stays = end >= n_events
    found = np.full(len(lives), TEMPORARY, object)
    found[stays] = UNKNOWN
    for name, kind in _KIND_BY_PHASE.items():
        found[phase == name] = kind
    if n_events:
        in_backward = (backward[at] < end) & (backward[at] < n_events)
        is_last = stays & (backward[at] >= n_events) & _are_of_layers(origins)[lives["stack"]]
        found[(phase == Phase.FORWARD) & (in_backward | is_last)] = ACTIVATIONS
        in_optimizer = (optimizer[at] < n_events) & (optimizer[at] <= end)
        found[(phase == Phase.BACKWARD) & (in_optimizer | stays)] = GRADIENTS
        next_step = optimizer[np.minimum(outside[at], n_events)]
        found[(phase == Phase.OPTIMIZER) & ((next_step < end) | stays)] = OPTIMIZER
        found[(phase == Phase.MAKING) & stays] = PARAMETERS
    before = (start == BEFORE) | (n_events == 0)
    found[before] = BEFORE_ALL if n_events else UNKNOWN
    stack = lives["stack"]
    is_known = before & stays & (stack != NO_STACK)
    stack_phases = np.array([str(origin.phase) for origin in origins], object)[stack]
    for name, kind in _KIND_AT_END.items():
        of_phase = is_known & (stack_phases == name)
        found[of_phase & (name != Phase.FORWARD or _are_of_layers(origins)[stack])] = kind
    return Names.of(_with_named_tensors(replayed, found))


def _are_of_layers(origins: Sequence[Origin]) -> npt.NDArray[np.bool_]:
    """Return whether each stack is of a layer, or of an operator that computes something."""
    is_computed = (
        bool(origin.module or origin.operator) and not _CREATIONS.match(origin.operator)
        for origin in origins
    )
    return np.array([*is_computed], np.bool_)


def ascending(at_ns: Counts) -> Counts:
    """Return event times that never decrease, because a clock may step back."""
    found: Counts = np.maximum.accumulate(at_ns)
    return found


def _first_events_of_steps(replayed: Replay) -> Counts:
    """Return the first event after the start of each optimizer step."""
    at_ns = replayed.memory.events["at_ns"]
    starts = optimizer_spans(replayed.memory.spans)["start_ns"]
    if not len(at_ns) or at_ns[0] < 0:
        return np.empty(0, np.int64)
    found: Counts = np.searchsorted(ascending(at_ns), starts)
    return found[found < len(at_ns)]


def _next_event(is_one: Array) -> Counts:
    """Return, for each event, the first true event from there on; the number of events if none.

    The result has one more entry, for the position after the last event.
    """
    n_events = len(is_one)
    places = np.where(is_one, np.arange(n_events), n_events)
    found = np.minimum.accumulate(places[::-1])[::-1]
    return np.append(found, [n_events])


def _with_named_tensors(replayed: Replay, kinds: Array) -> Array:
    """Return ``kinds``, replaced where our hooks named a tensor at the end of the recording."""
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

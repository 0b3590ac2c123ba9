"""What a stack tells of an allocation: whose line asked, which operator, in which part of a step.

Frames of Python name files, those of C++ (torch names both with ``stacks="all"``) functions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from traceprof.snapshots.reading import Frame, Stack

_LIBRARIES: Final = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib(?:64)?[/\\]python3|^<frozen|\.so(?:\.|$)"
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
_MAKING: Final = frozenset(
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
_MAKERS: Final = re.compile(r"[/\\]torch[/\\]nn[/\\](?:modules[/\\]\w+|init|parameter)\.py$")
_BASE_MODULES: Final = frozenset({"module", "container"})
_MOST_FRAMES: Final = 12


class Phase(StrEnum):
    """In which part of a training program memory was asked for, as its stack tells."""

    MAKING = "making the model"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    WORKSPACE = "workspace"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an allocation came from; "" what its stack does not tell.

    ``place``: the innermost line outside libraries; ``operator``: of ATen, or the node of autograd;
    ``module``: the kind of layer that was called; ``calls``: the Python frames, innermost first.
    """

    phase: Phase
    place: str
    operator: str
    module: str
    calls: str


NOWHERE: Final = Origin(Phase.UNKNOWN, "", "", "", "")


def origin_of(stack: Stack) -> Origin:
    """Return what ``stack`` tells."""
    python = [frame for frame in stack if frame.file.endswith(".py")]
    own = next((frame for frame in python if not _LIBRARIES.search(frame.file)), None)
    node = next((found[1] for one in stack if (found := _NODE.search(one.name))), "")
    operators = [found[1] for one in stack if (found := _OPERATOR.match(one.name))]
    operator = node or (f"aten::{operators[-1]}" if operators else "")
    modules = [found[1] for one in python if (found := _MODULE.search(one.file))]
    return Origin(
        _phase_of(stack, python),
        "" if own is None else _said(own),
        operator,
        next((name for name in modules if name not in _BASE_MODULES), ""),
        " < ".join(map(_said, python[:_MOST_FRAMES])),
    )


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
    if any(frame.name in _MAKING and _MAKERS.search(frame.file) for frame in python) or (
        any(frame.name == "__init__" and _MAKERS.search(frame.file) for frame in python)
    ):
        return Phase.MAKING
    return Phase.FORWARD if python else Phase.UNKNOWN


def _said(frame: Frame) -> str:
    return f"{PurePosixPath(frame.file.replace(chr(92), '/')).name}:{frame.line} {frame.name}"

"""Find the kernels and operators that recompute the forward pass inside the backward pass.

Activation checkpointing frees activations after the forward pass and computes them again in the
backward pass. PyTorch has two implementations:

* With ``use_reentrant=True``, the autograd function ``CheckpointFunctionBackward`` recomputes. The
  gradients are nested autograd functions.
* With ``use_reentrant=False``, the first autograd function that needs a freed activation
  recomputes, before it computes its gradients.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceprof.measures.facts import fact, of_rows
from traceprof.measures.host.launches import innermost, launches_of
from traceprof.measures.host.threads import autograd_rows
from traceprof.measures.rows import Bools, Ints, are_named
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_RECOMPUTES: Final = re.compile(
    r"^autograd::engine::evaluate_function: \w{0,80}([Cc]heckpoint|[Rr]ecomput)\w{0,80}Backward"
)
_LAYERS: Final = re.compile(r"^aten::(linear|conv[123]d|scaled_dot_product_attention)(, |$)")
"""Operators that only a forward pass calls; gradients have other operators."""
_FORWARD: Final = re.compile(
    _LAYERS.pattern + r"|^aten::(\w+_norm|embedding|dropout|gelu|silu|relu_?)(, |$)"
)
"""The same, and operators that the backward pass of a user's autograd function may call."""
_SPAN: Final = ("start_ns", "end_ns", "process", "thread")


@fact
def autograd_functions(trace: Trace) -> Table:
    """Return the calls of autograd functions, which may be nested, by start.

    Columns: start_ns, end_ns, process, thread, name (Names), and until_ns, the end of the
    recomputation at the beginning of the call (start_ns without recomputation). It does not include
    nested calls.
    """
    parts = (trace.host_ops, trace.ranges.take(trace.ranges["kind"] == "push_pop"))
    named = [(part, autograd_rows(part["name"])) for part in parts]
    calls = _stacked([part.take(rows) for part, rows in named])
    forward = _stacked([part.take(are_named(part["name"], _FORWARD)) for part in parts])
    outer = innermost(calls, forward["process"], forward["thread"], forward["start_ns"])
    is_inside, is_layer = outer >= 0, are_named(forward["name"], _LAYERS)
    until = np.zeros(len(calls), np.int64)
    np.maximum.at(until, outer[is_inside], forward["end_ns"][is_inside])
    has_layers = np.bincount(outer[is_inside & is_layer], minlength=len(calls)) > 0
    until = np.where(has_layers, until, calls["start_ns"])
    recomputes = are_named(calls["name"], _RECOMPUTES)
    return calls.assign(until_ns=np.where(recomputes, calls["end_ns"], until))


def _stacked(parts: list[Table]) -> Table:
    """Return the spans of ``parts`` with their names, sorted as all tables are."""
    spans = Table.stacked([part.select(*_SPAN, "name") for part in parts])
    return spans.in_order("start_ns", "-end_ns")


def are_recomputed(trace: Trace, process: Ints, thread: Ints, instants: Ints) -> Bools:
    """Return at which instants a thread recomputes the forward pass."""
    functions = autograd_functions(trace)
    rows = innermost(functions, process, thread, instants)
    return np.asarray(np.append(functions["until_ns"], -1)[rows] > instants, np.bool_)


@of_rows
def recomputed_rows(trace: Trace, table: str) -> Bools:
    """Return which rows of a device table recompute the forward pass."""
    launches = launches_of(trace, table)
    found = are_recomputed(trace, launches.process, launches.thread, launches.start_ns)
    return np.asarray(found & launches.is_known, np.bool_)


@of_rows
def rows_in_autograd(trace: Trace, table: str) -> Bools:
    """Return which rows of a device table were launched in an autograd function."""
    launches, functions = launches_of(trace, table), autograd_functions(trace)
    rows = innermost(functions, launches.process, launches.thread, launches.start_ns)
    return np.asarray((rows >= 0) & launches.is_known, np.bool_)

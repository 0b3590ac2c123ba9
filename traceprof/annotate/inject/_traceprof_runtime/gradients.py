"""Detects whether a backward pass adds to the gradients of the previous pass.

It is used if no optimizer of torch steps. A program that updates its parameters itself, or with an
optimizer from another library, resets its gradients after each update. So passes that add to the
same gradients belong to the same step. One parameter per pass is observed: the nearest to the loss.
"""

import weakref
from collections import deque

from . import session

KEPT = "gradients.kept"  # name of the empty range before a pass that adds to gradients
_MAX_NODES = 64
_MAX_ADDING_PASSES = 64  # after so many in a row, the program must reset gradients undetected
_MAX_PARAMETERS = 64
# id of a parameter -> (weak reference, state of its gradient after the last pass)
_kept_gradients = session.clear_at_exit({})
_n_adding_passes = 0  # passes in a row that added
_has_any_added = None  # whether any pass has added; None: unknown after at most one pass
_n_held_passes = 0  # passes of the open step, if it lasts until gradients are reset; else 0


def begin_pass(tensors):
    """Return the parameter to observe in a starting backward pass, and whether the pass adds to it.

    The parameter is None if ``tensors``, the roots of the pass, depend on no parameter.
    """
    global _has_any_added, _n_adding_passes
    parameter = _find_parameter(tensors)
    if parameter is None:
        return None, False
    reference, kept = _kept_gradients.get(id(parameter), (None, None))
    adds = kept is not None and reference() is parameter and kept == _read_gradient_state(parameter)
    _n_adding_passes = _n_adding_passes + 1 if adds else 0
    if adds:
        _has_any_added = True
    elif _kept_gradients and _has_any_added is None:
        _has_any_added = False
    return parameter, adds


def end_pass(parameter):
    """Note the state of the gradient of ``parameter`` after a pass."""
    global _n_held_passes
    key = id(parameter)
    if len(_kept_gradients) >= _MAX_PARAMETERS:
        _kept_gradients.clear()
    _kept_gradients[key] = (
        weakref.ref(parameter, lambda _: _kept_gradients.pop(key, None)),
        _read_gradient_state(parameter),
    )
    _n_held_passes = (
        _n_held_passes + 1
        if _has_any_added is not False and _n_adding_passes < _MAX_ADDING_PASSES
        else 0
    )


def end_step():
    """Note that the step is over."""
    global _n_held_passes
    _n_held_passes = 0


def keeps_step_open():
    """Return whether the open step continues after its backward passes."""
    return _n_held_passes > 0


def were_reset():
    """Return whether any gradient of the open step has changed since its last pass."""
    if not _n_held_passes:
        return False
    states = [(reference(), state) for reference, state in list(_kept_gradients.values())]
    return any(
        parameter is not None and state != _read_gradient_state(parameter)
        for parameter, state in states
    )


def _find_parameter(tensors):
    """Return the parameter nearest to ``tensors`` in the autograd graph; None if there is none."""
    if not isinstance(tensors, (list, tuple)):
        tensors = (tensors,)
    nodes = deque(node for node in (getattr(tensor, "grad_fn", None) for tensor in tensors) if node)
    for _ in range(_MAX_NODES):
        if not nodes:
            return None
        node = nodes.popleft()
        parameter = getattr(node, "variable", None)
        if parameter is not None:
            return parameter
        nodes.extend(inner for inner, _ in getattr(node, "next_functions", ()) if inner)
    return None


def _read_gradient_state(parameter):
    """Return address and version of a parameter's gradient; None if it has none."""
    gradient = parameter.grad
    try:
        return None if gradient is None else (gradient.data_ptr(), gradient._version)
    except (RuntimeError, AttributeError):
        return None

"""Whether a backward pass adds to the gradients of the one before, where no optimizer is seen.

A program that updates its parameters by itself, or by an optimizer that is none of torch's, resets
its gradients after each update: what is added to them is of the same step. Of the parameters one
is looked at, the nearest to the loss.
"""

import weakref
from collections import deque

from . import session

KEPT = "gradients.kept"  # the name of the range ahead of a pass that adds
_MANY_NODES = 64
_MANY_PASSES = 64  # that add, without one that does not: the program resets them unseen
_MANY_PARAMETERS = 64
# id of a parameter -> (weak reference, its gradient as the last pass left it)
_left = session.until_exit({})
_added = 0  # passes in a row that added
_adds = None  # whether any pass has added; None: there was but one
_held = 0  # passes of the open step, if it goes on until gradients are reset


def begin_pass(tensors):
    """Return the parameter to look at of a backward pass that begins, and whether it adds to it.

    None where ``tensors``, whose gradients are asked for, hang on no parameter.
    """
    global _adds, _added
    parameter = _parameter_of(tensors)
    if parameter is None:
        return None, False
    reference, left = _left.get(id(parameter), (None, None))
    adds = left is not None and reference() is parameter and left == _state(parameter)
    _added = _added + 1 if adds else 0
    if adds:
        _adds = True
    elif _left and _adds is None:
        _adds = False
    return parameter, adds


def end_pass(parameter):
    """Note how a pass has left the gradient of ``parameter``."""
    global _held
    key = id(parameter)
    if len(_left) >= _MANY_PARAMETERS:
        _left.clear()
    _left[key] = (weakref.ref(parameter, lambda _: _left.pop(key, None)), _state(parameter))
    _held = _held + 1 if _adds is not False and _added < _MANY_PASSES else 0


def end_step():
    """Note that the step is over."""
    global _held
    _held = 0


def holds():
    """Return whether the open step goes on after its backward passes."""
    return _held > 0


def were_reset():
    """Return whether the gradients of the open step are no longer as they were left."""
    if not _held:
        return False
    kept = [(reference(), left) for reference, left in list(_left.values())]
    return any(one is not None and left != _state(one) for one, left in kept)


def _parameter_of(tensors):
    if not isinstance(tensors, (list, tuple)):
        tensors = (tensors,)
    nodes = deque(node for node in (getattr(one, "grad_fn", None) for one in tensors) if node)
    for _ in range(_MANY_NODES):
        if not nodes:
            return None
        node = nodes.popleft()
        parameter = getattr(node, "variable", None)
        if parameter is not None:
            return parameter
        nodes.extend(inner for inner, _ in getattr(node, "next_functions", ()) if inner)
    return None


def _state(parameter):
    """Return where a gradient lies and how often it was written, None where there is none."""
    gradient = parameter.grad
    try:
        return None if gradient is None else (gradient.data_ptr(), gradient._version)
    except (RuntimeError, AttributeError):
        return None

"""Whether a forward pass trains or evaluates: what its mode says, or what followed the last time.

Without gradients nothing is trained, whatever the mode: many validate in the mode for training,
and losses that are modules are always in it. Models with frozen statistics are trained in their
mode for evaluation. That a backward pass follows shows only afterwards; what a module did the last
time it is taken to do again.
"""

_passed = set()  # ids of the modules that ran so since the last backward pass
_trained = set()


def phase_of(module, has_gradients):
    """Return "forward" or "eval" for a call of ``module``, and remember it."""
    if not has_gradients:
        return "eval"
    if module.training:
        _passed.clear()  # what comes back is its own
        return "forward"
    _passed.add(id(module))
    return "forward" if id(module) in _trained else "eval"


def begin_backward():
    """Note that gradients are asked for: of what ran since they were the last time."""
    if _passed:
        _trained.update(_passed)
        _passed.clear()

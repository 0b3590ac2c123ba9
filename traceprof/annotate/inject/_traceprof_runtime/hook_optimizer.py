"""Optimizer steps and the resetting of gradients.

The class's ``step`` is wrapped when the first instance is made: torch's public step hooks are
silently dropped by torch 2.1 once its compiler has been imported.
"""

import functools

from . import session, steps
from .compiling import get_is_compiling


def install(torch):
    """Wrap the methods of every optimizer class that is used."""
    is_compiling = get_is_compiling(torch)
    optimizer = torch.optim.Optimizer
    original = optimizer.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        cls = type(self)
        if cls.step not in _wrappers:
            cls.step = _wrapped(cls.step, "optimizer", is_compiling, steps.optimized)

    optimizer.__init__ = __init__
    optimizer.zero_grad = _wrapped(optimizer.zero_grad, "zero_grad", is_compiling)


_wrappers = set()


def _wrapped(original, name, is_compiling, afterwards=None):
    def method(self, *args, **kwargs):
        if is_compiling() or not session.active:
            return original(self, *args, **kwargs)
        emitter = session.emitter()
        emitter.push(name, steps.number)
        try:
            result = original(self, *args, **kwargs)
        finally:
            emitter.pop()
        if afterwards is not None:
            afterwards()
        return result

    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(method, attribute, getattr(original, attribute))
    if getattr(original, "hooked", False):  # torch's mark that it has wrapped this method itself
        method.hooked = True
    _wrappers.add(method)
    return method

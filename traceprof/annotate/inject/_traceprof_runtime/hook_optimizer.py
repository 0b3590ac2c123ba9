"""Optimizer steps and the resetting of gradients.

The class's ``step`` is wrapped when the first instance is made: torch's public step hooks are
silently dropped by torch 2.1 once its compiler has been imported. Optimizers are numbered, and
those after the first bear their number in the name of the range: what takes turns is one step.
"""

import functools
import itertools
import weakref

from . import session, steps
from .compiling import get_is_compiling

_wrappers = set()
# id of an optimizer -> (weak reference, number); kept beside the optimizers, never on them
_numbers = {}


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
            cls.step = _wrapped_step(cls.step, is_compiling)
        steps.made(_number_of(self))

    optimizer.__init__ = __init__
    for owner in (optimizer, torch.nn.Module):
        owner.zero_grad = _wrapped(owner.zero_grad, "zero_grad", is_compiling)


def _number_of(optimizer):
    """Return the number of an optimizer: the smallest that no other has."""
    known = _numbers.get(id(optimizer))
    if known is not None and known[0]() is optimizer:
        return known[1]
    taken = {number for _, number in _numbers.values()}
    number = next(number for number in itertools.count(1) if number not in taken)
    forget = functools.partial(_forget, id(optimizer), number)
    _numbers[id(optimizer)] = (weakref.ref(optimizer, forget), number)
    return number


def _forget(key, number, _reference):
    if _numbers.get(key, (None, None))[1] == number:
        del _numbers[key]
    steps.gone(number)


def _wrapped_step(original, is_compiling):
    def method(self, *args, **kwargs):
        if is_compiling() or not session.active:
            return original(self, *args, **kwargs)
        number = _number_of(self)
        steps.begin_optimizer(number)
        emitter = session.emitter()
        emitter.push("optimizer" if number == 1 else "optimizer#%d" % number, steps.number)
        is_done = False
        try:
            result = original(self, *args, **kwargs)
            is_done = True
        finally:
            emitter.pop()
            steps.end_optimizer(number, is_done)
        return result

    return _disguised(method, original)


def _wrapped(original, name, is_compiling):
    def method(self, *args, **kwargs):
        if is_compiling() or not session.active:
            return original(self, *args, **kwargs)
        emitter = session.emitter()
        emitter.push(name, steps.number)
        try:
            return original(self, *args, **kwargs)
        finally:
            emitter.pop()

    return _disguised(method, original)


def _disguised(method, original):
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(method, attribute, getattr(original, attribute))
    if getattr(original, "hooked", False):  # torch's mark that it has wrapped this method itself
        method.hooked = True
    _wrappers.add(method)
    return method

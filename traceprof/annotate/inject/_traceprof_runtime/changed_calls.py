"""Ways to change the calls of a program, for the changes of `traceprof try`."""

import functools
import inspect
import os
import sys
from contextlib import nullcontext

from .compiling import get_is_compiling


def refuse(name, reason):
    """End the program, because a change cannot be made."""
    sys.stderr.write("traceprof: cannot apply change %s: %s\n" % (name, reason))
    sys.stderr.flush()
    os._exit(97)  # an exception would only be reported by the caller


def override_arguments(cls, select_options):
    """Override constructor arguments of every instance of a class.

    ``select_options`` receives the program's arguments by name, and returns the new ones.
    """
    original = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        try:
            bound = signature.bind(self, *args, **kwargs).arguments
        except TypeError:  # the program's arguments are wrong: let the class raise
            return original(self, *args, **kwargs)
        arguments = {name: value for name, value in bound.items() if name != "self"}
        named = arguments.pop("kwargs", {})
        if arguments.pop("args", ()):
            return original(self, *args, **kwargs)
        arguments.update(named)
        arguments.update(select_options(arguments))
        return original(self, **arguments)

    cls.__init__ = __init__


def wrap_forward(torch, prepare=None, convert=None, make_context=nullcontext, finish=None):
    """Wrap the calls of outermost modules.

    ``prepare`` is called with each module before its first call. ``convert`` is applied to every
    input tensor, and ``finish`` to every output tensor. ``make_context`` returns the context
    manager that the call runs in.
    """
    original = torch.nn.Module.__call__
    is_compiling = get_is_compiling(torch)
    prepared, state = set(), {"depth": 0}

    def __call__(self, *args, **kwargs):
        if is_compiling() or state["depth"]:
            return original(self, *args, **kwargs)
        if prepare is not None and id(self) not in prepared:
            prepared.add(id(self))
            prepare(self)
        if convert is not None:
            args, kwargs = _map_tensors(torch, args, convert), _map_tensors(torch, kwargs, convert)
        state["depth"] += 1
        try:
            with make_context():
                result = original(self, *args, **kwargs)
        finally:
            state["depth"] -= 1
        return result if finish is None else _map_tensors(torch, result, finish)

    torch.nn.Module.__call__ = __call__


def _map_tensors(torch, value, function):
    """Return ``value`` with ``function`` applied to the tensors in its dicts, lists, and tuples."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return type(value)(
            (key, _map_tensors(torch, item, function)) for key, item in value.items()
        )
    if type(value) in (list, tuple):
        return type(value)(_map_tensors(torch, item, function) for item in value)
    return value

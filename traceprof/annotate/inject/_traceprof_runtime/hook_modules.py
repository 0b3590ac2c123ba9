"""Forward passes: a range for each outermost call of a module, and for layers on demand.

``nn.Module.__call__`` is replaced as a whole: the global hooks of torch cost more and make
torch.compile warn.
"""

import threading
import weakref

from . import hook_data, session, settings, steps
from .compiling import get_is_compiling

_local = threading.local()


def install(torch):
    """Wrap ``nn.Module.__call__``."""
    original = torch.nn.Module.__call__
    is_compiling = get_is_compiling(torch)
    is_grad_enabled = torch.is_grad_enabled
    call_layer = _layer_call(original) if settings.layer_depth() else original

    def __call__(self, *args, **kwargs):
        if is_compiling():
            return original(self, *args, **kwargs)
        state = _local.__dict__
        if not session.active or getattr(hook_data.local, "is_fetching", False):
            return original(self, *args, **kwargs)
        if state.get("depth", 0):
            return call_layer(self, *args, **kwargs)
        emitter = session.emitter()
        if self.training and is_grad_enabled():
            steps.computing()
        emitter.push("forward" if self.training else "eval", steps.number)
        state["depth"] = 1
        try:
            return original(self, *args, **kwargs)
        finally:
            state["depth"] = 0
            emitter.pop()

    torch.nn.Module.__call__ = __call__


def _layer_call(original):
    """Return the call of an inner module with a range of its own."""
    names = weakref.WeakKeyDictionary()
    deepest = settings.layer_depth()

    def call_layer(self, *args, **kwargs):
        depth = _local.depth
        if depth > deepest:
            return original(self, *args, **kwargs)
        emitter = session.emitter()
        emitter.push(_name_of(self, names), steps.number)
        _local.depth = depth + 1
        try:
            return original(self, *args, **kwargs)
        finally:
            _local.depth = depth
            emitter.pop()

    return call_layer


def _name_of(module, names):
    name = names.get(module)
    if name is None:
        for path, inner in module.named_modules():
            names.setdefault(inner, "layer:%s:%s" % (path, type(inner).__name__))
        name = names[module]
    return name

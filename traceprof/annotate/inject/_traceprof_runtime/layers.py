"""Ranges for the modules inside the outermost one: forward, and backward of the innermost.

In the backward pass a layer's range lasts from the gradient of its output to that of the next
layer's output: autograd works through the layers one after another. Names are kept beside the
modules, never on them.
"""

import functools
import threading
import weakref

from . import session, settings, steps

local = threading.local()  # depth: how many calls of modules are open on this thread
_NOBODY = (lambda: None, None)
_open_backward = None  # the layer whose backward runs: (emitter, token)


class Layers:
    """Calls modules in ranges of their own, down to the depth that was asked for."""

    def __init__(self, torch, original):
        self.deepest = settings.LAYER_DEPTH
        self._torch = torch
        self._original = original
        # id of a module → (weak reference, name). No WeakKeyDictionary: it is written in Python,
        # and torch.compile would compile its methods where a compiled model calls this one.
        self._names = {}

    def name_all(self, root):
        """Learn the names of the modules in ``root`` when it is first called."""
        if self._name_of(root) is None:
            for path, module in root.named_modules():
                name = "%s:%s" % (path, type(module).__name__)
                forget = functools.partial(self._names.pop, id(module))
                self._names[id(module)] = (weakref.ref(module, forget), name)

    def _name_of(self, module):
        reference, name = self._names.get(id(module), _NOBODY)
        return name if reference() is module else None

    def call(self, module, args, kwargs):
        """Call an inner module in a range of its own."""
        emitter = session.emitter()
        name = self._name_of(module) or "?:%s" % type(module).__name__
        emitter.push("layer:" + name, steps.number)
        local.depth += 1
        try:
            output = self._original(module, *args, **kwargs)
        finally:
            local.depth -= 1
            emitter.pop()
        if local.depth == self.deepest or next(module.children(), None) is None:
            self._follow_backward(name, output)
        return output

    def _follow_backward(self, name, output):
        tensor = self._tensor_in(output)
        if tensor is not None and tensor.requires_grad:
            tensor.register_hook(functools.partial(_begin_backward, "layer.backward:" + name))

    def _tensor_in(self, output):
        if isinstance(output, self._torch.Tensor):
            return output
        if isinstance(output, (list, tuple)):
            found = (part for part in output if isinstance(part, self._torch.Tensor))
            return next(found, None)
        return None


def _begin_backward(name, _gradient):
    global _open_backward
    end_backward()
    if session.active:
        emitter = session.emitter()
        _open_backward = (emitter, emitter.start(name, steps.number))


def end_backward():
    """End the range of the last layer of a backward pass."""
    global _open_backward
    if _open_backward is not None:
        emitter, token = _open_backward
        _open_backward = None
        emitter.end(token)

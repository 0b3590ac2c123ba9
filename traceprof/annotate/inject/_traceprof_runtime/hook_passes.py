"""Forward and backward passes: a range for each outermost call, and for layers on demand.

``nn.Module.__call__`` is replaced as a whole: the global hooks of torch cost more and make
torch.compile warn. Names of layers are kept beside the modules, never on them. In the backward pass
a layer's range lasts from the gradient of its output to that of its input, where that is no other's
output: autograd works through the layers one after another. What lies between two layers, such as
functions, is of the layer around both.

Whether a forward pass trains or evaluates is what its mode says, or what followed the last time.
Without gradients nothing is trained, whatever the mode: many validate in the mode for training,
and losses that are modules are always in it. Models with frozen statistics are trained in their
mode for evaluation. That a backward pass follows shows only afterwards; what a module did the last
time it is taken to do again.
"""

import functools
import threading
import weakref

from . import gradients, hook_loading, session, settings, steps
from .compiling import get_is_compiling, is_compiled_graph, is_tracing
from .replaced import replace

local = threading.local()  # depth: how many calls of modules are open on this thread
_NOBODY = (lambda: None, None)
_open_backward = None  # the layer whose backward runs: (emitter, token)
_passed = set()  # ids of the modules that ran so since the last backward pass
_trained = set()


def install_modules(torch):
    """Wrap ``nn.Module.__call__``."""
    original = torch.nn.Module.__call__
    is_compiling = get_is_compiling(torch)
    is_grad_enabled = torch.is_grad_enabled
    layers = Layers(torch, original) if settings.LAYER_DEPTH else None

    def __call__(self, *args, **kwargs):
        if is_compiling():
            return original(self, *args, **kwargs)
        state = local.__dict__
        if not session.active or getattr(hook_loading.local, "is_fetching", False):
            return original(self, *args, **kwargs)
        if state.get("depth", 0):
            if layers is None or state["depth"] > layers.deepest:
                return original(self, *args, **kwargs)
            return layers.call(self, args, kwargs)
        has_gradients = is_grad_enabled()
        if not has_gradients and is_compiled_graph(self):
            return original(self, *args, **kwargs)
        emitter = session.emitter()
        name = phase_of(self, has_gradients)
        steps.passing(may_train=name == "forward")
        emitter.push(name, steps.number)
        if layers is not None:
            layers.name_all(self)
        state["depth"] = 1
        try:
            return original(self, *args, **kwargs)
        finally:
            state["depth"] = 0
            emitter.pop()
            steps.passed()

    replace(torch.nn.Module, "__call__", __call__)


def phase_of(module, has_gradients):
    """Return "forward" or "eval" for a call of ``module``, and remember it."""
    if not has_gradients:
        return "eval"
    if module.training:
        _passed.clear()  # what comes back is its own
        return "forward"
    _passed.add(id(module))
    return "forward" if id(module) in _trained else "eval"


def gradients_are_asked():
    """Note that gradients are asked for: of what ran since they were the last time."""
    if _passed:
        _trained.update(_passed)
        _passed.clear()


class Layers:
    """Calls modules in ranges of their own, down to the depth that was asked for."""

    def __init__(self, torch, original):
        self.deepest = settings.LAYER_DEPTH
        self._torch = torch
        self._original = original
        # id of a module → (weak reference, name). No WeakKeyDictionary: it is written in Python,
        # and torch.compile would compile its methods where a compiled model calls this one.
        self._names = session.until_exit({})

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
        outer, local.layer = local.__dict__.get("layer"), name
        # What gave it its input is no layer of its own, or has begun its range by then.
        self._follow_backward(outer, (*args, *kwargs.values()))
        emitter.push("layer:" + name, steps.number)
        local.depth += 1
        try:
            output = self._original(module, *args, **kwargs)
        finally:
            local.depth -= 1
            local.layer = outer
            emitter.pop()
        self._follow_backward(name, output)
        return output

    def _follow_backward(self, name, output):
        """Begin the range of a layer (None: of nobody) with the gradient of the first tensor.

        Who asks for it first has it: a layer may return what the last one in it did.
        """
        parts = output if isinstance(output, (list, tuple)) else (output,)
        tensor = next((part for part in parts if isinstance(part, self._torch.Tensor)), None)
        if tensor is None or not tensor.requires_grad:
            return
        known = (tensor._backward_hooks or {}).values()
        if not any(getattr(one, "func", None) is _begin_layer for one in known):
            tensor.register_hook(functools.partial(_begin_layer, name))


def _begin_layer(name, _gradient):
    global _open_backward
    _end_layer()
    if name is not None and session.active:
        emitter = session.emitter()
        _open_backward = (emitter, emitter.start("layer.backward:" + name, steps.number))


def _end_layer():
    """End the range of the last layer of a backward pass."""
    global _open_backward
    if _open_backward is not None:
        emitter, token = _open_backward
        _open_backward = None
        emitter.end(token)


def install_backward(torch):
    """Wrap ``torch.autograd.backward`` and ``torch.autograd.grad``."""
    for name in ("backward", "grad"):
        method = _wrapped(getattr(torch.autograd, name), name == "backward")
        replace(torch.autograd, name, method)


def _wrapped(original, leaves_gradients):
    @functools.wraps(original)
    def compute_gradients(*args, **kwargs):
        if not (session.active or session.resume_in_fork()) or is_tracing():
            return original(*args, **kwargs)
        gradients_are_asked()
        emitter = session.emitter()
        parameter, adds = None, False
        if leaves_gradients and steps.follows_gradients():
            tensors = args[0] if args else kwargs.get("tensors")
            parameter, adds = gradients.begin_pass(tensors)
        if adds:  # of no time: the analysis must know
            emitter.push(gradients.KEPT, steps.number)
            emitter.pop()
        steps.begin_backward(adds)
        emitter.push("backward", steps.number)
        try:
            return original(*args, **kwargs)
        finally:
            _end_layer()
            emitter.pop()
            if parameter is not None:
                gradients.end_pass(parameter)
            steps.end_backward()

    return compute_gradients

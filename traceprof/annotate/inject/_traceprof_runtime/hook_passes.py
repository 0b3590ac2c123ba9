"""Hooks for forward and backward passes: a range for each outermost call, and for layers on demand.

``nn.Module.__call__`` is replaced as a whole, because torch's global hooks cost more and make
torch.compile warn. Layer names are stored in this module, because modules are not modified.

In the backward pass, a layer's range begins with the gradient of its output. It ends when the next
layer's range begins. If its input is not the output of another layer, it ends with the gradient of
its input. This works because autograd processes the layers one after another. Functions between
two layers belong to the layer that contains both.

A forward pass in training mode trains. A forward pass in evaluation mode trains if a backward pass
followed the last time: models with frozen statistics are trained in evaluation mode. Whether a
backward pass follows is known only afterwards, so each module is assumed to repeat its last
behavior. Without gradients, nothing is trained, in either mode: many programs validate in training
mode, and losses that are modules are always in training mode.
"""

import functools
import threading
import weakref

from . import gradients, hook_environments, hook_loading, hook_rollouts, session, settings, steps
from .compiling import get_is_compiling, is_compiled_graph, is_tracing
from .decoding import count_trained
from .replaced import replace

local = threading.local()  # depth: number of open module calls on this thread
_UNKNOWN = (lambda: None, None)
_open_backward = None  # open backward range of a layer: (emitter, token)
_eval_modules = set()  # ids of modules that ran in evaluation mode since the last backward pass
_trained_eval_modules = set()  # ids of modules that train in evaluation mode


def install_modules(torch):
    """Wrap ``nn.Module.__call__``."""
    original = torch.nn.Module.__call__
    is_compiling = get_is_compiling(torch)
    is_grad_enabled = torch.is_grad_enabled
    layers = Layers(torch, original) if settings.LAYER_DEPTH else None
    call_outermost = _counting_tokens(torch, original) if settings.LIVE else original

    def __call__(self, *args, **kwargs):
        # Most calls are those of inner modules.
        if is_compiling() or (layers is None and local.__dict__.get("depth", 0)):
            return original(self, *args, **kwargs)
        state = local.__dict__
        if not session.active or getattr(hook_loading.local, "is_fetching", False):
            return original(self, *args, **kwargs)
        if state.get("depth", 0):
            if state["depth"] > layers.deepest:
                return original(self, *args, **kwargs)
            return layers.call(self, args, kwargs)
        has_gradients = is_grad_enabled()
        if not has_gradients and is_compiled_graph(self):
            return original(self, *args, **kwargs)
        name = phase_of(self, has_gradients)
        name = hook_rollouts.begin_pass(torch, self, args, kwargs, name)
        if name == "eval":
            hook_environments.find_environments(torch)
        steps.begin_forward(may_train=name == "forward")
        emitter = session.emitter()
        emitter.push(name, steps.number)
        if layers is not None:
            layers.find_names(self)
        state["depth"] = 1
        try:
            return call_outermost(self, *args, **kwargs)
        finally:
            state["depth"] = 0
            emitter.pop()
            hook_rollouts.end_pass()
            steps.end_forward()

    replace(torch.nn.Module, "__call__", __call__)


def _counting_tokens(torch, original):
    """Return ``original``; with gradients, it counts tokens in the live status."""
    from .live import status

    tensor, is_grad_enabled = torch.Tensor, torch.is_grad_enabled

    def call(module, *args, **kwargs):
        output = original(module, *args, **kwargs)
        has_floats = args and type(args[0]) is tensor and args[0].is_floating_point()
        if not has_floats and is_grad_enabled():  # the usual case is decided fast
            status.emitter.step_tokens += count_trained(torch, module, args, kwargs, output)
        return output

    return call


def phase_of(module, has_gradients):
    """Return "forward" (training) or "eval" for a call of ``module``, and note the call."""
    if not has_gradients:
        return "eval"
    if module.training:
        _eval_modules.clear()  # the next backward pass belongs to this module
        return "forward"
    _eval_modules.add(id(module))
    return "forward" if id(module) in _trained_eval_modules else "eval"


def note_gradient_pass():
    """Note that gradients are computed: the modules that ran since the last time train."""
    if _eval_modules:
        _trained_eval_modules.update(_eval_modules)
        _eval_modules.clear()


class Layers:
    """Calls modules in ranges of their own, down to the requested depth."""

    def __init__(self, torch, original):
        self.deepest = settings.LAYER_DEPTH
        self._torch = torch
        self._original = original
        # id of a module → (weak reference, name). Not a WeakKeyDictionary: it is written in Python,
        # and torch.compile would compile its methods if a compiled model calls this module.
        self._names = session.clear_at_exit({})

    def find_names(self, root):
        """Store the names of all modules in ``root`` at its first call."""
        if self._name_of(root) is None:
            for path, module in root.named_modules():
                name = "%s:%s" % (path, type(module).__name__)
                forget = functools.partial(self._names.pop, id(module))
                self._names[id(module)] = (weakref.ref(module, forget), name)

    def _name_of(self, module):
        reference, name = self._names.get(id(module), _UNKNOWN)
        return name if reference() is module else None

    def call(self, module, args, kwargs):
        """Call an inner module in a range of its own."""
        emitter = session.emitter()
        name = self._name_of(module) or "?:%s" % type(module).__name__
        outer, local.layer = local.__dict__.get("layer"), name
        # The producer of the input is no layer, or its backward range has begun already.
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
        """Begin a layer's backward range with the gradient of the first tensor in ``output``.

        ``name`` None: only end the previous layer's range. The first call for a tensor wins, as a
        layer may return the output of its last inner layer.
        """
        parts = output if isinstance(output, (list, tuple)) else (output,)
        tensor = next((part for part in parts if isinstance(part, self._torch.Tensor)), None)
        if tensor is None or not tensor.requires_grad:
            return
        hooks = (tensor._backward_hooks or {}).values()
        if not any(getattr(hook, "func", None) is _begin_layer for hook in hooks):
            tensor.register_hook(functools.partial(_begin_layer, name))


def _begin_layer(name, _gradient):
    """End the backward range of the previous layer, and begin the range of this one."""
    global _open_backward
    _end_layer()
    if name is not None and session.active:
        emitter = session.emitter()
        _open_backward = (emitter, emitter.start("layer.backward:" + name, steps.number))


def _end_layer():
    """End the open backward range of a layer, if any."""
    global _open_backward
    if _open_backward is not None:
        emitter, token = _open_backward
        _open_backward = None
        emitter.end(token)


def install_backward(torch):
    """Wrap ``torch.autograd.backward`` and ``torch.autograd.grad``."""
    for name in ("backward", "grad"):
        original = getattr(torch.autograd, name)
        replace(torch.autograd, name, _wrap_gradients(original, name == "backward"))


def _wrap_gradients(original, leaves_gradients):
    """Return ``original`` in a range; ``leaves_gradients``: it stores gradients in parameters."""

    @functools.wraps(original)
    def compute_gradients(*args, **kwargs):
        if not (session.active or session.resume_in_fork()) or is_tracing():
            return original(*args, **kwargs)
        note_gradient_pass()
        hook_rollouts.begin_training()
        emitter = session.emitter()
        parameter, adds = None, False
        if leaves_gradients and steps.follows_gradients():
            tensors = args[0] if args else kwargs.get("tensors")
            parameter, adds = gradients.begin_pass(tensors)
        if adds:  # an empty range, for the analysis
            emitter.push(gradients.KEPT, steps.number)
            emitter.pop()
        steps.begin_backward(adds)
        emitter = session.emitter()
        emitter.push("backward", steps.number)
        try:
            return original(*args, **kwargs)
        finally:
            _end_layer()
            emitter.pop()
            if parameter is not None:
                gradients.end_pass(parameter)
            hook_rollouts.end_training()
            steps.end_backward()

    return compute_gradients

"""Forward passes: a range for each outermost call of a module, and for layers on demand.

``nn.Module.__call__`` is replaced as a whole: the global hooks of torch cost more and make
torch.compile warn.
"""

from . import eval_mode, hook_data, session, settings, steps
from .compiling import get_is_compiling, is_compiled_graph
from .layers import Layers, local


def install(torch):
    """Wrap ``nn.Module.__call__``."""
    original = torch.nn.Module.__call__
    is_compiling = get_is_compiling(torch)
    is_grad_enabled = torch.is_grad_enabled
    layers = Layers(torch, original) if settings.LAYER_DEPTH else None

    def __call__(self, *args, **kwargs):
        if is_compiling():
            return original(self, *args, **kwargs)
        state = local.__dict__
        if not session.active or getattr(hook_data.local, "is_fetching", False):
            return original(self, *args, **kwargs)
        if state.get("depth", 0):
            if layers is None or state["depth"] > layers.deepest:
                return original(self, *args, **kwargs)
            return layers.call(self, args, kwargs)
        has_gradients = is_grad_enabled()
        if not has_gradients and is_compiled_graph(self):
            return original(self, *args, **kwargs)
        emitter = session.emitter()
        name = eval_mode.phase_of(self, has_gradients)
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

    torch.nn.Module.__call__ = __call__

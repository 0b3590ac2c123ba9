"""Backward passes: a range on the thread that asks for gradients."""

import functools

from . import eval_mode, gradients, session, steps
from .compiling import is_tracing
from .layers import end_backward


def install(torch):
    """Wrap ``torch.autograd.backward`` and ``torch.autograd.grad``."""
    for name in ("backward", "grad"):
        setattr(torch.autograd, name, _wrapped(getattr(torch.autograd, name), name == "backward"))


def _wrapped(original, leaves_gradients):
    @functools.wraps(original)
    def compute_gradients(*args, **kwargs):
        if not (session.active or session.resume_in_fork()) or is_tracing():
            return original(*args, **kwargs)
        eval_mode.begin_backward()
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
            end_backward()
            emitter.pop()
            if parameter is not None:
                gradients.end_pass(parameter)
            steps.end_backward()

    return compute_gradients

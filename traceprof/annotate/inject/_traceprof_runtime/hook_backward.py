"""Backward passes: a range on the thread that asks for gradients."""

import functools

from . import eval_mode, session, steps
from .compiling import is_tracing
from .layers import end_backward


def install(torch):
    """Wrap ``torch.autograd.backward`` and ``torch.autograd.grad``."""
    for name in ("backward", "grad"):
        setattr(torch.autograd, name, _wrapped(getattr(torch.autograd, name)))


def _wrapped(original):
    @functools.wraps(original)
    def compute_gradients(*args, **kwargs):
        if not (session.active or session.resume_in_fork()) or is_tracing():
            return original(*args, **kwargs)
        eval_mode.begin_backward()
        steps.begin_backward()
        emitter = session.emitter()
        emitter.push("backward", steps.number)
        try:
            return original(*args, **kwargs)
        finally:
            end_backward()
            emitter.pop()
            steps.end_backward()

    return compute_gradients

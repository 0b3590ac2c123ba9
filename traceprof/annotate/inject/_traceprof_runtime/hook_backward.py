"""Backward passes: a range on the thread that asks for gradients."""

import functools

from . import session, steps
from .layers import end_backward


def install(torch):
    """Wrap ``torch.autograd.backward`` and ``torch.autograd.grad``."""
    for name in ("backward", "grad"):
        setattr(torch.autograd, name, _wrapped(getattr(torch.autograd, name)))


def _wrapped(original):
    @functools.wraps(original)
    def compute_gradients(*args, **kwargs):
        if not (session.active or session.resume_in_fork()):
            return original(*args, **kwargs)
        steps.computing()
        emitter = session.emitter()
        emitter.push("backward", steps.number)
        try:
            return original(*args, **kwargs)
        finally:
            end_backward()
            emitter.pop()

    return compute_gradients

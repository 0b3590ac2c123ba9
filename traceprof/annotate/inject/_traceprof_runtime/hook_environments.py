"""Hooks for environments: the other half of a rollout, which lasts until their last step.

Three sources name them:

- ``gymnasium.make``.
- Objects that look like an environment: they have ``reset`` and ``step``, and a step returns an
  observation, a reward, whether the episode ended, and possibly more. They are looked for in the
  functions that create an optimizer (a warm-up of random actions may follow, without a policy) or
  call a policy without gradients.
- Actions: a program that samples from a distribution after a pass without gradients acts on the
  sample, whatever its environment is. If it awaits the results, the rollout lasts until the event
  loop has run.
"""

import asyncio
import functools
import inspect
import sys

from . import hook_rollouts, session, steps
from .after_import import call_after_import
from .clock import time_ns
from .compiling import get_is_compiling
from .replaced import replace
from .rollout_calls import ENVIRONMENT

_DISTRIBUTIONS = ("Bernoulli", "Beta", "Categorical", "Normal", "TransformedDistribution")
_MAX_CALLERS = 8
_MIN_RESULTS = 3  # observation, reward, whether the episode ended
_searched = session.clear_at_exit({})  # code of functions → True
_is_installed = False


def install_environments(torch):
    """Wrap gymnasium and the distributions of actions."""
    global _is_installed
    _is_installed = True
    call_after_import("gymnasium", functools.partial(_wrap_make, torch))
    is_compiling = get_is_compiling(torch)
    for name in _DISTRIBUTIONS:
        cls = getattr(torch.distributions, name)
        replace(cls, "sample", _wrap_sample(is_compiling, cls.sample))
    optimizer = torch.optim.Optimizer
    replace(optimizer, "__init__", _wrap_optimizer(torch, optimizer.__init__))
    loop = asyncio.BaseEventLoop
    replace(loop, "run_until_complete", _wrap_loop(loop.run_until_complete))


def _wrap_make(torch, gymnasium):
    """Wrap ``gymnasium.make``: the outermost of the wrappers that it returns steps in a range."""
    original = gymnasium.make

    @functools.wraps(original)
    def make(*args, **kwargs):
        environment = original(*args, **kwargs)
        if session.active:
            environment.step = hook_rollouts.in_phase(torch, environment.step, ENVIRONMENT)
        return environment

    replace(gymnasium, "make", make)


def _wrap_optimizer(torch, original):
    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if session.active:
            find_environments(torch, is_last=False)

    return __init__


def _wrap_sample(is_compiling, original):
    @functools.wraps(original)
    def sample(*args, **kwargs):
        result = original(*args, **kwargs)
        if not is_compiling() and session.active:
            hook_rollouts.note_action()
        return result

    return sample


def _wrap_loop(original):
    @functools.wraps(original)
    def run_until_complete(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        finally:
            if session.active:
                hook_rollouts.note_action(is_new=False)

    return run_until_complete


def find_environments(torch, is_last=True):
    """Wrap the environments that the callers of a hooked function know, once per caller.

    Unless ``is_last``, the callers are searched again later: they may create others.
    """
    frame = sys._getframe(2) if _is_installed else None
    for _ in range(_MAX_CALLERS):
        if frame is None:
            return
        if frame.f_code not in _searched:
            if is_last:
                _searched[frame.f_code] = True
            variables = frame.f_locals
            known, owner = list(variables.values()), variables.get("self")
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(variables, dict):
                # A copy (before Python 3.13), which would keep the values until the function ends.
                variables.clear()
            known += getattr(owner, "__dict__", {}).values()
            for value in known:
                _wrap_environment(torch, value[0] if type(value) is list and value else value)
        frame = frame.f_back


def _wrap_environment(torch, value):
    """Wrap the step of the class of ``value`` if it looks like an environment."""
    cls = type(value)
    step = getattr(cls, "step", None)
    if (
        inspect.isfunction(step)
        and callable(getattr(cls, "reset", None))
        and not inspect.iscoroutinefunction(step)
        and not hasattr(step, "__wrapped__")
        and not isinstance(value, torch.nn.Module)
    ):
        owner = next(parent for parent in cls.__mro__ if "step" in vars(parent))
        replace(owner, "step", _wrap_step(torch, step))


def _wrap_step(torch, original):
    """Return the step in a range, unless its first result is not that of an environment."""
    measured, calls = hook_rollouts.in_phase(torch, original, ENVIRONMENT), []

    @functools.wraps(original)
    def step(*args, **kwargs):
        if calls:
            return calls[0](*args, **kwargs)
        start_ns = time_ns()
        result = original(*args, **kwargs)
        is_environment = isinstance(result, tuple) and len(result) >= _MIN_RESULTS
        calls.append(measured if is_environment else original)
        if is_environment and session.active:
            session.emitter().add_past(start_ns, time_ns(), ENVIRONMENT, steps.number)
            hook_rollouts.note_action()
        return result

    return step

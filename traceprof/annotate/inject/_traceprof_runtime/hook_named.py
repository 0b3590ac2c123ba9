"""Ranges of the program's own that are to be its steps: those of torch, by name.

Ranges of the traceprof package are steps where they begin (see the module explicit).
"""

import functools

from . import session, settings, steps

_RANGE = "range:"


def install(torch):
    """Wrap torch's ranges where the user wants those of a name as steps."""
    if not settings.STEP_FROM.startswith(_RANGE):
        return
    record_function = torch.autograd.profiler.record_function
    _wrap_with(record_function)
    nvtx = getattr(torch.cuda, "nvtx", None)
    if nvtx is not None:
        _wrap_push(nvtx)


def _wrap_with(cls):
    enter, leave = cls.__enter__, cls.__exit__

    @functools.wraps(enter)
    def __enter__(self):
        if session.active:
            steps.begin_named(str(self.name))
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self, *error):
        try:
            return leave(self, *error)
        finally:
            if session.active and _RANGE + str(self.name) == settings.STEP_FROM:
                steps.end_named()

    cls.__enter__, cls.__exit__ = __enter__, __exit__


def _wrap_push(nvtx):
    push, pop = nvtx.range_push, nvtx.range_pop
    are_steps = []

    @functools.wraps(push)
    def range_push(msg, *args, **kwargs):
        are_steps.append(session.active and steps.begin_named(str(msg)))
        return push(msg, *args, **kwargs)

    @functools.wraps(pop)
    def range_pop(*args, **kwargs):
        try:
            return pop(*args, **kwargs)
        finally:
            if are_steps and are_steps.pop():
                steps.end_named()

    nvtx.range_push, nvtx.range_pop = range_push, range_pop

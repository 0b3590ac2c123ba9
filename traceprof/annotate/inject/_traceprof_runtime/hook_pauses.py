"""What stops the program now and then: full garbage collections, and torch.compile at work."""

import gc

from . import session, steps
from .after_import import call_after_import

_ALL_GENERATIONS = 2
_open = []  # emitters of the ranges that are open, the innermost last


def install(_torch):
    """Watch the collector, and the compiler once it is imported."""
    gc.callbacks.append(_collect)
    call_after_import("torch._dynamo.callback", _watch_compiler)


def _collect(when, facts):
    """Note a collection of all generations; those of the young are short and many."""
    if facts["generation"] != _ALL_GENERATIONS:
        return
    if when == "start":
        _begin("gc")
    else:
        _end()


def _watch_compiler(callback):
    # Before torch 2.4 there is none to tell.
    if hasattr(callback, "on_compile_start") and hasattr(callback, "on_compile_end"):
        callback.on_compile_start(lambda *_args: _begin("compile"))
        callback.on_compile_end(lambda *_args: _end())


def _begin(name):
    # Where nothing else was seen, as in a launcher, a pause is no reason to leave events.
    emitter = session.emitter() if session.active and session.has_events() else None
    _open.append(emitter)
    if emitter is not None:
        emitter.push(name, steps.number)


def _end():
    emitter = _open.pop() if _open else None
    if emitter is not None:
        emitter.pop()

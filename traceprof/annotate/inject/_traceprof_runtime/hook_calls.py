"""Calls of torch that get a range, and what stops the program: copies, groups, checkpoints, pauses.

What a copy to a GPU does on the device is the profiler's to record; the range, with its bytes,
shows how long the host is held up by it, which it is where the memory is pageable. Process groups
that are made and destroyed tell how long workers take to find one another. Of checkpoints those of
ranks together are seen, too; a saved one is written out at once, since the process may be killed
before the next second, and a job that is restarted goes on from it. Ranges of the program's own may
be its steps: those of torch, by name (those of the traceprof package are where they begin). Full
garbage collections and torch.compile at work stop the program now and then.
"""

import functools
import gc

from . import session, settings, steps
from .after_import import call_after_import
from .compiling import get_is_compiling
from .replaced import at_restore, replace

_NAMES = ("init_process_group", "destroy_process_group")
_OF_RANKS = {"save": "checkpoint.save", "async_save": "checkpoint.save", "load": "checkpoint.load"}
_RANGE = "range:"
_ALL_GENERATIONS = 2
_open = []  # emitters of the ranges that are open, the innermost last


def install_groups(torch):
    """Wrap the functions of torch.distributed."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    for name in _NAMES:
        method = in_range(getattr(distributed, name), name)
        replace(distributed, name, method)
        replace(distributed.distributed_c10d, name, method)


def in_range(original, name, afterwards=None):
    """Return ``original`` with a range of that name around each call."""

    @functools.wraps(original)
    def function(*args, **kwargs):
        if not session.active:
            return original(*args, **kwargs)
        emitter = session.emitter()
        emitter.push(name)
        try:
            return original(*args, **kwargs)
        finally:
            emitter.pop()
            if afterwards is not None:
                afterwards()

    return function


def install_checkpoints(torch):
    """Wrap ``torch.save``, ``torch.load`` and the functions of torch.distributed.checkpoint."""
    for name, afterwards in (("save", _write_out), ("load", None)):
        method = in_range(getattr(torch, name), "checkpoint." + name, afterwards)
        replace(torch, name, method)
        replace(torch.serialization, name, method)
    call_after_import("torch.distributed.checkpoint", _wrap_all)


def _wrap_all(module):
    for name, label in _OF_RANKS.items():
        if hasattr(module, name):
            afterwards = _write_out if label.endswith("save") else None
            replace(module, name, in_range(getattr(module, name), label, afterwards))


def _write_out():
    if session.is_capturing():
        session.spool().flush()


def install_copies(torch):
    """Wrap ``Tensor.to`` and ``Tensor.cuda``, in builds of torch that can use a GPU."""
    if torch.version.cuda or getattr(torch.version, "hip", None):
        is_compiling = get_is_compiling(torch)
        tensor = torch.Tensor
        replace(tensor, "to", _copying(torch, tensor.to, is_compiling))
        replace(tensor, "cuda", _copying(torch, tensor.cuda, is_compiling, device="cuda"))


def _copying(torch, original, is_compiling, device=None):
    """Return ``original`` (a method of tensors) with a range around copies to a GPU."""

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        if is_compiling() or not session.active or self.device.type != "cpu":
            return original(self, *args, **kwargs)
        target = device or kwargs.get("device", args[0] if args else None)
        if not is_gpu(torch, target):
            return original(self, *args, **kwargs)
        emitter = session.emitter()
        emitter.push("h2d", self.numel() * self.element_size())
        try:
            return original(self, *args, **kwargs)
        finally:
            emitter.pop()

    return method


def is_gpu(torch, target):
    """Return whether ``target`` (a device, its name or number, or a tensor) is on a GPU."""
    if isinstance(target, torch.Tensor):
        target = target.device
    if isinstance(target, torch.device):
        return target.type == "cuda"
    if isinstance(target, str):
        return target.startswith("cuda")
    return isinstance(target, int) and not isinstance(target, bool)


def install_named(torch):
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
                steps.close()

    replace(cls, "__enter__", __enter__)
    replace(cls, "__exit__", __exit__)


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
                steps.close()

    replace(nvtx, "range_push", range_push)
    replace(nvtx, "range_pop", range_pop)


def install_pauses(_torch):
    """Watch the collector, and the compiler once it is imported."""
    gc.callbacks.append(_collect)
    at_restore(lambda: gc.callbacks.remove(_collect))
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

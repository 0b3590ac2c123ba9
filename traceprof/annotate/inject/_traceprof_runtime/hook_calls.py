"""Hooks for calls of torch that get a range, and for pauses of the program.

- Copies to a GPU. The profiler records the copy on the device. The range, with its bytes, shows
  how long the copy blocks the host, which it does for pageable memory.
- Process groups. Their creation and destruction show how long workers need to find each other.
- Calls of torch.distributed.rpc that wait for an answer.
- Checkpoints, including torch.distributed.checkpoint. The spool is flushed after each save: the
  process may be killed before the next flush, and a restarted job continues from this checkpoint.
- Named ranges of torch, if the user selected them as steps. (The traceprof package handles its own
  ranges.)
- Pauses: full garbage collections and torch.compile.
"""

import functools
import gc

from . import session, settings, steps
from .after_import import call_after_import
from .compiling import get_is_compiling
from .replaced import at_restore, replace

_GROUP_FUNCTIONS = ("init_process_group", "destroy_process_group")
_DISTRIBUTED_CHECKPOINTS = {
    "save": "checkpoint.save",
    "async_save": "checkpoint.save",
    "load": "checkpoint.load",
}
_STEP_FROM_RANGE = "range:"
_ALL_GENERATIONS = 2
_open_emitters = []  # emitters of the open pause ranges, the innermost last; None: not recorded


def install_groups(torch):
    """Wrap the functions of torch.distributed that create and destroy process groups."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    for name in _GROUP_FUNCTIONS:
        method = in_range(getattr(distributed, name), name)
        replace(distributed, name, method)
        replace(distributed.distributed_c10d, name, method)
    call_after_import("torch.distributed.rpc", _wrap_rpc)


def _wrap_rpc(rpc):
    """Wrap ``rpc_sync``, which waits for the answer of another process."""
    if hasattr(rpc, "rpc_sync"):  # not in builds without RPC
        replace(rpc, "rpc_sync", in_range(rpc.rpc_sync, "comm:rpc_sync"))


def in_range(original, name, afterwards=None):
    """Return ``original`` with a range around each call, followed by a call of ``afterwards()``."""

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
    for name, afterwards in (("save", _flush_spool), ("load", None)):
        method = in_range(getattr(torch, name), "checkpoint." + name, afterwards)
        replace(torch, name, method)
        replace(torch.serialization, name, method)
    call_after_import("torch.distributed.checkpoint", _wrap_distributed_checkpoints)


def _wrap_distributed_checkpoints(module):
    """Wrap the functions of ``torch.distributed.checkpoint``."""
    for name, label in _DISTRIBUTED_CHECKPOINTS.items():
        if hasattr(module, name):
            afterwards = _flush_spool if label.endswith("save") else None
            replace(module, name, in_range(getattr(module, name), label, afterwards))


def _flush_spool():
    if session.is_capturing():
        session.spool().flush()


def install_copies(torch):
    """Wrap ``Tensor.to`` and ``Tensor.cuda``, if this build of torch supports GPUs."""
    if torch.version.cuda or getattr(torch.version, "hip", None):
        is_compiling = get_is_compiling(torch)
        tensor = torch.Tensor
        replace(tensor, "to", _wrap_copy(torch, tensor.to, is_compiling))
        replace(tensor, "cuda", _wrap_copy(torch, tensor.cuda, is_compiling, device="cuda"))


def _wrap_copy(torch, original, is_compiling, device=None):
    """Return ``original``, a tensor method, with a range around copies to a GPU."""

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
    """Return whether ``target`` (a device, its name or index, or a tensor) is on a GPU."""
    if isinstance(target, torch.Tensor):
        target = target.device
    if isinstance(target, torch.device):
        return target.type == "cuda"
    if isinstance(target, str):
        return target.startswith("cuda")
    return isinstance(target, int) and not isinstance(target, bool)


def install_named(torch):
    """Wrap torch's ranges if the user selected ranges of a name as steps."""
    if not settings.STEP_FROM.startswith(_STEP_FROM_RANGE):
        return
    _wrap_record_function(torch.autograd.profiler.record_function)
    nvtx = getattr(torch.cuda, "nvtx", None)
    if nvtx is not None:
        _wrap_nvtx(nvtx)


def _wrap_record_function(cls):
    """Wrap ``record_function``, a context manager."""
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
            if session.active and _STEP_FROM_RANGE + str(self.name) == settings.STEP_FROM:
                steps.close_step()

    replace(cls, "__enter__", __enter__)
    replace(cls, "__exit__", __exit__)


def _wrap_nvtx(nvtx):
    """Wrap ``nvtx.range_push`` and ``nvtx.range_pop``."""
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
                steps.close_step()

    replace(nvtx, "range_push", range_push)
    replace(nvtx, "range_pop", range_pop)


def install_pauses(_torch):
    """Record garbage collections, and compilations once torch._dynamo is imported."""
    gc.callbacks.append(_note_collection)
    at_restore(lambda: gc.callbacks.remove(_note_collection))
    call_after_import("torch._dynamo.callback", _watch_compiler)


def _note_collection(when, facts):
    """Record a collection of all generations; collections of young generations are short."""
    if facts["generation"] != _ALL_GENERATIONS:
        return
    if when == "start":
        _begin_pause("gc")
    else:
        _end_pause()


def _watch_compiler(callback):
    # Before torch 2.4, these callbacks do not exist.
    if hasattr(callback, "on_compile_start") and hasattr(callback, "on_compile_end"):
        callback.on_compile_start(lambda *_args: _begin_pause("compile"))
        callback.on_compile_end(lambda *_args: _end_pause())


def _begin_pause(name):
    # A process without other events, for example a launcher, does not open a spool for a pause.
    emitter = session.emitter() if session.active and session.has_events() else None
    _open_emitters.append(emitter)
    if emitter is not None:
        emitter.push(name, steps.number)


def _end_pause():
    emitter = _open_emitters.pop() if _open_emitters else None
    if emitter is not None:
        emitter.pop()

"""What `traceprof try` measures in a program: its steps, losses and memory; then it ends it.

Nothing but two clocks is read while steps are measured: a GPU is waited for at their begin and
their end alone. Losses are kept as they are and read when all is over.
"""

import gc
import os
import sys
import threading
from datetime import timedelta
from time import perf_counter

from . import process_record, session, settings, steps
from .after_import import call_after_import, complain

_PATIENCE_S = 60  # for the other ranks, before the program is ended
_MOST_NAMES = 40
at_begin = []  # (function): it is called when the warm-up is over


def install_trying(torch):
    """Measure so many steps after so many, as was asked for, and end the program then."""
    if settings.TRY is None:
        return
    _seed(torch)
    trial = _Trial(torch, *settings.TRY)
    steps.on_boundary(trial.at_step)
    session.at_end(trial.write)
    _keep_losses(torch, trial)
    _watch_loaders(trial)


def _seed(torch):
    """Begin alike each time, where the program does not see to it."""
    import random

    random.seed(0)
    torch.manual_seed(0)
    call_after_import("numpy", lambda numpy: numpy.random.seed(0))


class _Trial:
    def __init__(self, torch, warmup, n_steps):
        self._torch, self._warmup, self._n_steps = torch, warmup, n_steps
        self._process = os.getpid()
        self._times = []
        self._losses = []  # of each backward pass: the step, and the loss as a tensor
        self._is_written = False
        self.loaders = []

    def at_step(self, number):
        """Note a step's end; begin after the warm-up, end the program after the last."""
        if self._is_written or self._process != os.getpid() or not session.active:
            return
        if number == self._warmup:
            for function in at_begin:
                function()
            self._wait_for_devices()
            self._forget_peak()
        if number < self._warmup:
            return
        is_last = number == self._warmup + self._n_steps
        if is_last:
            self._wait_for_devices()
        self._times.append(perf_counter())
        if is_last:
            self.write(is_whole=True)
            self._wait_for_ranks()
            _end()

    def keep_loss(self, tensors):
        """Keep a loss of the step that goes on."""
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if isinstance(first, self._torch.Tensor) and first.numel() == 1:
            self._losses.append((steps.number, first.detach()))

    def write(self, is_whole=False):
        """Write what was measured, once; also where the program ends before its time."""
        if self._is_written or self._process != os.getpid():
            return
        if not (self._times or steps.number):
            return  # a process that trains nothing
        self._is_written = True
        try:
            losses = [(number, float(loss)) for number, loss in self._losses]
        except Exception as error:
            losses = []
            complain("the losses were not recorded", error)
        record = {
            "warmup": self._warmup,
            "is_whole": is_whole,
            "steps_count": steps.number,
            "step_s": [self._times[i + 1] - self._times[i] for i in range(len(self._times) - 1)],
            "losses": losses,
            "peak_bytes": self._peak(),
            "on_gpu": self._torch.cuda.is_initialized(),
            "facts": self._facts(),
        }
        process_record.write("try.%s.json", record)

    def _wait_for_devices(self):
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()

    def _wait_for_ranks(self):
        """Let no rank go while another still needs it."""
        dist = getattr(self._torch, "distributed", None)
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return
        try:
            work = dist.barrier(async_op=True)
            if work is not None:
                work.wait(timedelta(seconds=_PATIENCE_S))
        except Exception as error:
            complain("waiting for the other ranks failed", error)

    def _forget_peak(self):
        if self._torch.cuda.is_initialized():
            self._torch.cuda.reset_peak_memory_stats()

    def _peak(self):
        """Return the most memory: of the GPU, else of the process, which no reset forgets."""
        if self._torch.cuda.is_initialized():
            return self._torch.cuda.max_memory_allocated()
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def _facts(self):
        """Return what of the program tells which changes apply to it."""
        try:
            return _facts_of(self._torch, self.loaders)
        except Exception as error:
            complain("the features of the program are unknown", error)
            return {}


def _facts_of(torch, loaders):
    kinds, types, optimizers, wrappers = {}, {}, [], set()
    for one in gc.get_objects():
        # Asking an object for its class may run code of its own.
        kind = type(one)
        if issubclass(kind, torch.nn.Module):
            kinds[kind.__name__] = kinds.get(kind.__name__, 0) + 1
            for tensor in getattr(one, "_parameters", {}).values():
                if tensor is not None:
                    name = str(tensor.dtype)
                    types[name] = types.get(name, 0) + tensor.numel()
            if kind.__name__ in ("DistributedDataParallel", "FullyShardedDataParallel"):
                wrappers.add(kind.__name__)
        elif issubclass(kind, torch.optim.Optimizer):
            defaults = getattr(one, "defaults", {})
            own = {"kind": kind.__name__, "is_of_torch": kind.__module__.startswith("torch.optim")}
            for name in ("foreach", "fused"):
                own[name] = defaults.get(name) if name in defaults else "none"
            optimizers.append(own)
    return {
        "modules": dict(sorted(kinds.items(), key=lambda own: -own[1])[:_MOST_NAMES]),
        "parameters": types,
        "optimizers": optimizers[:_MOST_NAMES],
        "loaders": loaders[:_MOST_NAMES],
        "wrappers": sorted(wrappers),
        "threads": torch.get_num_threads(),
        "cpus": _n_cpus(),
        "is_autocast": _autocast_was_used(torch),
        "is_tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "is_benchmark": bool(torch.backends.cudnn.benchmark),
        "torch": torch.__version__,
    }


def _n_cpus():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _autocast_was_used(torch):
    return bool(getattr(torch.autocast, "_traceprof_used", False))


def _keep_losses(torch, own):
    """Keep what gradients are asked of; of what a scaler made larger, the loss before."""
    original = torch.autograd.backward
    unscaled = {}

    def backward(tensors, *args, **kwargs):
        if session.active:
            first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
            own.keep_loss(unscaled.pop(id(first), first))
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    for path in ("amp.grad_scaler", "cuda.amp.grad_scaler"):
        scaler = getattr(sys.modules.get("torch." + path), "GradScaler", None)
        if scaler is not None and "scale" in vars(scaler):
            _keep_unscaled(scaler, unscaled)
            break
    _note_autocast(torch)


def _keep_unscaled(scaler, unscaled):
    original = scaler.scale

    def scale(self, outputs):
        scaled = original(self, outputs)
        unscaled.clear()
        unscaled[id(scaled)] = outputs
        return scaled

    scaler.scale = scale


def _note_autocast(torch):
    original = torch.autocast.__enter__

    def __enter__(self):
        torch.autocast._traceprof_used = True
        return original(self)

    torch.autocast.__enter__ = __enter__


def _watch_loaders(own):
    from torch.utils.data import DataLoader, IterableDataset

    original = DataLoader.__init__

    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        own.loaders.append(
            {
                "workers": self.num_workers,
                "is_pinned": bool(self.pin_memory),
                "is_persistent": bool(self.persistent_workers),
                "prefetch": self.prefetch_factor,
                "batch": self.batch_size,
                "is_stream": isinstance(self.dataset, IterableDataset),
            }
        )

    DataLoader.__init__ = __init__


def _end():
    """End the program as if it had called sys.exit."""
    sys.stdout.flush()
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(0)
    session.close()
    os._exit(0)  # no other thread can be told

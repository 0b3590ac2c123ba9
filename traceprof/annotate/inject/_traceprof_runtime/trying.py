"""What `traceprof try` measures in a program: steps, losses, memory. Then it ends the program.

Measured steps contain only one clock read and two more per batch: the GPU is synchronized, and CPU
time is read, only before the first and after the last measured step. Losses are kept as tensors and
read at the end.
"""

import builtins
import functools
import gc
import io
import os
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from time import perf_counter, process_time

from . import process_record, session, settings, steps
from .after_import import call_after_import, complain
from .hook_optimizers import find_grad_scaler

_MAX_RANK_WAIT_S = 60  # how long to wait for the other ranks before ending the program
_MAX_LISTED = 40
at_begin = []  # functions that are called when the warm-up is over


def install_trying(torch):
    """Measure the requested number of steps after the warm-up, then end the program."""
    if settings.TRY is None:
        return
    _seed(torch)
    trial = _Trial(torch, *settings.TRY)
    steps.on_boundary(trial.at_step)
    session.at_end(trial.write)
    _keep_losses(torch, trial)
    _watch_loaders(trial)
    _watch_files(torch)


def _seed(torch):
    """Seed the random generators, so that every run starts from the same state."""
    import random

    random.seed(0)
    torch.manual_seed(0)
    call_after_import("numpy", lambda numpy: numpy.random.seed(0))


class _Trial:
    """Collects the measurements of one process and writes them to ``try.IDENTITY.json``."""

    def __init__(self, torch, warmup, n_steps):
        self._torch, self._warmup, self._n_steps = torch, warmup, n_steps
        self._process = os.getpid()
        self._boundary_times_s = []
        self._cpu_times_s = []  # of this process, before the first and after the last step
        self.fetch_s = 0.0  # time in which the loop waited for batches of the measured steps
        self._losses = []  # (step number, loss tensor) of each backward pass
        self._is_written = False
        self.loaders = []

    def at_step(self, number):
        """Note the time of a step boundary; end the program after the last measured step."""
        if self._is_written or self._process != os.getpid() or not session.active:
            return
        if number == self._warmup:
            for function in at_begin:
                function()
            self._wait_for_devices()
            self._reset_peak_memory()
        if number < self._warmup:
            return
        is_last = number == self._warmup + self._n_steps
        if is_last:
            self._wait_for_devices()
        if is_last or number == self._warmup:
            self._cpu_times_s.append(process_time())
        self._boundary_times_s.append(perf_counter())
        if is_last:
            self.write(is_whole=True)
            self._wait_for_ranks()
            _end_program()

    def add_fetch(self, duration_s):
        """Add the time of the fetch of one batch, if its step is measured."""
        if self._boundary_times_s:
            self.fetch_s += duration_s

    def keep_loss(self, tensors):
        """Keep the loss of the current step, if ``tensors`` contains one number."""
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if isinstance(first, self._torch.Tensor) and first.numel() == 1:
            self._losses.append((steps.number, first.detach()))

    def write(self, is_whole=False):
        """Write the measurements once; ``is_whole`` is False if the program ended too early."""
        if self._is_written or self._process != os.getpid():
            return
        if not (self._boundary_times_s or steps.number):
            return  # this process does not train
        self._is_written = True
        try:
            losses = [(number, float(loss)) for number, loss in self._losses]
        except Exception as error:
            losses = []
            complain("the losses were not recorded", error)
        times = self._boundary_times_s
        cpu_s = self._cpu_times_s
        record = {
            "warmup": self._warmup,
            "is_whole": is_whole,
            "steps_count": steps.number,
            "step_s": [times[i + 1] - times[i] for i in range(len(times) - 1)],
            "cpu_s": cpu_s[1] - cpu_s[0] if len(cpu_s) == 2 else None,
            "losses": losses,
            "peak_bytes": self._measure_peak_memory(),
            "on_gpu": self._torch.cuda.is_initialized(),
            "facts": self._describe(),
        }
        process_record.write("try.%s.json", record)

    def _wait_for_devices(self):
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()

    def _wait_for_ranks(self):
        """Wait until all ranks are here, so that no rank ends while another needs it."""
        dist = getattr(self._torch, "distributed", None)
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return
        try:
            work = dist.barrier(async_op=True)
            if work is not None:
                work.wait(timedelta(seconds=_MAX_RANK_WAIT_S))
        except Exception as error:
            complain("waiting for the other ranks failed", error)

    def _reset_peak_memory(self):
        if self._torch.cuda.is_initialized():
            self._torch.cuda.reset_peak_memory_stats()

    def _measure_peak_memory(self):
        """Return the peak memory in bytes: of the GPU since the warm-up, or else of the process.

        The peak of a process cannot be reset.
        """
        if self._torch.cuda.is_initialized():
            return self._torch.cuda.max_memory_allocated()
        import resource

        unit_bytes = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes

    def _describe(self):
        """Return the facts that determine which changes apply to this program; {} on errors."""
        try:
            times = self._boundary_times_s
            whole_s = times[-1] - times[0] if times else 0.0
            fetch_ratio = self.fetch_s / whole_s if whole_s else 0.0
            return dict(
                _describe_program(self._torch, self.loaders), fetch_ratio=min(fetch_ratio, 1.0)
            )
        except Exception as error:
            complain("the features of the program are unknown", error)
            return {}


def _describe_program(torch, loaders):
    """Return modules, parameter types, optimizers, loaders, and switches of the program."""
    n_modules, n_parameters, optimizers, wrappers = {}, {}, [], set()
    for item in gc.get_objects():
        # isinstance() can run the program's code (a property __class__).
        cls = type(item)
        if issubclass(cls, torch.nn.Module):
            n_modules[cls.__name__] = n_modules.get(cls.__name__, 0) + 1
            for tensor in getattr(item, "_parameters", {}).values():
                if tensor is not None:
                    name = str(tensor.dtype)
                    n_parameters[name] = n_parameters.get(name, 0) + tensor.numel()
            if cls.__name__ in ("DistributedDataParallel", "FullyShardedDataParallel"):
                wrappers.add(cls.__name__)
        elif issubclass(cls, torch.optim.Optimizer):
            defaults = getattr(item, "defaults", {})
            facts = {"kind": cls.__name__, "is_of_torch": cls.__module__.startswith("torch.optim")}
            for name in ("foreach", "fused"):
                facts[name] = defaults.get(name) if name in defaults else "none"
            optimizers.append(facts)
    return {
        "modules": dict(sorted(n_modules.items(), key=lambda facts: -facts[1])[:_MAX_LISTED]),
        "parameters": n_parameters,
        "optimizers": optimizers[:_MAX_LISTED],
        "loaders": loaders[:_MAX_LISTED],
        "wrappers": sorted(wrappers),
        "threads": torch.get_num_threads(),
        "cpus": _n_cpus(),
        "is_autocast": bool(getattr(torch.autocast, "_traceprof_used", False)),
        "is_tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "is_benchmark": bool(torch.backends.cudnn.benchmark),
        "torch": torch.__version__,
    }


def _n_cpus():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _keep_losses(torch, trial):
    """Keep the losses of backward passes; of a scaled loss, keep its value before scaling."""
    original = torch.autograd.backward
    unscaled = {}

    def backward(tensors, *args, **kwargs):
        if session.active:
            first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
            trial.keep_loss(unscaled.pop(id(first), first))
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    scaler = find_grad_scaler("scale")
    if scaler is not None:
        _keep_unscaled_losses(scaler, unscaled)
    _note_autocast(torch)


def _keep_unscaled_losses(scaler, unscaled):
    """Remember the last loss that a GradScaler scaled, by the id of its result."""
    original = scaler.scale

    def scale(self, outputs):
        scaled = original(self, outputs)
        unscaled.clear()
        unscaled[id(scaled)] = outputs
        return scaled

    scaler.scale = scale


def _note_autocast(torch):
    """Set an attribute of ``torch.autocast`` when the program enters it."""
    original = torch.autocast.__enter__

    def __enter__(self):
        torch.autocast._traceprof_used = True
        return original(self)

    torch.autocast.__enter__ = __enter__


def _watch_loaders(trial):
    """Note the options of every DataLoader of the program, and the time of its fetches."""
    from torch.utils.data import DataLoader, IterableDataset, dataloader

    original = DataLoader.__init__
    iterator = dataloader._BaseDataLoaderIter
    fetch = iterator.__next__

    def __next__(self):
        begun_s = perf_counter()
        try:
            return fetch(self)
        finally:
            trial.add_fetch(perf_counter() - begun_s)

    iterator.__next__ = __next__

    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        trial.loaders.append(
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


def _watch_files(torch):
    """Note the paths that the program opens for writing, one per line of ``written.PID``.

    A file that a library writes in C++ without Python is not noted, except by ``torch.save``.
    """
    noted = set()

    def note(path):
        try:
            path = os.path.abspath(os.fsdecode(path))
        except (TypeError, ValueError):  # a descriptor, or an object with the methods of a file
            return
        if path in noted or path.startswith((settings.DIRECTORY, "/dev/", "/proc/")):
            return
        noted.add(path)
        name = os.path.join(settings.DIRECTORY, "written.%d" % os.getpid())
        with suppress(OSError):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(file, os.fsencode(path) + b"\n")
            os.close(file)

    original_open, save = builtins.open, torch.save

    @functools.wraps(original_open)
    def open_file(file, mode="r", *args, **kwargs):
        opened = original_open(file, mode, *args, **kwargs)
        if isinstance(mode, str) and set(mode) & set("wax+"):
            note(file)
        return opened

    @functools.wraps(save)
    def save_file(obj, f, *args, **kwargs):
        note(f)
        return save(obj, f, *args, **kwargs)

    builtins.open = io.open = open_file
    torch.save = save_file
    for name in ("rename", "replace"):
        setattr(os, name, _with_note(getattr(os, name), note))


def _with_note(function, note):
    """Return a function that moves a file, and notes the new path."""

    @functools.wraps(function)
    def move(src, dst, *args, **kwargs):
        function(src, dst, *args, **kwargs)
        note(dst)

    return move


def _end_program():
    """End the program as if it had called sys.exit."""
    sys.stdout.flush()
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(0)
    session.close()
    os._exit(0)  # an exception in this thread would not end the main thread

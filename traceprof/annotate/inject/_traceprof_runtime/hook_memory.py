"""Snapshots of torch's allocator for chosen steps, and when memory runs out.

Torch itself records the history of allocations with their Python stacks. This module adds the
addresses of parameters, gradients, and optimizer state, which show the purpose of memory.
"""

import gc
import os
import pickle
from time import time_ns

from . import session, settings, steps
from .after_import import complain
from .identity import identity

_MAX_EVENTS = 1000000  # each takes about 300 bytes in this process
_KIND_NAMES = {"param": "parameters", "grad": "gradients", "state": "optimizer state"}


def install_memory(torch):
    """Record the history of allocations during the requested steps."""
    if settings.MEMORY is None:
        return
    history = _History(torch, *settings.MEMORY)
    steps.on_boundary(history.at_step)
    steps.on_activity(history.at_activity)
    session.at_end(history.write)


class _History:
    """The memory history of one process, from its first to its last requested step."""

    def __init__(self, torch, first, last):
        self._torch, self._first, self._last = torch, first, last
        self._process = os.getpid()
        self._is_on = self._is_over = False
        self._ends_us = []  # end times of the steps since the begin, in µs since 1970

    def at_activity(self):
        """Begin before the first step, if the first step was requested."""
        if not self._first:
            self._begin()

    def at_step(self, number):
        """Begin before the first requested step, end after the last."""
        if self._is_on:
            self._ends_us.append(time_ns() // 1000)
        if number > self._last and self._is_on:
            emitter = session.emitter()
            emitter.push("traceprof.window.stop", number)  # a snapshot takes seconds to write
            self.write()
            emitter.pop()
        elif number >= self._first:
            self._begin()

    def _begin(self):
        if self._is_on or self._is_over or self._process != os.getpid():
            return
        if not self._torch.cuda.is_initialized():
            return
        try:
            memory = self._torch.cuda.memory
            memory._record_memory_history("all", stacks="python", max_entries=_MAX_EVENTS)
            self._is_on = True
            # The observer is called while the memory is still full.
            self._torch._C._cuda_attach_out_of_memory_observer(self._at_failure)
        except AttributeError:
            pass  # an older torch has no observer
        except Exception as error:
            self._is_over = True
            complain("no memory history is recorded", error)

    def _at_failure(self, _device, _requested, _total, _free):
        self.write()

    def write(self):
        """Write the snapshot, once."""
        if not self._is_on or self._is_over or self._process != os.getpid():
            return
        self._is_over = True
        try:
            snapshot = self._torch.cuda.memory._snapshot()
            snapshot["traceprof"] = {
                "tensors": _describe_tensors(self._torch),
                "step_ends_us": self._ends_us,
            }
            path = os.path.join(settings.DIRECTORY, "memory.%s.pickle" % identity())
            with open(path + ".tmp", "wb") as file:
                pickle.dump(snapshot, file, protocol=4)
            os.replace(path + ".tmp", path)
            self._torch.cuda.memory._record_memory_history(None)
        except Exception as error:
            complain("the memory snapshot was lost", error)


def _describe_tensors(torch):
    """Return address, size, purpose, and name of parameters, gradients, and optimizer state."""
    by_address = {}
    for item in gc.get_objects():
        # isinstance() can run the program's code (a property __class__).
        cls = type(item)
        if issubclass(cls, torch.nn.Module):
            tensors = list(getattr(item, "_parameters", {}).items())
            tensors += getattr(item, "_buffers", {}).items()
            for name, tensor in tensors:
                _add_tensor(torch, by_address, "param", "%s.%s" % (cls.__name__, name), tensor)
        elif issubclass(cls, torch.optim.Optimizer):
            for state in list(getattr(item, "state", {}).values()):
                for name, tensor in list(state.items()) if isinstance(state, dict) else ():
                    _add_tensor(torch, by_address, "state", "%s.%s" % (cls.__name__, name), tensor)
    return list(by_address.values())


def _add_tensor(torch, by_address, kind, name, tensor):
    """Add the storage of a GPU tensor and, for a parameter, of its gradient."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
        return
    storage = tensor.untyped_storage()
    by_address[storage.data_ptr()] = {
        "device": tensor.device.index,
        "address": storage.data_ptr(),
        "size": storage.nbytes(),
        "kind": _KIND_NAMES[kind],
        "name": name,
    }
    if kind == "param" and tensor.grad is not None:
        _add_tensor(torch, by_address, "grad", name, tensor.grad)

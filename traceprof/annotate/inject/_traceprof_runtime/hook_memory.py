"""A snapshot of torch's allocator around chosen steps, and where memory runs out.

Torch keeps the history of allocations with their Python stacks itself; what is added are the
tensors of parameters, gradients and optimizers, which tell for what memory is held.
"""

import gc
import os
import pickle
from time import time_ns

from . import session, settings, steps
from .after_import import complain
from .identity import identity

_MOST_EVENTS = 1000000  # some 300 bytes each, in this process
_FOR = {"param": "parameters", "grad": "gradients", "state": "optimizer state"}


def install_memory(torch):
    """Keep the history of allocations during the steps that were asked for."""
    if settings.MEMORY is None:
        return
    history = _History(torch, *settings.MEMORY)
    steps.on_boundary(history.at_step)
    steps.on_activity(history.at_activity)
    session.at_end(history.write)


class _History:
    def __init__(self, torch, first, last):
        self._torch, self._first, self._last = torch, first, last
        self._process = os.getpid()
        self._is_on = self._is_over = False
        self._ends_us = []  # of the steps since then

    def at_activity(self):
        """Begin in a program of which no step has been seen, where the first is asked for."""
        if not self._first:
            self._begin()

    def at_step(self, number):
        """Begin before the first step, end after the last."""
        if self._is_on:
            self._ends_us.append(time_ns() // 1000)
        if number > self._last:
            self.write()
        elif number >= self._first:
            self._begin()

    def _begin(self):
        if self._is_on or self._is_over or self._process != os.getpid():
            return
        if not self._torch.cuda.is_initialized():
            return
        try:
            memory = self._torch.cuda.memory
            memory._record_memory_history("all", stacks="python", max_entries=_MOST_EVENTS)
            self._is_on = True
            # What is called as memory runs out sees it as it is then.
            self._torch._C._cuda_attach_out_of_memory_observer(self._at_failure)
        except AttributeError:
            pass  # an older torch tells nobody
        except Exception as error:
            self._is_over = True
            complain("no memory history is recorded", error)

    def _at_failure(self, _device, _asked, _total, _free):
        self.write()

    def write(self):
        """Write the snapshot, once."""
        if not self._is_on or self._is_over or self._process != os.getpid():
            return
        self._is_over = True
        try:
            snapshot = self._torch.cuda.memory._snapshot()
            snapshot["traceprof"] = {
                "tensors": _tensors(self._torch),
                "step_ends_us": self._ends_us,
            }
            path = os.path.join(settings.DIRECTORY, "memory.%s.pickle" % identity())
            with open(path + ".tmp", "wb") as file:
                pickle.dump(snapshot, file, protocol=4)
            os.replace(path + ".tmp", path)
            self._torch.cuda.memory._record_memory_history(None)
        except Exception as error:
            complain("the memory snapshot was lost", error)


def _tensors(torch):
    """Return where parameters, gradients and the state of optimizers lie."""
    found = {}
    for one in gc.get_objects():
        # Asking an object for its class may run code of its own.
        kind = type(one)
        if issubclass(kind, torch.nn.Module):
            own = list(getattr(one, "_parameters", {}).items())
            own += getattr(one, "_buffers", {}).items()
            for name, tensor in own:
                _note(torch, found, "param", "%s.%s" % (kind.__name__, name), tensor)
        elif issubclass(kind, torch.optim.Optimizer):
            for state in list(getattr(one, "state", {}).values()):
                for name, tensor in list(state.items()) if isinstance(state, dict) else ():
                    _note(torch, found, "state", "%s.%s" % (kind.__name__, name), tensor)
    return list(found.values())


def _note(torch, found, what, name, tensor):
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
        return
    storage = tensor.untyped_storage()
    found[storage.data_ptr()] = {
        "device": tensor.device.index,
        "address": storage.data_ptr(),
        "size": storage.nbytes(),
        "kind": _FOR[what],
        "name": name,
    }
    if what == "param" and tensor.grad is not None:
        _note(torch, found, "grad", name, tensor.grad)

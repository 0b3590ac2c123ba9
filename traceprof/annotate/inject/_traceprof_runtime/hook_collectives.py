"""Collective and point-to-point calls of torch.distributed, with their bytes.

A Python kernel on every operator of the ``c10d`` library sees calls from Python, from the
reducer of DDP (which is C++) and from FSDP alike, with their tensors.
"""

import os
import threading
from contextlib import suppress
from queue import SimpleQueue
from time import time_ns

from . import card, session
from .emitters import NOWHERE

# operator → index of the argument that holds what this rank hands in
_MESSAGES = {
    "allreduce_": 0,
    "allreduce_coalesced_": 0,
    "broadcast_": 0,
    "reduce_": 0,
    "allgather_": 1,
    "_allgather_base_": 1,
    "allgather_coalesced_": 1,
    "allgather_into_tensor_coalesced_": 1,
    "reduce_scatter_": 1,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "gather_": 1,
    "scatter_": 0,  # what it gets: only the root hands anything in
    "alltoall_": 1,
    "alltoall_base_": 1,
    "send": 0,
    "recv_": 0,
    "recv_any_source_": 0,
    "barrier": None,
}
_KEYS = ("AutogradCPU", "AutogradCUDA")
_POINT_TO_POINT = ("send", "recv", "recv_any_source")
_N_WAITERS = 4  # a group of gloo works on two calls at a time, in their order
_libraries = []


def install(torch):
    """Put a kernel of ours above every operator of c10d."""
    if not torch.distributed.is_available():
        return
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)  # the kernels go when it goes
    groups = _Groups(torch)
    for name, index in _MESSAGES.items():
        packet = getattr(torch.ops.c10d, name, None)
        if packet is not None:
            kernel = _kernel(torch, groups, name.strip("_"), packet.default, index)
            for key in _KEYS:
                library.impl(name, kernel, key)


def _kernel(torch, groups, label, operator, index):
    below_autograd = torch._C._AutoDispatchBelowAutograd

    def kernel(*args, **kwargs):
        if not session.active:
            with below_autograd():
                return operator(*args, **kwargs)
        message = args[index] if index is not None and index < len(args) else ()
        call = _Call(label, _tensors(torch, message), groups.details(args))
        try:
            with below_autograd():
                result = operator(*args, **kwargs)
        finally:
            call.has_returned()
        call.complete_with(groups.future(result, call))
        return result

    return kernel


def _tensors(torch, message):
    if isinstance(message, torch.Tensor):
        return [message]
    if isinstance(message, (list, tuple)):
        return [tensor for part in message for tensor in _tensors(torch, part)]
    return []


class _Call:
    """One call: a range on its thread, one until it completes, and a row with its facts."""

    def __init__(self, label, tensors, details):
        self.label = label
        self.is_on_host = all(tensor.device.type == "cpu" for tensor in tensors)
        self._n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.details = dict(details)
        if tensors:
            self.details["dtype"] = str(tensors[0].dtype).replace("torch.", "")
        self._thread = threading.get_native_id()
        self._emitter = session.emitter()
        self._start = time_ns()
        self._emitter.push("comm:" + label, self._n_bytes)

    def has_returned(self):
        self._emitter.pop()
        self._end = time_ns()

    def complete_with(self, future):
        """Note the call as complete now, or when ``future`` says so."""
        if future is None:
            self._note(self._end)
            return
        self._token = self._emitter.start("comm.async:" + self.label, self._n_bytes)
        future.add_done_callback(self._completed)

    def _completed(self, _future):
        self._emitter.end(self._token)
        self._note(time_ns())

    def _note(self, end):
        if self._emitter is NOWHERE:
            return
        session.spool().collective(
            self._start, end, self.label, self._n_bytes, self._thread, self.details
        )


class _Groups:
    """What is known of process groups, and the futures of their work."""

    def __init__(self, torch):
        self._torch = torch
        self._waiters = _Waiters()
        c10d = torch._C._distributed_c10d
        self._unbox_group = getattr(c10d.ProcessGroup, "unbox", None)
        self._unbox_work = getattr(getattr(c10d, "Work", None), "unbox", None)
        self._known = {}
        self._sequences = {}

    def details(self, args):
        """Return name, size and backend of the group among ``args`` and the call's number in it."""
        group = self._group(args)
        if group is None:
            return self._common_details()
        name = str(getattr(group, "group_name", "") or "")
        if name not in self._known:
            self._known[name] = self._describe(group, name)
        self._sequences[name] = self._sequences.get(name, -1) + 1
        return dict(self._known[name], sequence=self._sequences[name])

    def _group(self, args):
        if self._unbox_group is None:
            return self._only_group()
        for argument in args:
            if isinstance(argument, self._torch.ScriptObject):
                try:
                    return self._unbox_group(argument)
                except (RuntimeError, TypeError, ValueError):
                    continue
        return None

    def _only_group(self):
        """Return the group where there is only one (torch 2.1 does not tell which it is)."""
        world = getattr(self._torch.distributed.distributed_c10d, "_world", None)
        groups = list(getattr(world, "pg_map", None) or ())
        return groups[0] if len(groups) == 1 else None

    def _common_details(self):
        """Return the backend that all groups have, where a call does not tell its own."""
        distributed = self._torch.distributed
        world = getattr(distributed.distributed_c10d, "_world", None)
        backends = {str(distributed.get_backend(group)) for group in world.pg_map} if world else ()
        return {"backend": backends.pop()} if len(backends) == 1 else {}

    def _describe(self, group, name):
        distributed = self._torch.distributed
        try:
            backend = str(distributed.get_backend(group))
            if not self._known:  # the first call: ranks are certain now
                card.write_card(
                    rank=distributed.get_rank(), world_size=distributed.get_world_size()
                )
        except (RuntimeError, ValueError, KeyError, AssertionError):
            backend = ""
        return {"group": name, "size": group.size(), "backend": backend}

    def future(self, result, call):
        """Return the future of a call that completes later, where it tells the truth.

        NCCL's is done as soon as the call is enqueued: there the kernels tell.
        """
        if "nccl" in call.details.get("backend", ""):
            return None
        work = result[-1] if isinstance(result, tuple) else result
        if isinstance(work, self._torch.ScriptObject) and self._unbox_work is None:
            is_safe = call.details.get("backend") == "gloo" and call.is_on_host
            if is_safe and call.label not in _POINT_TO_POINT:
                return _Awaited(self._waiters, work)
            return None
        try:
            if self._unbox_work is not None:
                work = self._unbox_work(work)
            return work.get_future()
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return None


class _Awaited:
    """Stands in for the future of work that can only be waited for (torch 2.1)."""

    def __init__(self, waiters, work):
        self._waiters = waiters
        self._work = work

    def add_done_callback(self, callback):
        self._waiters.put(self._work, callback)


class _Waiters:
    """Threads that wait for work, in the order in which it was handed in.

    Several may wait for a collective of gloo. It is not so for sends and receives, whose waiting
    is itself part of the transfer, nor for CUDA tensors, where it orders the streams of a thread.
    """

    def __init__(self):
        self._process = None

    def put(self, work, callback):
        """Have ``callback(work)`` called when ``work`` is done."""
        if self._process != os.getpid():
            self._start()
        self._queue.put((work, callback))

    def _start(self):
        if self._process is None:
            session.at_end(self._stop)
        self._process = os.getpid()
        self._queue = SimpleQueue()
        self._threads = [
            threading.Thread(target=_wait, args=(self._queue,), daemon=True)
            for _ in range(_N_WAITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _stop(self):
        """Let the threads end: one that waits for torch must not outlive the interpreter."""
        if self._process == os.getpid():
            for _ in self._threads:
                self._queue.put((None, None))
            for thread in self._threads:
                thread.join(1)


def _wait(queue):
    while True:
        work, callback = queue.get()
        if work is None:
            return
        with suppress(Exception):  # the program gets it where it waits itself
            work.wait()
        callback(work)
        del work, callback  # or the next wait would keep their tensors

"""Collective and point-to-point calls of torch.distributed, with their bytes.

A Python kernel on every operator of the ``c10d`` library sees calls from Python, from the
reducer of DDP (which is C++) and from FSDP alike, with their tensors.
"""

import functools
import threading

from . import process_record, session
from .clock import time_ns
from .emitters import NOWHERE
from .replaced import at_restore, replace
from .wait_threads import WaitsForBoxedWork, WaitsForFuture, WaitsForWork, WaitThreads

# operator → index of the argument that holds the tensors that this rank hands in
_TENSORS_AT = {"allreduce_": 0, "allreduce_coalesced_": 0, "broadcast_": 0, "reduce_": 0}
_TENSORS_AT.update({"allgather_": 1, "_allgather_base_": 1, "allgather_coalesced_": 1})
_TENSORS_AT.update({"allgather_into_tensor_coalesced_": 1, "reduce_scatter_": 1})
_TENSORS_AT.update({"_reduce_scatter_base_": 1, "reduce_scatter_tensor_coalesced_": 1})
# Of a scatter what the rank gets: only the root hands anything in.
_TENSORS_AT.update({"gather_": 1, "scatter_": 0, "alltoall_": 1, "alltoall_base_": 1})
_TENSORS_AT.update({"send": 0, "recv_": 0, "recv_any_source_": 0, "barrier": None})
_HAVE_PEER = ("send", "recv_")  # the peer is their third argument
_HAVE_TAG = {"send": 3, "recv_": 3, "recv_any_source_": 2}
_MOST_PENDING = 1000
_KEYS = ("AutogradCPU", "AutogradCUDA")
_POINT_TO_POINT = ("send", "recv", "recv_any_source")
_libraries = []


def install_collectives(torch):
    """Put a kernel of ours above every operator of c10d."""
    if not torch.distributed.is_available():
        return
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)  # the kernels go when it goes
    at_restore(_libraries.clear)
    groups = _Groups(torch)
    for name, index in _TENSORS_AT.items():
        packet = getattr(torch.ops.c10d, name, None)
        if packet is not None:
            kernel = _kernel(torch, groups, name, packet.default, index)
            for key in _KEYS:
                library.impl(name, kernel, key)


def _kernel(torch, groups, name, operator, index):
    below_autograd = torch._C._AutoDispatchBelowAutograd
    label = name.strip("_")

    def kernel(*args, **kwargs):
        if not session.active:
            with below_autograd():
                return operator(*args, **kwargs)
        handed_in = args[index] if index is not None and index < len(args) else ()
        call = _Call(label, _tensors(torch, handed_in), groups.details(name, args))
        try:
            with below_autograd():
                result = operator(*args, **kwargs)
        finally:
            call.has_returned()
        groups.follow(result, call)
        return result

    return kernel


def _tensors(torch, argument):
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [tensor for part in argument for tensor in _tensors(torch, part)]
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

    @property
    def is_by_gloo(self):
        """Whether gloo does it: of a group like ``cpu:gloo,cuda:nccl`` what lies on the host."""
        backend = self.details.get("backend", "")
        return backend == "gloo" or ("gloo" in backend and self.is_on_host and self._n_bytes > 0)

    @property
    def is_noted(self):
        """Whether the call goes anywhere: capturing has begun and is not over."""
        return self._emitter is not NOWHERE

    def has_returned(self):
        self._emitter.pop()
        self._end = time_ns()

    def has_completed(self):
        """Note the call as complete when it returned."""
        self._note(self._end)

    def goes_on(self):
        """Open the range that lasts until `completes`."""
        self._token = self._emitter.start("comm.async:" + self.label, self._n_bytes)

    def completes(self):
        """Note the call as complete now."""
        self._emitter.end(self._token)
        self._note(time_ns())

    def _note(self, end):
        if self.is_noted:
            row = (self._start, end, self.label, self._n_bytes, self._thread, self.details)
            session.spool().collective(*row)


class _Groups:
    """What is known of process groups, and the futures of their work."""

    def __init__(self, torch):
        self._torch = torch
        self._threads = WaitThreads()
        c10d = torch._C._distributed_c10d
        self._unbox_group = getattr(c10d.ProcessGroup, "unbox", None)
        self._unbox_work = getattr(getattr(c10d, "Work", None), "unbox", None)
        self._pending = _PendingCalls(getattr(c10d, "Work", None))
        self._known = {}
        self._sequences = {}

    def details(self, operator, args):
        """Return name, size and backend of the group among ``args`` and the call's number in it.

        Of a send or a receive also the other end.
        """
        group = self._group(args)
        if group is None:
            return self._common_details()
        name = str(getattr(group, "group_name", "") or "")
        if name not in self._known:
            self._known[name] = self._describe(group, name)
        is_single = operator in _HAVE_TAG
        # Ranks send differently often: what all call together is counted by itself.
        counted = (name, is_single)
        self._sequences[counted] = self._sequences.get(counted, -1) + 1
        details = dict(self._known[name], sequence=self._sequences[counted])
        if is_single:
            details.update(self._other_end(operator, group, args))
        return details

    def _other_end(self, operator, group, args):
        place = _HAVE_TAG[operator]
        found = {"tag": args[place]} if len(args) > place else {}
        if operator in _HAVE_PEER:
            found["peer"] = args[2]
            rank = self._rank_in_job(group, args[2])
            if rank is not None:
                found["peer_rank"] = rank
        return found

    def _rank_in_job(self, group, peer):
        try:
            return int(self._torch.distributed.get_global_rank(group, peer))
        except (AttributeError, RuntimeError, ValueError, KeyError):
            return None

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
                process_record.write_process_record(
                    rank=distributed.get_rank(), world_size=distributed.get_world_size()
                )
        except (RuntimeError, ValueError, KeyError, AssertionError):
            backend = ""
        return {"group": name, "size": group.size(), "backend": backend, "group_rank": group.rank()}

    def follow(self, result, call):
        """Note ``call`` when it is complete, by its future or, without one, by who waits for it.

        NCCL's future is done as soon as the call is enqueued: there the kernels tell.
        """
        is_followed = call.is_noted and (
            "nccl" not in call.details.get("backend", "") or call.is_by_gloo
        )
        work = self._work(result, call) if is_followed else None
        if work is None:
            call.has_completed()
            return
        call.goes_on()
        wait = self._wait(work, call)
        if wait is None:
            self._pending.add(work, call)
        else:
            self._threads.put(wait, call.completes)

    def _work(self, result, call):
        work = result[-1] if isinstance(result, tuple) else result
        if isinstance(work, self._torch.ScriptObject) and self._unbox_work is None:
            return work if self._can_be_waited_for(call) else None
        try:
            return work if self._unbox_work is None else self._unbox_work(work)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return None

    def _wait(self, work, call):
        """Return how to wait for ``work``, or nothing where only the program may."""
        if isinstance(work, self._torch.ScriptObject):
            return WaitsForBoxedWork(work)
        try:
            future = work.get_future()
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return None
        if self._can_be_waited_for(call):
            return WaitsForWork(work, self._pending.wait)
        return WaitsForFuture(future)

    @staticmethod
    def _can_be_waited_for(call):
        return call.is_by_gloo and call.is_on_host and call.label not in _POINT_TO_POINT


class _PendingCalls:
    """Calls without a future (sends and receives of gloo), until the program waits for them."""

    def __init__(self, work_class):
        self._calls = {}
        self.wait = getattr(work_class, "wait", None)
        if self.wait is not None:
            replace(work_class, "wait", self._noting(self.wait))

    def add(self, work, call):
        if self.wait is None:
            call.completes()
            return
        while len(self._calls) >= _MOST_PENDING:
            _, oldest = self._calls.pop(next(iter(self._calls)))
            oldest.completes()
        self._calls[id(work)] = (work, call)  # held, so that no other gets its number

    def _noting(self, wait):
        @functools.wraps(wait)
        def wait_and_note(work, *args, **kwargs):
            try:
                return wait(work, *args, **kwargs)
            finally:
                _, call = self._calls.pop(id(work), (None, None))
                if call is not None:
                    call.completes()

        return wait_and_note

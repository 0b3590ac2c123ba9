"""Hooks for collective and point-to-point calls of torch.distributed, with their bytes.

A Python kernel on every operator of the ``c10d`` library sees the tensors of all calls: from
Python, from DDP's reducer (C++), and from FSDP.
"""

import functools
import threading

from . import process_record, session
from .clock import time_ns
from .emitters import NOWHERE
from .replaced import at_restore, replace
from .wait_threads import WaitsForBoxedWork, WaitsForFuture, WaitsForWork, WaitThreads

# operator → index of the argument with this rank's input tensors; None: no tensors
_TENSORS_ARGUMENT = {
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
    "scatter_": 0,  # the output tensors: only the root has input tensors
    "alltoall_": 1,
    "alltoall_base_": 1,
    "send": 0,
    "recv_": 0,
    "recv_any_source_": 0,
    "barrier": None,
}
_PEER_OPERATORS = ("send", "recv_")  # operators whose third argument is the peer
_TAG_ARGUMENT = {"send": 3, "recv_": 3, "recv_any_source_": 2}
_MAX_PENDING = 1000
_MIN_WAIT_NS = 50000  # shorter waits have no range; NCCL's waits do not block
_DISPATCH_KEYS = ("AutogradCPU", "AutogradCUDA")
_POINT_TO_POINT = ("send", "recv", "recv_any_source")
_libraries = []


def install_collectives(torch):
    """Register our kernel for every operator of c10d."""
    if not torch.distributed.is_available():
        return
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)  # the kernels are removed when this object is deleted
    at_restore(_libraries.clear)
    groups = _Groups(torch)
    for name, index in _TENSORS_ARGUMENT.items():
        packet = getattr(torch.ops.c10d, name, None)
        if packet is not None:
            kernel = _make_kernel(torch, groups, name, packet.default, index)
            for key in _DISPATCH_KEYS:
                library.impl(name, kernel, key)


def _make_kernel(torch, groups, name, operator, index):
    """Return a kernel that records a call and then calls the operator below autograd."""
    below_autograd = torch._C._AutoDispatchBelowAutograd
    label = name.strip("_")

    def kernel(*args, **kwargs):
        if not session.active:
            with below_autograd():
                return operator(*args, **kwargs)
        argument = args[index] if index is not None and index < len(args) else ()
        call = _Call(label, _find_tensors(torch, argument), groups.details(name, args))
        try:
            with below_autograd():
                result = operator(*args, **kwargs)
        finally:
            call.end_call()
        groups.follow(result, call)
        return result

    return kernel


def _find_tensors(torch, argument):
    """Return the tensors in an argument: a tensor, or nested lists of tensors."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [tensor for part in argument for tensor in _find_tensors(torch, part)]
    return []


class _Call:
    """One call: a range on its thread, a range until it completes, and a row with its details."""

    def __init__(self, label, tensors, details):
        self.label = label
        self.is_on_host = all(tensor.device.type == "cpu" for tensor in tensors)
        self._n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.details = dict(details)
        if tensors:
            self.details["dtype"] = str(tensors[0].dtype).replace("torch.", "")
        self._thread = threading.get_native_id()
        self._emitter = session.emitter()
        self._start_ns = time_ns()
        self._emitter.push("comm:" + label, self._n_bytes)

    @property
    def is_by_gloo(self):
        """Whether gloo runs the call; a group ``cpu:gloo,cuda:nccl`` uses gloo for CPU tensors."""
        backend = self.details.get("backend", "")
        return backend == "gloo" or ("gloo" in backend and self.is_on_host and self._n_bytes > 0)

    @property
    def is_noted(self):
        """Whether the call is recorded: capturing has begun and is not over."""
        return self._emitter is not NOWHERE

    def end_call(self):
        """End the range of the call on its thread."""
        self._emitter.pop()
        self._end_ns = time_ns()

    def complete_at_return(self):
        """Record the call as complete at the time when it returned."""
        self._note(self._end_ns)

    def begin_async(self):
        """Open the range that lasts until `complete_now`."""
        self._token = self._emitter.start("comm.async:" + self.label, self._n_bytes)

    def complete_now(self):
        """Record the call as complete at the current time."""
        self._emitter.end(self._token)
        self._note(time_ns())

    def _note(self, end_ns):
        if self.is_noted:
            self._emitter.collective(
                self._start_ns, end_ns, self.label, self._n_bytes, self._thread, self.details
            )


class _Groups:
    """Describes process groups, and follows the work of calls until it completes."""

    def __init__(self, torch):
        self._torch = torch
        self._threads = WaitThreads()
        c10d = torch._C._distributed_c10d
        self._unbox_group = getattr(c10d.ProcessGroup, "unbox", None)
        self._unbox_work = getattr(getattr(c10d, "Work", None), "unbox", None)
        self._pending = _PendingCalls(getattr(c10d, "Work", None))
        self._described = {}
        self._sequences = {}

    def details(self, operator, args):
        """Return group name, size, backend, and the sequence number of the call in its group.

        For a send or receive, also return tag and peer.
        """
        group = self._find_group(args)
        if group is None:
            return self._common_details()
        name = str(getattr(group, "group_name", "") or "")
        if name not in self._described:
            self._described[name] = self._describe(group, name)
        is_point_to_point = operator in _TAG_ARGUMENT
        # Numbers of sends differ between ranks, so collectives are counted separately.
        key = (name, is_point_to_point)
        self._sequences[key] = self._sequences.get(key, -1) + 1
        details = dict(self._described[name], sequence=self._sequences[key])
        if is_point_to_point:
            details.update(self._describe_peer(operator, group, args))
        return details

    def _describe_peer(self, operator, group, args):
        """Return tag, peer, and the peer's global rank, as far as they are known."""
        tag_argument = _TAG_ARGUMENT[operator]
        details = {"tag": args[tag_argument]} if len(args) > tag_argument else {}
        if operator in _PEER_OPERATORS:
            details["peer"] = args[2]
            rank = self._global_rank(group, args[2])
            if rank is not None:
                details["peer_rank"] = rank
        return details

    def _global_rank(self, group, peer):
        try:
            return int(self._torch.distributed.get_global_rank(group, peer))
        except (AttributeError, RuntimeError, ValueError, KeyError):
            return None

    def _find_group(self, args):
        """Return the process group among the arguments; None if it cannot be found."""
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
        """Return the group if there is only one (torch 2.1 does not show the group of a call)."""
        world = getattr(self._torch.distributed.distributed_c10d, "_world", None)
        groups = list(getattr(world, "pg_map", None) or ())
        return groups[0] if len(groups) == 1 else None

    def _common_details(self):
        """Return the backend if all groups have the same one, for calls without a known group."""
        distributed = self._torch.distributed
        world = getattr(distributed.distributed_c10d, "_world", None)
        backends = {str(distributed.get_backend(group)) for group in world.pg_map} if world else ()
        return {"backend": backends.pop()} if len(backends) == 1 else {}

    def _describe(self, group, name):
        """Return name, size, backend, and rank of a group; at the first call, record the ranks."""
        distributed = self._torch.distributed
        try:
            backend = str(distributed.get_backend(group))
            if not self._described:  # the first call: the rank is known now
                process_record.write_process_record(
                    rank=distributed.get_rank(), world_size=distributed.get_world_size()
                )
        except (RuntimeError, ValueError, KeyError, AssertionError):
            backend = ""
        return {"group": name, "size": group.size(), "backend": backend, "group_rank": group.rank()}

    def follow(self, result, call):
        """Record ``call`` when it completes: by its future, or when the program waits for it.

        NCCL's future is done as soon as the call is enqueued, so NCCL calls are complete at their
        return. Their kernels show the duration.
        """
        is_followed = call.is_noted and (
            "nccl" not in call.details.get("backend", "") or call.is_by_gloo
        )
        work = self._get_work(result, call) if is_followed else None
        if work is None:
            call.complete_at_return()
            return
        call.begin_async()
        wait = self._make_wait(work, call)
        if wait is None:
            self._pending.add(work, call)
        else:
            self._threads.put(wait, call.complete_now)

    def _get_work(self, result, call):
        """Return the work object of a call; None if it cannot be followed."""
        work = result[-1] if isinstance(result, tuple) else result
        if isinstance(work, self._torch.ScriptObject) and self._unbox_work is None:
            return work if self._can_wait_for(call) else None
        try:
            return work if self._unbox_work is None else self._unbox_work(work)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return None

    def _make_wait(self, work, call):
        """Return an object that waits for ``work``; None if only the program may wait for it."""
        if isinstance(work, self._torch.ScriptObject):
            return WaitsForBoxedWork(work)
        try:
            future = work.get_future()
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return None
        if self._can_wait_for(call):
            return WaitsForWork(work, self._pending.wait)
        return WaitsForFuture(future)

    @staticmethod
    def _can_wait_for(call):
        return call.is_by_gloo and call.is_on_host and call.label not in _POINT_TO_POINT


class _PendingCalls:
    """Calls without a future (gloo sends and receives), until the program waits for them."""

    def __init__(self, work_class):
        self._calls = {}
        self.wait = getattr(work_class, "wait", None)
        if self.wait is not None:
            replace(work_class, "wait", self._wrap_wait(self.wait))

    def add(self, work, call):
        """Keep a call until the program waits for it; beyond the limit, complete the oldest."""
        if self.wait is None:
            call.complete_now()
            return
        while len(self._calls) >= _MAX_PENDING:
            _, oldest = self._calls.pop(next(iter(self._calls)))
            oldest.complete_now()
        self._calls[id(work)] = (work, call)  # keeps the work alive, so that its id stays unique

    def _wrap_wait(self, wait):
        @functools.wraps(wait)
        def wait_and_note(work, *args, **kwargs):
            start_ns = time_ns()
            try:
                return wait(work, *args, **kwargs)
            finally:
                end_ns = time_ns()
                if end_ns - start_ns >= _MIN_WAIT_NS and session.active:
                    session.emitter().add_past(start_ns, end_ns, "comm:wait")
                _, call = self._calls.pop(id(work), (None, None))
                if call is not None:
                    call.complete_now()

        return wait_and_note

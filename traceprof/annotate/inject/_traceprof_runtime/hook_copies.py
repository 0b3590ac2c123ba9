"""Copies of tensors from the host to a GPU: a range with the bytes.

What a copy does on the device is the profiler's to record; the range shows how long the host is
held up by it, which it is where the memory is pageable.
"""

import functools

from . import session
from .compiling import get_is_compiling


def install(torch):
    """Wrap ``Tensor.to`` and ``Tensor.cuda``, in builds of torch that can use a GPU."""
    if torch.version.cuda or getattr(torch.version, "hip", None):
        is_compiling = get_is_compiling(torch)
        torch.Tensor.to = wrapped(torch, torch.Tensor.to, is_compiling)
        torch.Tensor.cuda = wrapped(torch, torch.Tensor.cuda, is_compiling, device="cuda")


def wrapped(torch, original, is_compiling, device=None):
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

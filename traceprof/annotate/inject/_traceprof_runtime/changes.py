"""The changes that `traceprof try` makes in a program, by name: each is made as torch is imported.

A change that cannot be made raises, and the program does not run: a run without it would be taken
for one with it. What follows a first forward pass (layouts, compilation) is made before that.
"""

import functools
import inspect
import os
import sys

from . import settings, trying
from .compiling import get_is_compiling

_of_loaders = {}  # arguments that every loader gets
_SCALE = 1024.0  # by which fp16 makes losses larger: fixed, so that nothing waits for the GPU


def install_changes(torch):
    """Make every change that was asked for; end the program where one cannot be made."""
    for name, value in settings.CHANGES:
        try:
            _CHANGES[name](torch, value)
        except Exception as error:
            sys.stderr.write("traceprof: cannot apply change %s: %s\n" % (name, error))
            sys.stderr.flush()
            os._exit(97)  # an exception would only be complained of


def _with_arguments(cls, only_if=None, **more):
    """Give every instance of a class these arguments, whatever the program gives."""
    original = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        try:
            bound = signature.bind(self, *args, **kwargs).arguments
        except TypeError:  # what the program gives is wrong anyway
            return original(self, *args, **kwargs)
        own = {name: value for name, value in bound.items() if name not in ("self",)}
        named = own.pop("kwargs", {})
        rest = own.pop("args", ())
        if rest:
            return original(self, *args, **kwargs)
        own.update(named)
        changed = more if only_if is None else only_if(own, dict(more))
        own.update(changed)
        return original(self, **own)

    cls.__init__ = __init__


def _loader(**more):
    from torch.utils.data import DataLoader, IterableDataset

    is_first = not _of_loaders
    _of_loaders.update(more)
    if not is_first:
        return

    def only_if(own, _wanted):
        wanted = dict(_of_loaders)
        if isinstance(own.get("dataset"), IterableDataset):
            wanted.pop("num_workers", None)  # each worker would give all of the stream
        workers = wanted.get("num_workers", own.get("num_workers", 0))
        if not workers:
            wanted.pop("prefetch_factor", None)
            wanted.pop("persistent_workers", None)
        return wanted

    _with_arguments(DataLoader, only_if)


def _workers(_torch, value):
    _loader(num_workers=int(value or min(8, os.cpu_count() or 1)), persistent_workers=True)


def _prefetch_factor(_torch, value):
    _loader(prefetch_factor=int(value or 4))


def _persistent_workers(_torch, _value):
    _loader(persistent_workers=True)


def _pin_memory(_torch, _value):
    _loader(pin_memory=True)


def _batch_size(_torch, value):
    from torch.utils.data import DataLoader

    def only_if(own, _wanted):
        if own.get("batch_sampler") is not None or own.get("batch_size", 1) is None:
            return {}
        size = own.get("batch_size", 1)
        return {"batch_size": size * int(value[1:]) if value.startswith("x") else int(value)}

    _with_arguments(DataLoader, only_if)


def _non_blocking(torch, _value):
    for name in ("to", "cuda"):
        original = getattr(torch.Tensor, name)

        @functools.wraps(original)
        def copied(self, *args, _original=original, **kwargs):
            if not self.is_cuda and self.is_pinned():
                kwargs.setdefault("non_blocking", True)
            return _original(self, *args, **kwargs)

        setattr(torch.Tensor, name, copied)


def _around_forward(torch, prepare=None, convert=None, around=None, finish=None):
    """Do something with the outermost module before its first call, with each call and its inputs.

    ``convert`` is applied to every tensor that it is given, ``finish`` to every one that it gives;
    ``around`` makes what the call runs in.
    """
    original = torch.nn.Module.__call__
    is_compiling = get_is_compiling(torch)
    prepared, state = set(), {"depth": 0}

    def __call__(self, *args, **kwargs):
        if is_compiling() or state["depth"]:
            return original(self, *args, **kwargs)
        if prepare is not None and id(self) not in prepared:
            prepared.add(id(self))
            prepare(self)
        if convert is not None:
            args, kwargs = _mapped(torch, args, convert), _mapped(torch, kwargs, convert)
        state["depth"] += 1
        try:
            if around is None:
                result = original(self, *args, **kwargs)
            else:
                with around():
                    result = original(self, *args, **kwargs)
        finally:
            state["depth"] -= 1
        return result if finish is None else _mapped(torch, result, finish)

    torch.nn.Module.__call__ = __call__


def _mapped(torch, value, function):
    """Return a value with the function applied to the tensors in it."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return type(value)((key, _mapped(torch, one, function)) for key, one in value.items())
    if type(value) in (list, tuple):
        return type(value)(_mapped(torch, one, function) for one in value)
    return value


def _layout(torch, n_dimensions, memory_format):
    def prepare(module):
        for one in (*module.parameters(), *module.buffers()):
            if one.dim() == n_dimensions:
                one.data = one.data.contiguous(memory_format=memory_format)

    def convert(tensor):
        if tensor.dim() != n_dimensions:
            return tensor
        return tensor.contiguous(memory_format=memory_format)

    _around_forward(torch, prepare, convert)


def _channels_last(torch, _value):
    _layout(torch, 4, torch.channels_last)


def _channels_last_3d(torch, _value):
    _layout(torch, 5, torch.channels_last_3d)


def _tf32(torch, _value):
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def _matmul_precision(torch, value):
    torch.set_float32_matmul_precision(value or "high")


def _autocast(torch, dtype):
    def around():
        kind = "cuda" if torch.cuda.is_initialized() else "cpu"
        return torch.autocast(kind, dtype=dtype)

    # Losses get outputs of 32 bits, as where autocast is around them, too.
    finish = functools.partial(_in_32_bits, dtype)
    _around_forward(torch, around=around, finish=finish)


def _in_32_bits(dtype, tensor):
    return tensor.float() if tensor.dtype == dtype else tensor


def _bf16(torch, _value):
    _autocast(torch, torch.bfloat16)


def _fp16(torch, _value):
    _autocast(torch, torch.float16)
    backward = torch.autograd.backward
    seen = set()

    def scaled(tensors, *args, **kwargs):
        one = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
        if not isinstance(one, torch.Tensor) or one.numel() != 1:
            return backward(tensors, *args, **kwargs)
        return backward(one * _SCALE, *args, **kwargs)

    torch.autograd.backward = scaled
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        for group in self.param_groups:
            for one in group["params"]:
                if id(one) not in seen and one.requires_grad:
                    seen.add(id(one))
                    one.register_hook(lambda gradient: gradient / _SCALE)

    torch.optim.Optimizer.__init__ = __init__


def _cudnn_benchmark(torch, _value):
    torch.backends.cudnn.benchmark = True


def _optimizers(torch, option):
    """Give every optimizer of torch an option, where it knows it."""
    for cls in vars(torch.optim).values():
        if inspect.isclass(cls) and option in inspect.signature(cls.__init__).parameters:
            other = "foreach" if option == "fused" else "fused"
            more = {option: True}
            if other in inspect.signature(cls.__init__).parameters:
                more[other] = None if option == "foreach" else False
            _with_arguments(cls, **more)


def _fused_optimizer(torch, _value):
    _optimizers(torch, "fused")


def _foreach_optimizer(torch, _value):
    _optimizers(torch, "foreach")


def _set_to_none(torch, _value):
    for cls in (torch.optim.Optimizer, torch.nn.Module):
        original = cls.zero_grad

        @functools.wraps(original)
        def zero_grad(self, *_arguments, _original=original, **_options):
            return _original(self, set_to_none=True)

        cls.zero_grad = zero_grad


def _compile(torch, value):
    if not hasattr(torch.nn.Module, "compile"):
        raise RuntimeError("this version of torch has no Module.compile")
    more = {} if value in ("", "default") else {"mode": value}
    _around_forward(torch, lambda module: module.compile(**more))


def _sdpa(torch, value):
    cuda = torch.backends.cuda
    switches = {
        "flash": "enable_flash_sdp",
        "efficient": "enable_mem_efficient_sdp",
        "math": "enable_math_sdp",
        "cudnn": "enable_cudnn_sdp",
    }
    if value not in switches:
        raise ValueError("sdpa must be one of %s" % ", ".join(switches))
    for name, switch in switches.items():
        if hasattr(cuda, switch):
            getattr(cuda, switch)(name == value)


def _ddp(torch, **more):
    _with_arguments(torch.nn.parallel.DistributedDataParallel, **more)


def _bucket_cap_mb(torch, value):
    _ddp(torch, bucket_cap_mb=float(value or 100))


def _gradient_as_bucket_view(torch, _value):
    _ddp(torch, gradient_as_bucket_view=True)


def _static_graph(torch, _value):
    _ddp(torch, static_graph=True)


def _ddp_hook(torch, value):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    hook = getattr(default_hooks, "%s_compress_hook" % (value or "bf16"))
    ddp = torch.nn.parallel.DistributedDataParallel
    original = ddp.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.register_comm_hook(None, hook)

    ddp.__init__ = __init__


def _threads(torch, value):
    torch.set_num_threads(int(value))  # beside OMP_NUM_THREADS, which is set for it


def _gc_freeze(_torch, _value):
    import gc

    def freeze():
        gc.collect()
        gc.freeze()
        gc.disable()

    trying.at_begin.append(freeze)


def _nothing(_torch, _value):
    """Of the environment: it was changed before the program began."""


_CHANGES = {
    "workers": _workers,
    "prefetch_factor": _prefetch_factor,
    "persistent_workers": _persistent_workers,
    "pin_memory": _pin_memory,
    "batch_size": _batch_size,
    "non_blocking": _non_blocking,
    "channels_last": _channels_last,
    "channels_last_3d": _channels_last_3d,
    "tf32": _tf32,
    "matmul_precision": _matmul_precision,
    "bf16": _bf16,
    "fp16": _fp16,
    "cudnn_benchmark": _cudnn_benchmark,
    "fused_optimizer": _fused_optimizer,
    "foreach_optimizer": _foreach_optimizer,
    "set_to_none": _set_to_none,
    "compile": _compile,
    "sdpa": _sdpa,
    "bucket_cap_mb": _bucket_cap_mb,
    "gradient_as_bucket_view": _gradient_as_bucket_view,
    "static_graph": _static_graph,
    "ddp_hook": _ddp_hook,
    "threads": _threads,
    "affinity": _nothing,
    "allocator": _nothing,
    "env": _nothing,
    "gc_freeze": _gc_freeze,
}

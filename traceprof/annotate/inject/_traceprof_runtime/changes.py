"""The changes that `traceprof try` makes in a program, by name, when torch is imported.

If a change cannot be made, the program ends: its run would be mistaken for a run with the change.
Changes that need the model (layouts, compilation) are made before its first forward pass.
"""

import functools
import inspect
import os

from . import settings, trying
from .changed_calls import override_arguments, refuse, wrap_forward
from .more_changes import MORE_CHANGES

_loader_options = {}  # arguments for every DataLoader
_LOSS_SCALE = 1024.0  # for fp16; a fixed factor needs no synchronization with the GPU


def install_changes(torch):
    """Make every requested change; end the program with code 97 if one cannot be made."""
    for name, value in settings.CHANGES:
        try:
            (_CHANGES.get(name) or MORE_CHANGES[name])(torch, value)
        except Exception as error:
            refuse(name, error)


def _change_loaders(**changed):
    """Add arguments for every DataLoader; wrap the class at the first call."""
    from torch.utils.data import DataLoader, IterableDataset

    is_first = not _loader_options
    _loader_options.update(changed)
    if not is_first:
        return

    def select_options(arguments):
        options = dict(_loader_options)
        if isinstance(arguments.get("dataset"), IterableDataset):
            options.pop("num_workers", None)  # each worker would return the whole stream
        if not options.get("num_workers", arguments.get("num_workers", 0)):
            options.pop("prefetch_factor", None)
            options.pop("persistent_workers", None)
        return options

    override_arguments(DataLoader, select_options)


def _workers(_torch, value):
    _change_loaders(num_workers=int(value or min(8, os.cpu_count() or 1)), persistent_workers=True)


def _prefetch_factor(_torch, value):
    _change_loaders(prefetch_factor=int(value or 4))


def _persistent_workers(_torch, _value):
    _change_loaders(persistent_workers=True)


def _pin_memory(_torch, _value):
    _change_loaders(pin_memory=True)


def _batch_size(_torch, value):
    from torch.utils.data import DataLoader

    def select_options(arguments):
        if arguments.get("batch_sampler") is not None or arguments.get("batch_size", 1) is None:
            return {}
        size = arguments.get("batch_size", 1)
        return {"batch_size": size * int(value[1:]) if value.startswith("x") else int(value)}

    override_arguments(DataLoader, select_options)


def _non_blocking(torch, _value):
    for name in ("to", "cuda"):
        original = getattr(torch.Tensor, name)

        @functools.wraps(original)
        def copy(self, *args, _original=original, **kwargs):
            if not self.is_cuda and self.is_pinned():
                kwargs.setdefault("non_blocking", True)
            return _original(self, *args, **kwargs)

        setattr(torch.Tensor, name, copy)


def _change_layout(torch, n_dimensions, memory_format):
    """Convert parameters, buffers, and inputs with this number of dimensions to a format."""

    def prepare(module):
        for weight in (*module.parameters(), *module.buffers()):
            if weight.dim() == n_dimensions:
                weight.data = weight.data.contiguous(memory_format=memory_format)

    def convert(tensor):
        if tensor.dim() != n_dimensions:
            return tensor
        return tensor.contiguous(memory_format=memory_format)

    wrap_forward(torch, prepare, convert)


def _channels_last(torch, _value):
    _change_layout(torch, 4, torch.channels_last)


def _channels_last_3d(torch, _value):
    _change_layout(torch, 5, torch.channels_last_3d)


def _tf32(torch, _value):
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def _matmul_precision(torch, value):
    torch.set_float32_matmul_precision(value or "high")


def _change_autocast(torch, dtype):
    """Run every forward pass in autocast with ``dtype``, and convert its outputs to float32."""

    def make_context():
        kind = "cuda" if torch.cuda.is_initialized() else "cpu"
        return torch.autocast(kind, dtype=dtype)

    # Autocast computes losses in float32. The loss is outside this context, so convert its input.
    finish = functools.partial(_to_float32, dtype)
    wrap_forward(torch, make_context=make_context, finish=finish)


def _to_float32(dtype, tensor):
    return tensor.float() if tensor.dtype == dtype else tensor


def _bf16(torch, _value):
    _change_autocast(torch, torch.bfloat16)


def _fp16(torch, _value):
    """Run in float16 with scaled losses; hooks on the parameters scale the gradients back."""
    _change_autocast(torch, torch.float16)
    backward = torch.autograd.backward
    hooked = set()

    def scaled_backward(tensors, *args, **kwargs):
        loss = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return backward(tensors, *args, **kwargs)
        return backward(loss * _LOSS_SCALE, *args, **kwargs)

    torch.autograd.backward = scaled_backward
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        for group in self.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in hooked and parameter.requires_grad:
                    hooked.add(id(parameter))
                    parameter.register_hook(lambda gradient: gradient / _LOSS_SCALE)

    torch.optim.Optimizer.__init__ = __init__


def _cudnn_benchmark(torch, _value):
    torch.backends.cudnn.benchmark = True


def _change_optimizers(torch, option):
    """Switch an option on in every optimizer class of torch that has the option."""
    for cls in vars(torch.optim).values():
        if inspect.isclass(cls) and option in inspect.signature(cls.__init__).parameters:
            other = "foreach" if option == "fused" else "fused"
            options = {option: True}
            if other in inspect.signature(cls.__init__).parameters:
                options[other] = None if option == "foreach" else False
            override_arguments(cls, lambda _arguments, options=options: options)


def _fused_optimizer(torch, _value):
    _change_optimizers(torch, "fused")


def _foreach_optimizer(torch, _value):
    _change_optimizers(torch, "foreach")


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
    options = {} if value in ("", "default") else {"mode": value}
    wrap_forward(torch, lambda module: module.compile(**options))


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


def _change_ddp(torch, **options):
    override_arguments(torch.nn.parallel.DistributedDataParallel, lambda _arguments: options)


def _bucket_cap_mb(torch, value):
    _change_ddp(torch, bucket_cap_mb=float(value or 100))


def _gradient_as_bucket_view(torch, _value):
    _change_ddp(torch, gradient_as_bucket_view=True)


def _static_graph(torch, _value):
    _change_ddp(torch, static_graph=True)


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
    torch.set_num_threads(int(value))  # in addition to OMP_NUM_THREADS, which was set at the start


def _gc_freeze(_torch, _value):
    import gc

    def freeze():
        gc.collect()
        gc.freeze()
        gc.disable()

    trying.at_begin.append(freeze)


def _change_nothing(_torch, _value):
    """Do nothing: the environment was changed before the program started."""


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
    "affinity": _change_nothing,
    "allocator": _change_nothing,
    "env": _change_nothing,
    "gc_freeze": _gc_freeze,
}

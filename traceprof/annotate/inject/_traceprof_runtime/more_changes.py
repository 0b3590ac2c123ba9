"""Changes of `traceprof try` that save memory, or work of the optimizer.

Activation checkpointing, gradient accumulation, 8-bit optimizers, and a smaller allocator cache.
"""

import functools
import inspect

from . import steps
from .changed_calls import refuse, wrap_forward

_UNUSED_OPTIONS = ("foreach", "fused", "capturable", "differentiable", "maximize")


def _checkpoint(torch, value):
    """Checkpoint every Nth of the blocks that a container of the model repeats."""
    every = int(value or 1)
    state = {"has_blocks": False}

    def prepare(module):
        blocks = _find_blocks(torch, module)
        state["has_blocks"] = state["has_blocks"] or bool(blocks)
        if not state["has_blocks"] and module.training and list(module.parameters()):
            refuse("checkpoint", "the model has no repeated blocks in a Sequential or ModuleList")
        for block in blocks[::every]:
            _checkpoint_block(torch, block)

    wrap_forward(torch, prepare)


def _find_blocks(torch, module):
    """Return the blocks that containers of ``module`` repeat, without blocks inside of blocks.

    A block is one of several modules of one class in a container, and has modules of its own.
    """
    found = []
    for child in module.children():
        blocks = []
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)):
            members = [member for member in child.children() if any(member.children())]
            classes = [type(member) for member in members]
            blocks = [member for member in members if classes.count(type(member)) > 1]
        found += blocks or _find_blocks(torch, child)
    return found


def _checkpoint_block(torch, block):
    from torch.utils.checkpoint import checkpoint

    forward = block.forward

    @functools.wraps(forward)
    def checkpointed(*args, **kwargs):
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    block.forward = checkpointed


def _accumulate(torch, value):
    """Let optimizers step after every Nth call, with the mean of the gradients of N batches."""
    n_batches = int(value or 4)
    n_calls = {}  # id of an optimizer -> number of calls of its step
    wrapped = set()
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        n_calls[id(self)] = 0
        cls = type(self)
        if cls not in wrapped:
            wrapped.add(cls)
            cls.step = _every_nth_step(torch, cls.step, n_batches, n_calls)
            cls.zero_grad = _after_nth_step(cls.zero_grad, n_batches, n_calls)

    torch.optim.Optimizer.__init__ = __init__
    module_zero_grad = torch.nn.Module.zero_grad

    @functools.wraps(module_zero_grad)
    def zero_grad(self, *args, **kwargs):
        if all(n % n_batches == 0 for n in n_calls.values()):
            module_zero_grad(self, *args, **kwargs)

    torch.nn.Module.zero_grad = zero_grad
    ddp = torch.nn.parallel.DistributedDataParallel
    forward = ddp.forward

    @functools.wraps(forward)
    def synchronizing(self, *args, **kwargs):
        n = max(n_calls.values(), default=0)
        self.require_backward_grad_sync = n % n_batches == n_batches - 1  # as no_sync() does
        return forward(self, *args, **kwargs)

    ddp.forward = synchronizing
    _require(n_calls, "accumulate", "the program uses no optimizer of torch")


def _require(found, name, reason):
    """End the program after its first step if the change found nothing to change."""
    steps.on_boundary(lambda number: number and not found and refuse(name, reason))


def _every_nth_step(torch, original, n_batches, n_calls):
    @functools.wraps(original)
    def step(self, *args, **kwargs):
        n_calls[id(self)] = n_calls.get(id(self), 0) + 1
        if n_calls[id(self)] % n_batches:
            return None
        gradients = [
            parameter.grad
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        with torch.no_grad():
            for gradient in gradients:
                gradient.div_(n_batches)
        return original(self, *args, **kwargs)

    return step


def _after_nth_step(original, n_batches, n_calls):
    @functools.wraps(original)
    def zero_grad(self, *args, **kwargs):
        if n_calls.get(id(self), 0) % n_batches == 0:
            original(self, *args, **kwargs)

    return zero_grad


def _optimizer_8bit(torch, _value):
    """Replace Adam and AdamW of torch by those of bitsandbytes."""
    try:
        from bitsandbytes import optim
    except ImportError:
        raise RuntimeError("bitsandbytes is not installed (pip install bitsandbytes)") from None
    created = []
    for name in ("Adam", "AdamW"):
        smaller = _without_options(getattr(optim, name + "8bit"), created)
        for module in (torch.optim, getattr(torch.optim, name.lower(), None)):
            if module is not None:
                setattr(module, name, smaller)
    _require(created, "optimizer_8bit", "the program uses neither Adam nor AdamW of torch")


def _without_options(cls, created):
    """Return a subclass that ignores the options that only the optimizers of torch have.

    Its class is appended to ``created`` for every instance.
    """
    known = inspect.signature(cls.__init__).parameters

    class Smaller(cls):
        def __init__(self, params, *args, **kwargs):
            for option in _UNUSED_OPTIONS:
                if option not in known:
                    kwargs.pop(option, None)
            created.append(cls)
            super().__init__(params, *args, **kwargs)

    Smaller.__name__ = cls.__name__
    return Smaller


def _empty_cache(torch, value):
    every = int(value or 4)

    def empty(number):
        if number and not torch.cuda.is_initialized():
            refuse("empty_cache", "the program uses no GPU")
        if number and number % every == 0:
            torch.cuda.empty_cache()

    steps.on_boundary(empty)


MORE_CHANGES = {
    "checkpoint": _checkpoint,
    "accumulate": _accumulate,
    "optimizer_8bit": _optimizer_8bit,
    "empty_cache": _empty_cache,
}

"""Hooks for optimizer steps, zero_grad, and the sizes of parameters and memory.

The class's ``step`` is wrapped when its first instance is created: torch 2.1 silently drops its
public step hooks once its compiler is imported. Optimizers are numbered. The range names of all but
the first contain the number, because optimizers that take turns share a step.
A step that a GradScaler skips, because gradients are not finite, also counts as an iteration.
"""

import contextlib
import functools
import gc
import inspect
import itertools
import sys
import weakref

from . import hook_rollouts, session, settings, steps
from .compiling import get_is_compiling
from .replaced import replace

_wrappers = set()
# id of an optimizer -> (weak reference, number); stored here, because optimizers are not modified
_numbers = session.clear_at_exit({})
_n_steps = {}  # id of an optimizer -> number of its steps
# Since the start: how often the allocator freed its cache and retried, or called the device.
_ALLOCATOR_COUNTERS = ("alloc_retries", "device_alloc")
_marked_counts = {}  # counter -> its last recorded value


def install_optimizer(torch):
    """Wrap the methods of every optimizer class that the program uses."""
    is_compiling = get_is_compiling(torch)
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        replace(owner, "zero_grad", _wrap_method(owner.zero_grad, "zero_grad", is_compiling))
    wrap_steps(torch, _wrap_step, _wrap_zero_grad)
    scaler = find_grad_scaler("step")
    if scaler is not None:
        replace(scaler, "step", _wrap_scaler_step(scaler.step))


def wrap_steps(torch, wrap, wrap_others=lambda _cls, _is_compiling: None):
    """Wrap ``step`` of every optimizer class with ``wrap(step, is_compiling)``."""
    is_compiling = get_is_compiling(torch)
    optimizer = torch.optim.Optimizer
    original = optimizer.__init__

    def prepare(instance):
        wrap_others(type(instance), is_compiling)
        _wrap_optimizer(instance, wrap, is_compiling)

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        prepare(self)

    replace(optimizer, "__init__", __init__)
    for instance in _find_instances(optimizer):
        prepare(instance)


def _wrap_optimizer(optimizer, wrap, is_compiling):
    """Wrap ``step`` of an optimizer's class and instance unless it is wrapped, and number it."""
    cls = type(optimizer)
    if cls.step not in _wrappers:
        replace(cls, "step", wrap(cls.step, is_compiling))
    if "step" in vars(optimizer):
        _wrap_instance_step(optimizer, wrap, is_compiling)
    steps.add_optimizer(_get_number(optimizer))


def _wrap_zero_grad(cls, is_compiling):
    """Wrap ``zero_grad`` of a class that overrides it."""
    if cls.zero_grad not in _wrappers:
        replace(cls, "zero_grad", _wrap_method(cls.zero_grad, "zero_grad", is_compiling))


def _wrap_instance_step(optimizer, wrap, is_compiling):
    """Wrap a ``step`` that a scheduler set on the optimizer; it calls the class's earlier step."""
    original = vars(optimizer)["step"]
    recorded = wrap(lambda _self, *args, **kwargs: original(*args, **kwargs), is_compiling)

    @functools.wraps(original)
    def step(*args, **kwargs):
        return recorded(optimizer, *args, **kwargs)

    replace(optimizer, "step", step)


def _find_instances(cls):
    """Return the instances of a class that existed when recording began inside the program.

    Wrappers that only forward calls to an optimizer have no parameters, and are omitted.
    """
    if not settings.IS_INSIDE:
        return []
    return [
        item
        for item in gc.get_objects()
        if issubclass(type(item), cls) and vars(item).keys() & {"param_groups", "_parameters"}
    ]


def find_grad_scaler(method):
    """Return the base class of all gradient scalers, which defines ``method``; None if unloaded.

    Torch 2.3 moved the class.
    """
    for path in ("amp.grad_scaler", "cuda.amp.grad_scaler"):
        scaler = getattr(sys.modules.get("torch." + path), "GradScaler", None)
        if scaler is not None and method in vars(scaler):
            return scaler
    return None


def _wrap_scaler_step(original):
    """Return ``original`` with an empty range ``optimizer.skipped`` if it skips the optimizer."""

    @functools.wraps(original)
    def step(self, optimizer, *args, **kwargs):
        n_before = _n_steps.get(id(optimizer))
        result = original(self, optimizer, *args, **kwargs)
        if session.active and id(optimizer) in _numbers and _n_steps.get(id(optimizer)) == n_before:
            number = _get_number(optimizer)
            steps.begin_optimizer(number)
            emitter = session.emitter()
            emitter.push(_range_name("optimizer.skipped", number), steps.number)
            emitter.pop()
            steps.end_optimizer(number)
        return result

    return step


def _range_name(name, number):
    """Return the name of a range, with the optimizer's number unless it is 1."""
    return name if number == 1 else "%s#%d" % (name, number)


def _get_number(optimizer):
    """Return the number of an optimizer: by default the smallest unused number."""
    entry = _numbers.get(id(optimizer))
    if entry is not None and entry[0]() is optimizer:
        return entry[1]
    taken = {number for _, number in _numbers.values()}
    number = next(number for number in itertools.count(1) if number not in taken)
    forget = functools.partial(_forget, id(optimizer), number)
    _numbers[id(optimizer)] = (weakref.ref(optimizer, forget), number)
    return number


def _forget(key, number, _reference):
    """Remove the number of a deleted optimizer."""
    if _numbers.get(key, (None, None))[1] == number:
        del _numbers[key]
        _n_steps.pop(key, None)
    steps.remove_optimizer(number)


def _wrap_step(original, is_compiling):
    """Return an optimizer's ``step`` with a range, which notes the begin and end of the step."""

    def method(self, *args, **kwargs):
        if is_compiling() or not session.active:
            return original(self, *args, **kwargs)
        number = _get_number(self)
        hook_rollouts.begin_optimizer()
        steps.begin_optimizer(number)
        emitter = session.emitter()
        emitter.push(_range_name("optimizer", number), steps.number)
        is_done = False
        try:
            result = original(self, *args, **kwargs)
            is_done = True
            _n_steps[id(self)] = _n_steps.get(id(self), 0) + 1
        finally:
            emitter.pop()
            hook_rollouts.end_training()
            steps.end_optimizer(number, is_done)
        return result

    return copy_attributes(method, original)


def _wrap_method(original, name, is_compiling):
    """Return a method with a range around each call."""

    def method(self, *args, **kwargs):
        if is_compiling() or not session.active:
            return original(self, *args, **kwargs)
        hook_rollouts.begin_training()
        emitter = session.emitter()
        emitter.push(name, steps.number)
        try:
            return original(self, *args, **kwargs)
        finally:
            emitter.pop()
            hook_rollouts.end_training()

    return copy_attributes(method, original)


def copy_attributes(method, original):
    """Give ``method`` the name and signature of ``original``, and mark it as a wrapper.

    GradScaler and trainers inspect the parameters of ``step``. TorchDynamo of PyTorch 2.1 calls
    what ``__wrapped__`` names, so it is not set.
    """
    functools.update_wrapper(method, original, updated=())
    del method.__wrapped__
    with contextlib.suppress(TypeError, ValueError):  # built in, or of a class that hides it
        method.__signature__ = inspect.signature(original)
    if getattr(original, "hooked", False):  # torch sets this if it has wrapped the method itself
        method.hooked = True
    _wrappers.add(method)
    return method


def install_sizes(torch):
    """Measure parameters when optimizers and DDP are created, and memory at every step."""
    _measure_after_init(
        torch.optim.Optimizer,
        "parameter_bytes",
        lambda optimizer: [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ],
    )
    ddp = getattr(getattr(torch.nn.parallel, "distributed", None), "DistributedDataParallel", None)
    if ddp is not None:
        _measure_after_init(
            ddp,
            "ddp_parameter_bytes",
            lambda module: [
                parameter for parameter in module.parameters() if parameter.requires_grad
            ],
        )
    if torch.version.cuda or getattr(torch.version, "hip", None):
        steps.on_boundary(functools.partial(_measure_memory, torch))


def _measure_after_init(cls, name, tensors_of):
    """Record the bytes of ``tensors_of(instance)`` as a metric for each new instance of a class."""
    original = cls.__init__

    def measure(owner):
        if session.active:
            n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(owner))
            session.emitter().mark("metric:" + name, n_bytes)

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        measure(self)

    for instance in _find_instances(cls):
        measure(instance)
    replace(cls, "__init__", __init__)


def _measure_memory(torch, _number):
    """Record the allocator's memory, and its counters that have grown, as metrics."""
    if not session.active or not torch.cuda.is_initialized():
        return
    emitter = session.emitter()
    stats = torch.cuda.memory_stats_as_nested_dict()
    for name in ("allocated", "reserved"):
        n_bytes = stats.get(name + "_bytes", {}).get("all", {}).get("current", 0)
        emitter.mark("metric:torch_%s_bytes" % name, n_bytes)
    for name in _ALLOCATOR_COUNTERS:
        count = stats.get("num_" + name, 0)
        if count > _marked_counts.get(name, 0):
            emitter.mark("metric:torch_" + name, count)
            _marked_counts[name] = count

"""Optimizer steps and the resetting of gradients, and how big parameters and memory are.

The class's ``step`` is wrapped when the first instance is made: torch's public step hooks are
silently dropped by torch 2.1 once its compiler has been imported. Optimizers are numbered, and
those after the first bear their number in the name of the range: what takes turns is one step.
A step that a GradScaler leaves out, because gradients were not finite, is an iteration, too.
"""

import functools
import gc
import itertools
import sys
import weakref

from . import session, settings, steps
from .compiling import get_is_compiling
from .replaced import replace

_wrappers = set()
# id of an optimizer -> (weak reference, number); kept beside the optimizers, never on them
_numbers = session.until_exit({})
_counts = {}  # id of an optimizer -> how many steps it has made
# Of the allocator, since the program began: it had to free what it kept, or asked the device.
_COUNTERS = ("alloc_retries", "device_alloc")
_counted = {}


def install_optimizer(torch):
    """Wrap the methods of every optimizer class that is used."""
    is_compiling = get_is_compiling(torch)
    optimizer = torch.optim.Optimizer
    original = optimizer.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        _take(self, is_compiling)

    replace(optimizer, "__init__", __init__)
    for owner in (optimizer, torch.nn.Module):
        replace(owner, "zero_grad", _wrapped(owner.zero_grad, "zero_grad", is_compiling))
    for one in _made_before(optimizer):
        _take(one, is_compiling)
    _wrap_scalers()


def _take(optimizer, is_compiling):
    cls = type(optimizer)
    if cls.step not in _wrappers:
        replace(cls, "step", _wrapped_step(cls.step, is_compiling))
    if cls.zero_grad not in _wrappers:  # its own
        replace(cls, "zero_grad", _wrapped(cls.zero_grad, "zero_grad", is_compiling))
    if "step" in vars(optimizer):
        _wrap_own_step(optimizer, is_compiling)
    steps.made(_number_of(optimizer))


def _wrap_own_step(optimizer, is_compiling):
    """Wrap what a scheduler has put on the optimizer: the step of its class as it was then."""
    original = vars(optimizer)["step"]
    recorded = _wrapped_step(lambda _self, *args, **kwargs: original(*args, **kwargs), is_compiling)

    @functools.wraps(original)
    def step(*args, **kwargs):
        return recorded(optimizer, *args, **kwargs)

    replace(optimizer, "step", step)


def _made_before(kind):
    """Return what the program made of a class before recording began inside it.

    What only passes calls on to an optimizer has no parameters of its own.
    """
    if not settings.IS_INSIDE:
        return []
    found = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    return [one for one in found if vars(one).keys() & {"param_groups", "_parameters"}]


def _wrap_scalers():
    """Wrap the class of scalers from which all others are made: torch 2.3 moved it."""
    for path in ("amp.grad_scaler", "cuda.amp.grad_scaler"):
        module = sys.modules.get("torch." + path)
        scaler = getattr(module, "GradScaler", None)
        if scaler is not None and "step" in vars(scaler):
            replace(scaler, "step", _wrapped_scaler_step(scaler.step))
            return


def _wrapped_scaler_step(original):
    @functools.wraps(original)
    def step(self, optimizer, *args, **kwargs):
        before = _counts.get(id(optimizer))
        result = original(self, optimizer, *args, **kwargs)
        if session.active and id(optimizer) in _numbers and _counts.get(id(optimizer)) == before:
            number = _number_of(optimizer)
            steps.begin_optimizer(number)
            emitter = session.emitter()
            emitter.push(_named("optimizer.skipped", number), steps.number)
            emitter.pop()
            steps.end_optimizer(number)
        return result

    return step


def _named(name, number):
    return name if number == 1 else "%s#%d" % (name, number)


def _number_of(optimizer):
    """Return the number of an optimizer: the smallest that no other has."""
    known = _numbers.get(id(optimizer))
    if known is not None and known[0]() is optimizer:
        return known[1]
    taken = {number for _, number in _numbers.values()}
    number = next(number for number in itertools.count(1) if number not in taken)
    forget = functools.partial(_forget, id(optimizer), number)
    _numbers[id(optimizer)] = (weakref.ref(optimizer, forget), number)
    return number


def _forget(key, number, _reference):
    if _numbers.get(key, (None, None))[1] == number:
        del _numbers[key]
        _counts.pop(key, None)
    steps.gone(number)


def _wrapped_step(original, is_compiling):
    def method(self, *args, **kwargs):
        if is_compiling() or not session.active:
            return original(self, *args, **kwargs)
        number = _number_of(self)
        steps.begin_optimizer(number)
        emitter = session.emitter()
        emitter.push(_named("optimizer", number), steps.number)
        is_done = False
        try:
            result = original(self, *args, **kwargs)
            is_done = True
            _counts[id(self)] = _counts.get(id(self), 0) + 1
        finally:
            emitter.pop()
            steps.end_optimizer(number, is_done)
        return result

    return _disguised(method, original)


def _wrapped(original, name, is_compiling):
    def method(self, *args, **kwargs):
        if is_compiling() or not session.active:
            return original(self, *args, **kwargs)
        emitter = session.emitter()
        emitter.push(name, steps.number)
        try:
            return original(self, *args, **kwargs)
        finally:
            emitter.pop()

    return _disguised(method, original)


def _disguised(method, original):
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(method, attribute, getattr(original, attribute))
    if getattr(original, "hooked", False):  # torch's mark that it has wrapped this method itself
        method.hooked = True
    _wrappers.add(method)
    return method


def install_sizes(torch):
    """Measure at the making of optimizers and of DDP, and at every step."""
    _measure_after_init(
        torch.optim.Optimizer,
        "parameter_bytes",
        lambda optimizer: [one for group in optimizer.param_groups for one in group["params"]],
    )
    ddp = getattr(getattr(torch.nn.parallel, "distributed", None), "DistributedDataParallel", None)
    if ddp is not None:
        _measure_after_init(
            ddp,
            "ddp_parameter_bytes",
            lambda module: [one for one in module.parameters() if one.requires_grad],
        )
    if torch.version.cuda or getattr(torch.version, "hip", None):
        steps.on_boundary(functools.partial(_measure_memory, torch))


def _measure_after_init(cls, name, tensors_of):
    original = cls.__init__

    def measure(owner):
        if session.active:
            n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(owner))
            session.emitter().mark("metric:" + name, n_bytes)

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        measure(self)

    for one in _made_before(cls):
        measure(one)
    replace(cls, "__init__", __init__)


def _measure_memory(torch, _number):
    if not session.active or not torch.cuda.is_initialized():
        return
    emitter = session.emitter()
    known = torch.cuda.memory_stats_as_nested_dict()
    for name in ("allocated", "reserved"):
        n_bytes = known.get(name + "_bytes", {}).get("all", {}).get("current", 0)
        emitter.mark("metric:torch_%s_bytes" % name, n_bytes)
    for name in _COUNTERS:
        count = known.get("num_" + name, 0)
        if count > _counted.get(name, 0):
            emitter.mark("metric:torch_" + name, count)
            _counted[name] = count

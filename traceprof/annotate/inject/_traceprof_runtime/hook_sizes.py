"""How big things are: parameters, what DDP keeps in step, the GPU memory that torch holds."""

import functools

from . import session, steps

# Of the allocator, since the program began: it had to free what it kept, or asked the device.
_COUNTERS = ("alloc_retries", "device_alloc")
_counted = {}


def install(torch):
    """Measure at the making of optimizers and of DDP, and at every step."""
    _measure_after_init(torch.optim.Optimizer, "parameter_bytes", _optimized)
    ddp = getattr(getattr(torch.nn.parallel, "distributed", None), "DistributedDataParallel", None)
    if ddp is not None:
        _measure_after_init(ddp, "ddp_parameter_bytes", _synchronised)
    if torch.version.cuda or getattr(torch.version, "hip", None):
        steps.on_boundary(functools.partial(_measure_memory, torch))


def _measure_after_init(cls, name, tensors_of):
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if session.active:
            n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(self))
            session.emitter().mark("metric:" + name, n_bytes)

    cls.__init__ = __init__


def _optimized(optimizer):
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _synchronised(module):
    return [tensor for tensor in module.parameters() if tensor.requires_grad]


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

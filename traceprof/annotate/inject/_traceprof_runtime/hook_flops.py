"""Counts the FLOPs of one step with torch's own counter, and the bytes of the other operators.

FLOPs are counted by module and operator. Bytes are a minimum: an operator reads each input once and
writes each output once. The counter intercepts every operator, which is slower and disables
torch.compile. So it counts the second step, which the analysis does not treat as typical. The
counts are recorded as metrics as soon as recording is active.
"""

import os
import threading

from . import session, settings, steps
from .after_import import complain

_COUNTED_STEP = 1  # not step 0, which loads data and allocates memory
_MAX_MODULES = 400  # the whole model and the outermost modules come first
_WHOLE_MODEL = "Global"
_WITHOUT_WORK = ("empty", "new_empty", "lift", "_local_scalar", "record_stream", "set_", "resize_")
_OVERWRITING = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_")
_READING_PARTS = ("embedding", "index", "gather", "nll_loss", "select_scatter", "slice_scatter")
"""Prefixes of operators that read or write at most as much of an input as the others have."""


def install_flops(torch):
    """Count the FLOPs of a step, if requested."""
    if not settings.FLOPS:
        return
    counter = _Counter(torch)
    steps.on_boundary(counter.at_step)
    session.at_end(counter.finish)


class _Counter:
    """Counts the FLOPs of one step in one process."""

    def __init__(self, torch):
        self._torch = torch
        self._mode = self._byte_mode = None
        self._flops_by_module = None
        self._bytes_by_operator = {}
        self._is_over = False
        self._process, self._thread = os.getpid(), None

    def at_step(self, number):
        """Begin before the counted step, and end before the next step."""
        if self._process != os.getpid():
            return
        if self._mode is not None and number > _COUNTED_STEP:
            self._end()
        elif not self._is_over and number == _COUNTED_STEP:
            self._begin()
        self._mark_flops()

    def finish(self):
        """Record the counts at the end of the program, if they are not recorded yet."""
        if self._process == os.getpid():
            self._end()
            self._mark_flops()

    def _begin(self):
        self._is_over = True
        try:
            from torch.utils.flop_counter import FlopCounterMode

            byte_mode = _byte_counter(self._torch, self._bytes_by_operator)
            mode = FlopCounterMode(display=False)
            byte_mode.__enter__()
            mode.__enter__()
        except Exception as error:
            complain("FLOPs are not counted", error)
            return
        self._mode, self._byte_mode, self._thread = mode, byte_mode, threading.get_ident()

    def _end(self):
        # A mode belongs to the thread that entered it.
        if self._mode is None or self._thread != threading.get_ident():
            return
        mode, self._mode = self._mode, None
        try:
            mode.__exit__(None, None, None)
            self._byte_mode.__exit__(None, None, None)
            self._flops_by_module = mode.get_flop_counts()
        except Exception as error:
            complain("the FLOP count was lost", error)

    def _mark_flops(self):
        """Record the counts once: metrics ``flop:MODULE|OPERATOR`` and ``moved:OPERATOR``."""
        if self._flops_by_module is None or not session.active:
            return
        flops_by_module, self._flops_by_module = self._flops_by_module, None
        emitter = session.emitter()
        modules = sorted(
            flops_by_module, key=lambda name: (name != _WHOLE_MODEL, name.count("."), name)
        )
        for module in modules[:_MAX_MODULES]:
            for operator, flops in flops_by_module[module].items():
                emitter.mark("metric:flop:%s|%s" % (module, operator), flops)
        n_bytes_by_operator = {} if self._byte_mode.is_incomplete else self._bytes_by_operator
        for operator, n_bytes in n_bytes_by_operator.items():
            emitter.mark("metric:moved:%s" % operator, n_bytes)


def _byte_counter(torch, bytes_by_operator):
    """Return a mode that adds the bytes of each operator without FLOPs to ``bytes_by_operator``."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    device = "cuda" if torch.cuda.is_available() else "cpu"

    class _Mode(TorchDispatchMode):
        supports_higher_order_operators = True
        is_incomplete = False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            packet = getattr(func, "overloadpacket", None)
            if packet is None or packet in flop_registry or self.is_incomplete:
                return out
            try:
                n_bytes = _bytes_of_operator(torch, func, device, args, kwargs or {}, out)
            except Exception as error:  # a tensor without storage: never the program's problem
                self.is_incomplete = True
                complain("bytes are not counted", error)
                return out
            if n_bytes:
                bytes_by_operator[str(packet)] = bytes_by_operator.get(str(packet), 0) + n_bytes
            return out

    return _Mode()


def _bytes_of_operator(torch, func, device, args, kwargs, out):
    """Return the bytes that an operator moves on the device at least; 0 for views and copies."""
    name = func._schema.name.partition("::")[2]
    read, written = [], []
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        tensors = _tensors(torch, value)
        read += tensors
        if argument.alias_info is not None and argument.alias_info.is_write:
            # The fused optimizers write gradients only if they are scaled.
            written += [] if argument.name == "grads" else tensors
    is_elsewhere = any(tensor.device.type != device for tensor in read if tensor.dim())
    if is_elsewhere or name.startswith(_WITHOUT_WORK):
        return 0
    storages = {tensor.untyped_storage().data_ptr() for tensor in read}
    made = [
        tensor
        for tensor in _tensors(torch, out)
        if tensor.device.type == device and tensor.untyped_storage().data_ptr() not in storages
    ]
    if not made and not written:
        return 0
    sizes, n_written = list(map(_n_bytes, read)), sum(map(_n_bytes, [*made, *written]))
    if name.startswith(_OVERWRITING):
        return sum(sizes[len(written) :]) + n_written
    if name.startswith(_READING_PARTS):
        others = sizes[len(written) :]
        limit = sum(map(_n_bytes, made)) or max(others, default=0)
        return sum(min(size, limit) for size in others) + min(limit, n_written)
    return sum(sizes) + n_written


def _tensors(torch, value):
    """Return the tensors of an argument or result: one, or those of a list."""
    if isinstance(value, torch.Tensor):
        return [value] if value.layout == torch.strided else []
    return (
        [t for v in value for t in _tensors(torch, v)] if isinstance(value, (list, tuple)) else []
    )


def _n_bytes(tensor):
    """Return the bytes of a tensor; an expanded one counts as much as it stores."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())

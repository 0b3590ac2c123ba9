"""A driver's NVML library for the real pynvml package, which calls it through ctypes.

What the package passes (structures, pointers, constants) and what it makes of the answers is
thereby tested; only the numbers are made up.
"""

from __future__ import annotations

import ctypes

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND = 0, 2, 3, 13
UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
ALL_LINKS = 0xFFFFFFFF


class FakeLibrary:
    """Answers for ``n_gpus`` GPUs; ``unsupported`` names functions and fields that it lacks.

    ``fields``: (field id, scope) → (value, type of value). ``values``: name of a function → what
    it answers.
    """

    def __init__(self, n_gpus=1, fields=None, values=None, unsupported=()):
        self.n_gpus = n_gpus
        self.fields = fields or {}
        self.unsupported = set(unsupported)
        self.values = {
            "nvmlDeviceGetMaxPcieLinkGeneration": 4,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCurrPcieLinkGeneration": 1,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "throughput": {0: 0, 1: 0},
            "nvmlDeviceGetPowerUsage": 312_500,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x04,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x40,
            "nvmlDeviceGetName": b"NVIDIA A100-SXM4-80GB",
            "nvmlDeviceGetUUID": b"GPU-1234",
            "nvmlSystemGetDriverVersion": b"570.86.15",
            "nvmlSystemGetCudaDriverVersion": 12080,
            "nvmlDeviceGetTopologyCommonAncestor": 20,
            **(values or {}),
        }

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.unsupported:
            return lambda *_: NOT_SUPPORTED
        if name in _ANSWERS:
            return lambda *arguments: _ANSWERS[name](self, *arguments)
        plain = name.removesuffix("_v2")
        if plain in self.values:
            return lambda *arguments: self._answer(self.values[plain], arguments)
        raise AttributeError(name)  # pynvml makes "Function Not Found" of it

    def _answer(self, value, arguments):
        if isinstance(value, bytes):
            buffer = next(one for one in arguments if isinstance(one, ctypes.Array))
            buffer.value = value
            return SUCCESS
        _object(arguments[-1]).value = value
        return SUCCESS


def _object(pointer):
    """Return what a ``byref()`` points to."""
    return pointer._obj


def _number(device):
    """Return which GPU a handle is of."""
    return ctypes.cast(device, ctypes.c_void_p).value - 1


def _pci(library, number, info):
    _object(info).domain, _object(info).bus, _object(info).device = 0, number, 0
    return SUCCESS


def _own_pci(library, device, info):
    return _pci(library, _number(device), info)


def _remote_pci(library, device, link, info):
    return _pci(library, library.values["remote"](_number(device), link), info)


def _init(_library, *_):
    return SUCCESS


def _count(library, count):
    _object(count).value = library.n_gpus
    return SUCCESS


def _handle(_library, index, device):
    number = index.value
    ctypes.cast(ctypes.byref(_object(device)), ctypes.POINTER(ctypes.c_void_p))[0] = number + 1
    return SUCCESS


def _utilization(_library, _device, rates):
    _object(rates).gpu, _object(rates).memory = 87, 40
    return SUCCESS


def _memory(_library, _device, memory):
    _object(memory).total, _object(memory).used = 80 << 30, 5 << 30
    return SUCCESS


def _capability(_library, _device, major, minor):
    _object(major).value, _object(minor).value = 8, 0
    return SUCCESS


def _clock(_library, _device, kind, clock):
    _object(clock).value = {1: 1410, 2: 1593}[kind.value]
    return SUCCESS


def _throughput(library, _device, counter, rate):
    _object(rate).value = library.values["throughput"][counter.value]
    return SUCCESS


def _link_state(library, _device, link, is_active):
    number = getattr(link, "value", link)
    if number >= library.values.get("links", 0):
        return NOT_SUPPORTED if "links" not in library.values else INVALID_ARGUMENT
    _object(is_active).value = 1
    return SUCCESS


def _field_values(library, _device, count, values):
    for field in _object(values)[: count.value]:
        answer = library.fields.get((field.fieldId, field.scopeId))
        if answer is None:
            field.nvmlReturn = NOT_SUPPORTED
            continue
        value, kind = answer
        field.nvmlReturn, field.valueType = SUCCESS, kind
        setattr(field.value, {1: "uiVal", 3: "ullVal"}[kind], value)
    return SUCCESS


_ANSWERS = {
    "nvmlInitWithFlags": _init,
    "nvmlInit_v2": _init,
    "nvmlErrorString": _init,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _handle,
    "nvmlDeviceGetPciInfo_v3": _own_pci,
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": _remote_pci,
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetPcieThroughput": _throughput,
    "nvmlDeviceGetNvLinkState": _link_state,
    "nvmlDeviceGetFieldValues": _field_values,
}

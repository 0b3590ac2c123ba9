"""Where events go: the spool always, and NVTX where a profiler is attached.

An emitter has ``push(name, payload)``, ``pop()``, ``start(name, payload)`` → token,
``end(token)`` and ``mark(name, payload)``. Payloads are whole numbers or floats.

NVTX is a header-only library: the profiler names a shared object in NVTX_INJECTION64_PATH whose
``InitializeInjectionNvtx2`` fills tables of function pointers that the program then calls. This
interface has been stable through version 3, whereas the compiled ``nvtx`` package asks for
functions that older profilers do not have, and then records nothing. So the package is used where
it reaches the profiler, and a client of ours, in ctypes alone, where it does not or is not there.
"""

import ctypes
import os
import struct
import threading
from functools import partial

from . import settings
from .after_import import complain
from .clock import time_ns

DOMAIN = "traceprof"
_PUSH, _POP, _START, _END, _MARK, _REGISTER, _CREATE = 4, 5, 2, 3, 1, 10, 12
_CORE2 = 5
_TABLE_SIZES = {1: 16, 2: 9, 3: 15, 4: 7, 5: 16, 6: 7}
_CALLBACKS, _VERSION_INFO = 1, 3
_INT64, _DOUBLE = 2, 3
# In the attributes of an event: the type of its payload, four bytes of nothing, the payload.
_PAYLOAD_AT = 16
_PACK_INT, _PACK_FLOAT = struct.Struct("=iiq").pack_into, struct.Struct("=iid").pack_into
_REGISTERED_STRING = 3
_GetTable = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
)
_SetVersion = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
_GetExport = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)


class _NowhereEmitter:
    """Emits nothing: capturing has not begun, or is over."""

    def pop(self, *_of_event):
        pass

    push = start = end = mark = pop


NOWHERE = _NowhereEmitter()


class _AttributesEmitter:
    """Emits by functions that take the attributes of an event."""

    def push(self, name, payload=0):
        self._push(self._attributes(name, payload))

    def start(self, name, payload=0):
        return self._start(self._attributes(name, payload))

    def mark(self, name, payload=0):
        self._mark(self._attributes(name, payload))


class NvtxEmitter(_AttributesEmitter):
    """Emits through our NVTX client: names are registered once, for each thread."""

    def __init__(self, client):
        self._client = client
        self._handle = client.domain(DOMAIN)
        domain = ctypes.c_void_p(self._handle)
        self._push, self.pop = partial(client.push, domain), partial(client.pop, domain)
        self._start, self.end = partial(client.start, domain), partial(client.end, domain)
        self._mark = partial(client.mark, domain)
        self._local = threading.local()

    def _attributes(self, name, payload):
        """Return the address of this thread's attributes for ``name``."""
        try:
            attributes, address = self._local.known[name]
        except (AttributeError, KeyError):
            attributes, address = self._first(name)
        is_float = isinstance(payload, float)
        pack = _PACK_FLOAT if is_float else _PACK_INT
        pack(attributes, _PAYLOAD_AT, _DOUBLE if is_float else _INT64, 0, payload)
        return address

    def _first(self, name):
        known = self._local.__dict__.setdefault("known", {})
        attributes = self._client.attributes(self._handle, name)
        known[name] = attributes, ctypes.c_void_p(ctypes.addressof(attributes))
        return known[name]


class PackageEmitter(_AttributesEmitter):
    """Emits through a domain of the ``nvtx`` package (0.2.12 and later)."""

    def __init__(self, domain):
        self._make = domain.get_event_attributes
        self._push, self.pop = domain.push_range, domain.pop_range
        self._start, self.end = domain.start_range, domain.end_range
        self._mark = domain.mark

    def _attributes(self, name, payload):
        return self._make(message=name, payload=payload)


class TeeEmitter:
    """Emits to NVTX and to the spool: the profiler may lose its file, the spool does not."""

    def __init__(self, nvtx, spool):
        self._nvtx = nvtx
        self._spool = spool

    def push(self, name, payload=0):
        self._nvtx.push(name, payload)
        self._spool.push(name, payload)

    def pop(self):
        self._spool.pop()
        self._nvtx.pop()

    def start(self, name, payload=0):
        return self._nvtx.start(name, payload), self._spool.start(name, payload)

    def end(self, token):
        self._spool.end(token[1])
        self._nvtx.end(token[0])

    def mark(self, name, payload=0):
        self._nvtx.mark(name, payload)
        self._spool.mark(name, payload)


def nvtx_emitter():
    """Return an emitter that reaches the attached profiler, or None where none is attached."""
    if not os.environ.get("NVTX_INJECTION64_PATH") or settings.EMITTER == "spool":
        return None
    for way in (_through_package, _through_client):
        try:
            emitter = way()
            if emitter is not None:
                emitter.mark("clock", time_ns())  # what fails, fails here and not later
                return emitter
        except Exception as error:
            complain("NVTX does not work", error)
    return None


def _through_package():
    """Return an emitter through the package, or None where its events would be lost.

    It hands out a dummy domain both when no profiler is attached and when the profiler is too old
    for it, in which case it drops every event without a word.
    """
    try:
        import nvtx
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN) if hasattr(nvtx, "get_domain") else None
    is_lost = type(domain).__name__ == "DummyDomain" or not hasattr(domain, "push_range")
    return None if is_lost else PackageEmitter(domain)


def _through_client():
    client = NvtxClient()
    return NvtxEmitter(client) if client.available else None


class EventAttributes(ctypes.Structure):
    """nvtxEventAttributes_v2."""

    _fields_ = [
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category", ctypes.c_uint32),
        ("color_type", ctypes.c_int32),
        ("color", ctypes.c_uint32),
        ("payload_type", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("payload", ctypes.c_int64),
        ("message_type", ctypes.c_int32),
        ("message", ctypes.c_void_p),
    ]


class _Callbacks(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("get_table", _GetTable)]


class _VersionInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("set_version", _SetVersion),
    ]


class NvtxClient:
    """The functions of the attached profiler; `available` is False where there is none."""

    def __init__(self, path=None):
        path = path or os.environ.get("NVTX_INJECTION64_PATH")
        self.available = False
        if path:
            self._prepare_tables()
            initialize = ctypes.CDLL(path).InitializeInjectionNvtx2
            initialize.restype = ctypes.c_int
            if initialize(self._get_export):
                self._take_functions()

    def domain(self, name):
        """Return the handle of a new domain."""
        return self._create(name.encode())

    def attributes(self, domain, name):
        """Return attributes with ``name`` as a string that is registered in ``domain``."""
        attributes = EventAttributes(3, ctypes.sizeof(EventAttributes))
        attributes.message_type = _REGISTERED_STRING
        attributes.message = self._register(domain, name.encode("utf-8", "replace"))
        return attributes

    def _prepare_tables(self):
        self._slots, self._tables = {}, {}
        for module, size in _TABLE_SIZES.items():
            slots = (ctypes.c_void_p * size)()
            table = (ctypes.c_void_p * (size + 1))()
            for i in range(1, size):
                table[i] = ctypes.addressof(slots) + ctypes.sizeof(ctypes.c_void_p) * i
            self._slots[module], self._tables[module] = slots, table
        # The profiler keeps these pointers: they must live as long as the client.
        self._get_table = _GetTable(self._table_of)
        self._set_version = _SetVersion(lambda _version: None)
        self._callbacks = _Callbacks(ctypes.sizeof(_Callbacks), self._get_table)
        self._version = _VersionInfo(ctypes.sizeof(_VersionInfo), 3, 0, self._set_version)
        self._get_export = _GetExport(self._export)

    def _table_of(self, module, table, size):
        if module not in self._tables:
            return 0
        if size:
            size[0] = _TABLE_SIZES[module]
        if table:
            table[0] = ctypes.addressof(self._tables[module])
        return 1

    def _export(self, number):
        if number == _CALLBACKS:
            return ctypes.addressof(self._callbacks)
        return ctypes.addressof(self._version) if number == _VERSION_INFO else None

    def _take_functions(self):
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        self.push = self._function(_PUSH, ctypes.c_int, pointer, pointer)
        self.pop = self._function(_POP, ctypes.c_int, pointer)
        self.start = self._function(_START, ctypes.c_uint64, pointer, pointer)
        self.end = self._function(_END, None, pointer, ctypes.c_uint64)
        self.mark = self._function(_MARK, None, pointer, pointer)
        self._register = self._function(_REGISTER, pointer, pointer, text)
        self._create = self._function(_CREATE, pointer, text)
        needed = (self.push, self.pop, self.start, self.end, self.mark)
        self.available = all(needed) and bool(self._register and self._create)

    def _function(self, slot, result, *arguments):
        """Return a callable that keeps the GIL: the profiler's functions take 0.3 µs."""
        address = self._slots[_CORE2][slot]
        return ctypes.PYFUNCTYPE(result, *arguments)(address) if address else None

"""Emitters write events: always to the spool, and to NVTX if a profiler is attached.

An emitter has ``push(name, payload)``, ``pop()``, ``start(name, payload)`` → token, ``end(token)``,
``mark(name, payload)``, and ``add_past(start_ns, end_ns, name, payload)``, which records a range
that has ended. Payloads are integers or floats.

NVTX is a header-only library. The profiler names a shared library in NVTX_INJECTION64_PATH. Its
``InitializeInjectionNvtx2`` fills tables of function pointers, which the program then calls. This
interface is the same in all versions 3.x. The compiled ``nvtx`` package requests functions that
older profilers lack, and then records nothing. So the package is used only if it reaches the
profiler. Otherwise our client is used, which needs only ctypes.
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
# Byte offset in the event attributes of: payload type, 4 unused bytes, payload.
_PAYLOAD_OFFSET = 16
_PACK_INT, _PACK_FLOAT = struct.Struct("=iiq").pack_into, struct.Struct("=iid").pack_into
_REGISTERED_STRING = 3
_GetTable = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
)
_SetVersion = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
_GetExport = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)


class _NowhereEmitter:
    """Drops events: capturing has not begun, or is over."""

    def pop(self, *_arguments):
        pass

    push = start = end = mark = collective = add_past = pop


NOWHERE = _NowhereEmitter()


class _AttributesEmitter:
    """Base of emitters whose functions take event attributes."""

    def push(self, name, payload=0):
        self._push(self._attributes(name, payload))

    def start(self, name, payload=0):
        return self._start(self._attributes(name, payload))

    def mark(self, name, payload=0):
        self._mark(self._attributes(name, payload))

    def collective(self, *_arguments):
        """Emit nothing: the range of the call is emitted."""

    def add_past(self, start_ns, end_ns, name, payload=0):
        """Do nothing: a profiler records ranges only while they are open."""


class NvtxEmitter(_AttributesEmitter):
    """Emits through our NVTX client; each thread registers a name once."""

    def __init__(self, client):
        self._client = client
        self._handle = client.domain(DOMAIN)
        domain = ctypes.c_void_p(self._handle)
        self._push, self.pop = partial(client.push, domain), partial(client.pop, domain)
        self._start, self.end = partial(client.start, domain), partial(client.end, domain)
        self._mark = partial(client.mark, domain)
        self._local = threading.local()

    def _attributes(self, name, payload):
        """Return the address of this thread's attributes for ``name``, with this payload."""
        try:
            attributes, address = self._local.attributes_by_name[name]
        except (AttributeError, KeyError):
            attributes, address = self._create_attributes(name)
        is_float = isinstance(payload, float)
        pack = _PACK_FLOAT if is_float else _PACK_INT
        pack(attributes, _PAYLOAD_OFFSET, _DOUBLE if is_float else _INT64, 0, payload)
        return address

    def _create_attributes(self, name):
        """Create this thread's attributes for ``name``; return them and their address."""
        by_name = self._local.__dict__.setdefault("attributes_by_name", {})
        attributes = self._client.attributes(self._handle, name)
        by_name[name] = attributes, ctypes.c_void_p(ctypes.addressof(attributes))
        return by_name[name]


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
    """Emits to two emitters.

    Examples: NVTX and the spool, which remains if the profiler loses its file; the live status and
    the spool.
    """

    def __init__(self, first, second):
        self._first = first
        self._second = second

    def push(self, name, payload=0):
        self._first.push(name, payload)
        self._second.push(name, payload)

    def pop(self):
        self._second.pop()
        self._first.pop()

    def add_past(self, start_ns, end_ns, name, payload=0):
        self._first.add_past(start_ns, end_ns, name, payload)
        self._second.add_past(start_ns, end_ns, name, payload)

    def start(self, name, payload=0):
        return self._first.start(name, payload), self._second.start(name, payload)

    def end(self, token):
        self._second.end(token[1])
        self._first.end(token[0])

    def mark(self, name, payload=0):
        self._first.mark(name, payload)
        self._second.mark(name, payload)

    def collective(self, *arguments):
        self._first.collective(*arguments)
        self._second.collective(*arguments)


def nvtx_emitter():
    """Return an emitter that reaches the attached profiler; None if no profiler is attached."""
    if not os.environ.get("NVTX_INJECTION64_PATH") or settings.EMITTER == "spool":
        return None
    for make_emitter in (_make_package_emitter, _make_client_emitter):
        try:
            emitter = make_emitter()
            if emitter is not None:
                emitter.mark("clock", time_ns())  # if it fails, let it fail here
                return emitter
        except Exception as error:
            complain("NVTX does not work", error)
    return None


def _make_package_emitter():
    """Return an emitter that uses the nvtx package; None if its events would be lost.

    The package returns a dummy domain, which drops every event silently, in two cases: if no
    profiler is attached, and if the profiler is too old for the package.
    """
    try:
        import nvtx
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN) if hasattr(nvtx, "get_domain") else None
    is_lost = type(domain).__name__ == "DummyDomain" or not hasattr(domain, "push_range")
    return None if is_lost else PackageEmitter(domain)


def _make_client_emitter():
    """Return an emitter that uses our NVTX client; None if no profiler is attached."""
    client = NvtxClient()
    return NvtxEmitter(client) if client.available else None


class EventAttributes(ctypes.Structure):
    """The C structure nvtxEventAttributes_v2."""

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
    """The NVTX functions of the attached profiler; `available` is False if there is none."""

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
        """Return the handle of a new NVTX domain."""
        return self._create(name.encode())

    def attributes(self, domain, name):
        """Return event attributes with ``name`` as a string registered in ``domain``."""
        attributes = EventAttributes(3, ctypes.sizeof(EventAttributes))
        attributes.message_type = _REGISTERED_STRING
        attributes.message = self._register(domain, name.encode("utf-8", "replace"))
        return attributes

    def _prepare_tables(self):
        """Build the tables for the profiler's functions, and the callbacks it calls."""
        self._slots, self._tables = {}, {}
        for module, size in _TABLE_SIZES.items():
            slots = (ctypes.c_void_p * size)()
            table = (ctypes.c_void_p * (size + 1))()
            for i in range(1, size):
                table[i] = ctypes.addressof(slots) + ctypes.sizeof(ctypes.c_void_p) * i
            self._slots[module], self._tables[module] = slots, table
        # The profiler keeps these pointers: they must live as long as the client.
        self._get_table = _GetTable(self._get_table_of)
        self._set_version = _SetVersion(lambda _version: None)
        self._callbacks = _Callbacks(ctypes.sizeof(_Callbacks), self._get_table)
        self._version = _VersionInfo(ctypes.sizeof(_VersionInfo), 3, 0, self._set_version)
        self._get_export = _GetExport(self._export)

    def _get_table_of(self, module, table, size):
        """Give the profiler the function table of an NVTX module; return 0 if there is none."""
        if module not in self._tables:
            return 0
        if size:
            size[0] = _TABLE_SIZES[module]
        if table:
            table[0] = ctypes.addressof(self._tables[module])
        return 1

    def _export(self, number):
        """Return the address of an export table of NVTX; None if it is unknown."""
        if number == _CALLBACKS:
            return ctypes.addressof(self._callbacks)
        return ctypes.addressof(self._version) if number == _VERSION_INFO else None

    def _take_functions(self):
        """Read the profiler's functions from the table, and note whether all are available."""
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

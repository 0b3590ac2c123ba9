"""Where events go: the spool always, and NVTX where a profiler is attached.

An emitter has ``push(name, payload)``, ``pop()``, ``start(name, payload)`` → token,
``end(token)`` and ``mark(name, payload)``. Payloads are whole numbers or floats.
"""

import ctypes
import inspect
import os
import threading
import time

from . import settings
from .after_import import complain

DOMAIN = "traceprof"


class _NowhereEmitter:
    """Emits nothing: capturing has not begun, or is over."""

    def push(self, name, payload=0):
        pass

    def pop(self):
        pass

    def start(self, name, payload=0):
        pass

    def end(self, token):
        pass

    def mark(self, name, payload=0):
        pass


NOWHERE = _NowhereEmitter()


class ClientEmitter:
    """Emits through our own NVTX client."""

    def __init__(self, client):
        self._client = client
        self._domain = client.domain(DOMAIN)
        self._local = threading.local()

    def _attributes(self, name, payload):
        """Return the address of this thread's attributes for ``name``."""
        try:
            known = self._local.known
        except AttributeError:
            known = self._local.known = {}
        entry = known.get(name)
        if entry is None:
            attributes = self._client.attributes(self._domain, name)
            entry = known[name] = (attributes, ctypes.addressof(attributes))
        entry[0].set_payload(payload)
        return entry[1]

    def push(self, name, payload=0):
        self._client.push(self._domain, self._attributes(name, payload))

    def pop(self):
        self._client.pop(self._domain)

    def start(self, name, payload=0):
        return self._client.start(self._domain, self._attributes(name, payload))

    def end(self, token):
        self._client.end(self._domain, token)

    def mark(self, name, payload=0):
        self._client.mark(self._domain, self._attributes(name, payload))


class DomainEmitter:
    """Emits through a domain of the ``nvtx`` package (0.2.12 and later)."""

    def __init__(self, domain):
        self._domain = domain
        self.pop = domain.pop_range
        self.end = domain.end_range

    def _attributes(self, name, payload):
        return self._domain.get_event_attributes(message=name, payload=payload)

    def push(self, name, payload=0):
        self._domain.push_range(self._attributes(name, payload))

    def start(self, name, payload=0):
        return self._domain.start_range(self._attributes(name, payload))

    def mark(self, name, payload=0):
        self._domain.mark(self._attributes(name, payload))


class ModuleEmitter:
    """Emits through the functions of the ``nvtx`` package (0.2.9 to 0.2.11)."""

    def __init__(self, nvtx):
        self._nvtx = nvtx
        self.end = nvtx.end_range

    def push(self, name, payload=0):
        self._nvtx.push_range(name, domain=DOMAIN, payload=payload)

    def pop(self):
        self._nvtx.pop_range(DOMAIN)

    def start(self, name, payload=0):
        return self._nvtx.start_range(name, domain=DOMAIN, payload=payload)

    def mark(self, name, payload=0):
        self._nvtx.mark(name, domain=DOMAIN, payload=payload)


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
    ways = (
        (_through_client,) if settings.EMITTER == "client" else (_through_package, _through_client)
    )
    for way in ways:
        try:
            emitter = way()
            if emitter is not None:
                emitter.mark("clock", time.time_ns())  # what fails, fails here and not later
                return emitter
        except Exception as error:
            complain("NVTX does not work", error)
    return None


def _through_package():
    """Return an emitter through the nvtx package, or None where its events would be lost.

    The package hands out a dummy domain both when no profiler is attached and when the profiler
    is too old for it, in which case it drops every event without a word.
    """
    try:
        import nvtx
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN) if hasattr(nvtx, "get_domain") else None
    if type(domain).__name__ == "DummyDomain":
        return None
    if hasattr(domain, "push_range"):
        return DomainEmitter(domain)
    takes_payload = "payload" in inspect.signature(nvtx.mark).parameters
    return ModuleEmitter(nvtx) if takes_payload else None


def _through_client():
    from .nvtx_abi import NvtxClient

    client = NvtxClient()
    return ClientEmitter(client) if client.available else None

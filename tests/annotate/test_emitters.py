import ctypes
import struct
import sys
from types import ModuleType, SimpleNamespace

import pytest

DOMAIN = 5


@pytest.fixture
def emitters(runtime, monkeypatch):
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/nowhere/libprofiler.so")
    return runtime("emitters")


class Profiler:
    """Stands for the attached profiler: keeps what the client hands it."""

    available = True

    def __init__(self, attributes_of):
        self.calls = []
        self.names = []
        self.attributes_of = attributes_of

    def domain(self, name):
        assert name == "traceprof"
        return DOMAIN

    def attributes(self, domain, name):
        assert domain == DOMAIN
        self.names.append(name)
        return self.attributes_of(3, message=len(self.names))

    def _take(self, kind, address):
        event = self.attributes_of.from_address(address.value)
        payload = event.payload
        if event.payload_type == 3:
            (payload,) = struct.unpack("d", struct.pack("q", payload))
        self.calls.append((kind, self.names[event.message - 1], payload))

    def push(self, _domain, address):
        self._take("push", address)

    def pop(self, domain):
        self.calls.append(("pop", domain.value))

    def start(self, _domain, address):
        self._take("start", address)
        return 17

    def end(self, _domain, token):
        self.calls.append(("end", token))

    def mark(self, _domain, address):
        self._take("mark", address)


def test_events_reach_the_profiler_with_their_payload(emitters):
    profiler = Profiler(emitters.EventAttributes)
    emitter = emitters.NvtxEmitter(profiler)
    emitter.push("forward", 3)
    emitter.pop()
    emitter.end(emitter.start("step", 1))
    emitter.mark("loss", 2.5)
    emitter.push("forward", -1)
    assert profiler.calls == [
        *(("push", "forward", 3), ("pop", DOMAIN), ("start", "step", 1), ("end", 17)),
        *(("mark", "loss", 2.5), ("push", "forward", -1)),
    ]
    assert profiler.names == ["forward", "step", "loss"]  # each is registered once


class Domain:
    """The part of a domain of the package that we use."""

    def __init__(self):
        self.calls = []

    def get_event_attributes(self, message, payload):
        return message, payload

    def push_range(self, attributes):
        self.calls.append(("push", *attributes))

    def pop_range(self):
        self.calls.append(("pop",))

    def start_range(self, attributes):
        self.calls.append(("start", *attributes))
        return 17

    def end_range(self, token):
        self.calls.append(("end", token))

    def mark(self, attributes):
        self.calls.append(("mark", attributes[0]))


class DummyDomain:
    """What the package hands out when no profiler listens, or one that is too old for it."""

    def push_range(self, _attributes):
        raise AssertionError("events for nobody")


def with_package(monkeypatch, domain):
    package = ModuleType("nvtx")
    package.get_domain = lambda _name: domain
    monkeypatch.setitem(sys.modules, "nvtx", package)


def test_the_package_is_used_where_it_reaches_the_profiler(emitters, monkeypatch):
    domain = Domain()
    with_package(monkeypatch, domain)
    emitter = emitters.nvtx_emitter()
    emitter.push("forward", 3)
    emitter.pop()
    emitter.end(emitter.start("step", 1))
    assert domain.calls[:1] == [("mark", "clock")]
    assert domain.calls[1:] == [("push", "forward", 3), ("pop",), ("start", "step", 1), ("end", 17)]


@pytest.mark.parametrize("domain", [DummyDomain(), SimpleNamespace()])
def test_a_package_whose_events_are_lost_is_not_used(emitters, monkeypatch, domain):
    with_package(monkeypatch, domain)
    client = SimpleNamespace(available=True, domain=lambda _name: DOMAIN)
    client.attributes = lambda _domain, _name: emitters.EventAttributes(3, message=1)
    for name in ("push", "pop", "start", "end", "mark"):
        setattr(client, name, lambda _domain, _address: None)
    monkeypatch.setattr(emitters, "NvtxClient", lambda: client)
    assert isinstance(emitters.nvtx_emitter(), emitters.NvtxEmitter)


def test_the_payload_lies_where_it_is_written(emitters):
    assert emitters.EventAttributes.payload_type.offset == emitters._PAYLOAD_OFFSET
    assert emitters.EventAttributes.payload.offset == emitters._PAYLOAD_OFFSET + 8
    assert ctypes.sizeof(emitters.EventAttributes) == 48


def test_a_client_that_fails_is_said_and_not_used(emitters, monkeypatch, capsys):
    assert emitters.nvtx_emitter() is None  # the library that it should load is not there
    assert "NVTX does not work" in capsys.readouterr().err
    monkeypatch.setattr(emitters, "NvtxClient", lambda: SimpleNamespace(available=False))
    assert emitters.nvtx_emitter() is None


def test_nothing_is_loaded_where_no_profiler_is_attached(runtime, monkeypatch):
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    assert runtime("emitters").nvtx_emitter() is None
    assert not runtime("emitters").NvtxClient().available

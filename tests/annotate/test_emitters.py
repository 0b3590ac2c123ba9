import sys
from types import ModuleType, SimpleNamespace

import pytest


class DummyDomain:
    """What nvtx hands out when no profiler listens, or one that is too old for it."""

    def push_range(self, _attributes):
        raise AssertionError("events for nobody")


class NewDomain:
    """The part of a domain of nvtx 0.2.12 and later that we use."""

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


@pytest.fixture
def emitters(runtime, monkeypatch):
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/nowhere/libprofiler.so")
    return runtime("emitters")


def with_package(monkeypatch, domain, mark):
    package = ModuleType("nvtx")
    package.get_domain = lambda _name: domain
    package.mark = mark
    package.end_range = None
    monkeypatch.setitem(sys.modules, "nvtx", package)


def test_the_package_is_used_where_it_reaches_the_profiler(emitters, monkeypatch):
    domain = NewDomain()
    with_package(monkeypatch, domain, None)
    emitter = emitters.nvtx_emitter()
    emitter.push("forward", 3)
    emitter.pop()
    emitter.end(emitter.start("step", 1))
    assert domain.calls[:1] == [("mark", "clock")]
    assert domain.calls[1:] == [("push", "forward", 3), ("pop",), ("start", "step", 1), ("end", 17)]


def test_the_functions_of_the_package_are_used_where_its_domains_have_none(emitters, monkeypatch):
    marks = []

    def mark(message, domain=None, payload=None):
        marks.append((message, domain, payload))

    with_package(monkeypatch, SimpleNamespace(), mark)
    emitters.nvtx_emitter().mark("batch", 4)
    assert marks[1:] == [("batch", "traceprof", 4)]


def test_a_package_whose_events_are_lost_is_not_used(emitters, monkeypatch, capsys):
    with_package(monkeypatch, DummyDomain(), None)
    # Our own client is next; the library that it should load is not there.
    assert emitters.nvtx_emitter() is None
    assert "NVTX does not work" in capsys.readouterr().err


def test_a_package_that_fails_is_not_used(emitters, monkeypatch, capsys):
    def mark(message, domain=None, payload=None):
        raise TypeError("another signature")

    with_package(monkeypatch, SimpleNamespace(), mark)
    assert emitters.nvtx_emitter() is None
    assert "another signature" in capsys.readouterr().err


def test_nothing_is_loaded_where_no_profiler_is_attached(runtime, monkeypatch):
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    assert runtime("emitters").nvtx_emitter() is None
    assert not runtime("emitters").NvtxClient().available

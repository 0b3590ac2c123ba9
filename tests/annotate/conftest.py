import sys

import pytest

from traceprof.recording.program import INJECT_FOLDER


@pytest.fixture
def runtime(monkeypatch, tmp_path):
    """Return a function that imports a fresh module of what runs in a recorded program."""
    monkeypatch.syspath_prepend(str(INJECT_FOLDER))
    monkeypatch.setenv("TRACEPROF_DIR", str(tmp_path))

    def load(name):
        __import__(f"_traceprof_runtime.{name}")
        return sys.modules[f"_traceprof_runtime.{name}"]

    yield load
    for name in [name for name in sys.modules if name.startswith("_traceprof_runtime")]:
        del sys.modules[name]

"""The end of a window of torch's profiler beside threads that still communicate."""

import sys
import types

import pytest


@pytest.mark.parametrize("is_initialized", [True, False])
def test_the_profiler_ends_after_communication(runtime, monkeypatch, is_initialized):
    windows, slept = runtime("hook_windows"), []
    distributed = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: is_initialized
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setattr(windows.time, "sleep", slept.append)
    windows._let_communication_end()
    assert slept == [windows._COMMUNICATION_ENDS_S] * is_initialized

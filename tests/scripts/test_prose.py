"""`scripts/sentences` finds what a user reads, and `scripts/prose` what is not plain English."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from types import ModuleType

import pytest

from tests.requirements import ROOT


def script(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


MODULE = '''
"""Internal: not read by a user."""
SPEC = ResultSpec.of("""
    table kernels: one row per kernel
    key name: kernel name
    """)
def command():
    """Not the help of a command."""
    raise UsageError(f"{path}: no such file")
@with_options
def show():
    """Print a table."""
    return Note.of("{n:count} step(s) took {ns:ns} ({share:ratio} of {name})")
'''


def test_what_a_user_reads_is_a_sentence() -> None:
    assert sorted(script("sentences").sentences_of("traceprof/measures/x.py", MODULE)) == [
        "12 steps took 1.234 ms (12.3% of NAME)",
        "Print a table.",
        "X: no such file",
        "key name: kernel name",
        "table kernels: one row per kernel",
    ]


@pytest.mark.parametrize(
    ("sentence", "is_plain"),
    [
        ("Rank 2 is a straggler: the other ranks wait for it.", True),
        ("What the program told is held against the trace.", False),
        ("The colour of a lane.", False),
        ("This trace is no recording of a GPU.", False),
        (" ".join(["word"] * 40), False),
    ],
)
def test_what_is_not_plain_is_found(
    sentence: str, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prose = script("prose")
    monkeypatch.setattr(prose, "_texts", lambda: [("here", sentence)])
    assert (not list(prose._findings())) is is_plain

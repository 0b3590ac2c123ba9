"""Campaigns run on a copy of the checkout: they take an hour, in which it changes or goes away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.reliability import page
from tests.requirements import ROOT

__all__ = ["is_copy", "run_on_copy"]

_COPIED: Final = ("traceprof", "tests", "docs", "scripts", "fixtures", "pyproject.toml")
_COUNTS: Final = "docs/reliability.json"
_MARK: Final = "TRACEPROF_RELIABILITY_COPY_OF"


def is_copy() -> bool:
    """Return whether this process works on a copy already."""
    return _MARK in os.environ


def run_on_copy(arguments: Sequence[str]) -> int:
    """Run a campaign on a copy of the checkout; return its exit code.

    What it writes of the documentation comes back, where there still is a checkout.
    """
    with tempfile.TemporaryDirectory(prefix="traceprof-campaign-") as name:
        Path(name).chmod(0o755)  # some commands run as another user
        copy = Path(name, "checkout")
        copy.mkdir()
        for one in _COPIED:
            if (ROOT / one).is_dir():
                shutil.copytree(
                    ROOT / one, copy / one, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copyfile(ROOT / one, copy / one)
        before = json.loads((copy / _COUNTS).read_text())
        # The interpreter by where it really is: the checkout's .venv may be a link that goes away.
        python = Path(sys.prefix).resolve() / "bin" / "python"
        traces = ROOT.parent / "shared" / "traces"
        environment = {**os.environ, _MARK: str(ROOT), "PYTHONPATH": str(copy)}
        environment[page.COMMIT] = _commit()
        environment.setdefault("TRACEPROF_TRACES", str(traces.resolve()))
        done = subprocess.run(
            [python, "-m", "tests.reliability", *arguments], cwd=copy, env=environment, check=False
        )
        after = json.loads((copy / _COUNTS).read_text())
        if (ROOT / _COUNTS).is_file():
            page.merge_counts(before, after)
        return done.returncode


def _commit() -> str:
    """Return which code this checkout has, and whether it was changed since."""
    said = [
        subprocess.run(["git", *one], cwd=ROOT, capture_output=True, text=True, check=False).stdout
        for one in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "traceprof"))
    ]
    return said[0].strip() + (" with changes" if said[1].strip() else "")

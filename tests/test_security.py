"""Others on the machine see nothing of what is recorded or kept."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import ROOT
from tests.summaries import make_summary
from traceprof.store import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")


def others_may(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def test_runs_are_their_owners(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Store(tmp_path / "data" / "runs.db").add(make_summary("a"))
    finally:
        os.umask(before)
    assert not others_may(tmp_path / "data" / "runs.db")
    assert not others_may(tmp_path / "data")


def test_what_is_recorded_is_private_meanwhile(tmp_path: Path) -> None:
    looks = (
        "import os, stat, traceprof\n"
        "with traceprof.range('work'): pass\n"
        "folder = os.environ['TRACEPROF_DIR']\n"
        "import glob, time\n"
        "while not glob.glob(folder + '/events.*'): time.sleep(0.01)\n"
        "for one in [folder, *glob.glob(folder + '/events.*')]:\n"
        "    assert not stat.S_IMODE(os.stat(one).st_mode) & 0o077, one\n"
        "first = os.environ['PYTHONPATH'].split(os.pathsep)[0]\n"
        "print(sorted(name for name in os.listdir(first) if name[0] != '_' or name[1] != '_'))\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "traceprof", "record", "-o", "t.sqlite", "--with", "torch"),
            *("--", sys.executable, "-c", looks),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        umask=0,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['_traceprof_runtime', 'sitecustomize.py']\n"
    assert not [one for one in tmp_path.iterdir() if one.name != "t.sqlite"]

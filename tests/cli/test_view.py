"""``traceprof view`` as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

from tests.builders import TraceBuilder
from tests.conftest import Run
from tests.requirements import ROOT
from traceprof.formats.nsys.writer import write_nsys


def test_it_prints_its_address_and_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), tmp_path / "trace.sqlite")
    command = [sys.executable, "-m", "traceprof", "view", "trace.sqlite", "--no-browser"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOST": "0.0.0.0", "DASH_DEBUG": "1"}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            assert running.stdout
            url = running.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
            )
            with opener.open(url, timeout=30) as answer:
                page = answer.read().decode()
        finally:
            running.send_signal(signal.SIGINT)
        _, messages = running.communicate(timeout=60)
    assert "trace.sqlite" in page
    assert '"hot_reload"' not in page
    assert running.returncode == 0
    assert messages.splitlines()[-1] == "traceprof: ended"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.sqlite"]


def test_without_dash_one_line_says_how_to_get_it(run_traceprof: Run, tmp_path: Path) -> None:
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "dash.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'dash'\", name='dash')"
    )
    paths = os.pathsep.join((str(tmp_path / "missing"), str(ROOT)))
    done = run_traceprof("view", "x.sqlite", "--no-browser", PYTHONPATH=paths)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        'traceprof: the viewer needs dash, which is not installed: pip install "traceprof[view]"'
    ]


def test_other_machines_are_let_in_only_when_asked(run_traceprof: Run) -> None:
    done = run_traceprof("view", "x.sqlite", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "--allow-remote" in done.stderr

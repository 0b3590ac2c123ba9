"""``traceprof view`` as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from http.cookiejar import CookieJar
from pathlib import Path

from tests.builders import TraceBuilder
from tests.conftest import Run
from tests.requirements import ROOT
from traceprof.formats.nsys.writer import write_nsys


def asked(folder: Path, arguments: Sequence[str], *addresses: str) -> tuple[list[str], list[str]]:
    """Run the viewer in ``folder`` until it has answered; return its answers and messages."""
    command = [sys.executable, "-m", "traceprof", "view", *arguments, "--no-browser"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOST": "0.0.0.0", "DASH_DEBUG": "1"}
    with subprocess.Popen(
        command,
        cwd=folder,
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
            answers = []
            for address in (url, *(url.split("?")[0] + address for address in addresses)):
                with opener.open(address, timeout=30) as answer:
                    answers.append(answer.read().decode())
        finally:
            running.send_signal(signal.SIGINT)
        _, messages = running.communicate(timeout=60)
    assert running.returncode == 0, messages
    return answers, messages.splitlines()


def test_it_prints_its_address_and_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), tmp_path / "trace.sqlite")
    (page,), messages = asked(tmp_path, ["trace.sqlite"])
    assert "trace.sqlite" in page
    assert '"hot_reload"' not in page
    assert messages[-1] == "traceprof: stopped"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.sqlite"]


def test_two_traces_stand_side_by_side_unless_they_are_said_to_be_one_run(tmp_path: Path) -> None:
    for name in ("before", "after"):
        write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), tmp_path / f"{name}.sqlite")
    files = ["before.sqlite", "after.sqlite"]
    (page, layout), _ = asked(tmp_path, [*files, "--warmup", "1"], "_dash-layout")
    assert "before.sqlite · after.sqlite" in page
    assert layout.count('"Iframe"') == 2
    (page, layout), _ = asked(tmp_path, [*files, "--run"], "_dash-layout")
    assert "before.sqlite and 1 more" in page
    assert layout.count('"Iframe"') == 1
    assert "no file contains its rank" in layout


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
        "traceprof: the viewer needs dash, which is not installed: run "
        '`pip install "traceprof[view]"`'
    ]


def test_other_machines_are_let_in_only_when_asked(run_traceprof: Run) -> None:
    done = run_traceprof("view", "x.sqlite", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "--allow-remote" in done.stderr

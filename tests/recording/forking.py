"""Runs of ``traceprof``, each a process of its own, forked from one that has imported everything.

To import it takes a second of processor time, which is most of what a short recording takes.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from tests.requirements import ROOT


def run_forked(
    arguments: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    end: Callable[[int], None],
) -> subprocess.CompletedProcess[str] | None:
    """Run ``traceprof`` to its end in a session of its own; None where it took too long.

    ``end`` is then called with its process, and has to end it.
    """
    server = _server(os.getpid())
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        streams = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (stdout, stderr)]
        asked = {"argv": ["traceprof", *arguments], "cwd": str(cwd), "env": dict(env)}
        server.stdin.write(json.dumps(asked | {"streams": streams}) + "\n")
        server.stdin.flush()
        process = int(server.stdout.readline())
        in_time = bool(select.select([server.stdout], [], [], timeout_s)[0])
        if not in_time:
            end(process)
        code = int(server.stdout.readline())
        texts = [_text_of(file) for file in (stdout, stderr)]
    done = subprocess.CompletedProcess(["traceprof", *arguments], code, *texts)
    return done if in_time else None


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@cache
def _server(_pid: int) -> subprocess.Popen[str]:
    """Start what is forked; nothing in its environment is of the test that happens to be first."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.recording.forking"],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    )
    atexit.register(server.communicate)  # it ends with its input
    return server


def serve() -> None:
    """Fork a process for each line of the input; say its id, and its exit code in the end."""
    import traceprof.cli.recording  # noqa: PLC0415
    import traceprof.recording  # noqa: F401, PLC0415
    from traceprof.__main__ import main  # noqa: PLC0415

    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            _become(json.loads(line))
            main()
            return
        _say(child)
        _say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _become(asked: dict[str, object]) -> None:
    os.setsid()
    sys.argv = asked["argv"]
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None
    nothing = os.open(os.devnull, os.O_RDONLY)
    files = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in asked["streams"]]
    for number, opened in enumerate((nothing, *files)):
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    serve()

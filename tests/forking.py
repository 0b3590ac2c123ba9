"""Runs of ``traceprof``, each a process of its own, forked from one that has imported everything.

To import it takes a second of processor time, which is most of what a short command takes.
"""

from __future__ import annotations

import atexit
import codecs
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

import traceprof
from tests.requirements import ROOT

READ_ONCE = frozenset({"PYTHONPATH", "LANG", "LC_ALL", "TRACEPROF_WATCHDOG_S", "TRACEPROF_START_S"})
"""What is read when things are imported: where a test sets it, ``traceprof`` is started anew."""

IS_POSSIBLE = sys.platform == "linux"


def kill(process: int) -> None:
    """End a run, with all that is in its session's group."""
    with suppress(ProcessLookupError):  # it has just ended
        os.killpg(process, signal.SIGKILL)


def run_forked(
    arguments: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    end: Callable[[int], None] = kill,
    *,
    is_merged: bool = False,
) -> subprocess.CompletedProcess[str] | None:
    """Run ``traceprof`` to its end in a session of its own; None where it took too long.

    ``end`` is then called with its process, and has to end it. ``is_merged`` sends what it says to
    where it prints.
    """
    server = _server(os.getpid())
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        files = (stdout, stdout if is_merged else stderr)
        streams = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in files]
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
        [sys.executable, "-m", "tests.forking"],
        cwd=ROOT,
        env={
            **environment,
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    )
    atexit.register(server.communicate)  # it ends with its input
    return server


def import_everything() -> None:
    """Import all of traceprof that the command line may want."""
    for module in pkgutil.walk_packages(traceprof.__path__, "traceprof."):
        is_wanted = ".inject" not in module.name and ".integrations" not in module.name
        if is_wanted and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    codecs.lookup("utf-16-le")  # a module, too: other users cannot read those of this Python


def serve() -> None:
    """Fork a process for each line of the input; say its id, and its exit code in the end."""
    from traceprof.__main__ import main  # noqa: PLC0415

    import_everything()
    gc.freeze()  # no child looks through what was imported
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

"""Start and end processes of traceprof that are connected by a pipe."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from traceprof.processes import isolated_start, start_thread


@dataclass(frozen=True, slots=True, eq=False)
class StartedProcess:
    """A process and this end of the pipe to it."""

    process: SpawnProcess
    pipe: Connection

    def end(self) -> None:
        """Kill the process and close the pipe."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def start(serve: Callable[..., None], *args: Any) -> StartedProcess:
    """Start a process that calls ``serve(pipe, *args)``; it ends when this process ends.

    Raises:
        OSError: the system refuses to start another process.
    """
    spawning = get_context("spawn")
    ours, its = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(serve, its, *args), daemon=True)
    try:
        with isolated_start():
            process.start()
    except OSError:
        ours.close()
        raise
    finally:
        its.close()
    return StartedProcess(process, ours)


def _serve(serve: Callable[..., None], pipe: Connection, *args: Any) -> None:
    """Run ``serve`` in the new process; Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_thread(_end_with_parent)
    serve(pipe, *args)


def _end_with_parent() -> None:
    """End this process with its parent, even in the middle of an answer."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)

"""Threads that wait for collectives, so that no thread of torch ever runs anything of ours.

A callback on a future would run on gloo's own thread, which needs the interpreter for it. A
program that frees its group joins that thread with the interpreter in its hand, and both would
wait for ever; at the interpreter's end such a thread is unwound through C++, which aborts.
"""

import os
import threading
import time
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue

from . import session

_N_THREADS = 4  # a group of gloo works on two calls at a time, in their order
_SLICE = timedelta(milliseconds=200)  # within which a thread sees that recording is over
_FIRST_LOOK_S = 50e-6
_LOOK_S = 2e-3
_GRACE_S = 1.0  # for calls that the program has not waited for when it ends


class WaitThreads:
    """Calls back when work is done, in the order in which it was handed in, or at the end."""

    def __init__(self):
        self._process = None

    def put(self, wait, callback):
        """Have ``callback()`` called when ``wait`` of this module says that work is done."""
        if self._process != os.getpid():
            self._start()
        self._queue.put((wait, callback))

    def _start(self):
        if self._process is None:
            session.at_end(self._stop)
        self._process = os.getpid()
        self._queue = SimpleQueue()
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=_serve, args=(self._queue, self._is_over), daemon=True)
            for _ in range(_N_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def _stop(self):
        """Let the threads end: one that waits for torch must not outlive the interpreter."""
        if self._process != os.getpid():
            return
        for _ in self._threads:
            self._queue.put((None, None))
        with suppress(KeyboardInterrupt):
            self._join(_GRACE_S)
        self._is_over.set()
        self._join(2 * _SLICE.total_seconds())

    def _join(self, most_s):
        end = time.monotonic() + most_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))


class WaitsForWork:
    """Waits in torch for work of gloo on CPU tensors.

    Several may wait for a collective of gloo. It is not so for sends and receives, whose waiting
    is itself part of the transfer, nor for CUDA tensors, where it orders the streams of a thread.
    """

    def __init__(self, work, wait):
        self._work, self._wait = work, wait

    def __call__(self, is_over):
        while not (self._work.is_completed() or is_over.is_set()):
            try:
                self._wait(self._work, _SLICE)
            except Exception:  # its time is up, or it failed: the program gets that itself
                is_over.wait(_FIRST_LOOK_S)


class WaitsForBoxedWork:
    """Waits for work as torch 2.1 hands it to Python: it can be waited for, and no more."""

    def __init__(self, work):
        self._work = work

    def __call__(self, _is_over):
        with suppress(Exception):
            self._work.wait()


class WaitsForFuture:
    """Looks at a future again and again, ever less often."""

    def __init__(self, future):
        self._future = future

    def __call__(self, is_over):
        pause_s = _FIRST_LOOK_S
        while not (self._future.done() or is_over.wait(pause_s)):
            pause_s = min(1.5 * pause_s, _LOOK_S)


def _serve(queue, is_over):
    while True:
        wait, callback = queue.get()
        if wait is None:
            return
        wait(is_over)
        callback()
        del wait, callback  # or the next wait would keep their tensors

"""Threads that wait for collectives, so that no thread of torch ever runs anything of ours.

A callback on a future would run on gloo's own thread, which needs the interpreter for it. A
program that frees its group joins that thread with the interpreter in its hand, and both would
wait for ever; at the interpreter's end such a thread is unwound through C++, which aborts.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing import current_process, get_start_method, parent_process
from queue import SimpleQueue

from . import session
from .spool import start_thread

_N_THREADS = 4  # a group of gloo works on two calls at a time, in their order
_SLICE = timedelta(milliseconds=200)  # within which a thread sees that recording is over
_FIRST_LOOK_S = 50e-6
_LOOK_S = 2e-3
_GRACE_S = 1.0  # for calls that the program has not waited for when it ends
_LETTING_GO_S = 0.05  # a thread of gloo that was interrupted between telling and letting go


class WaitThreads:
    """Calls back when work is done, in the order in which it was handed in, or at the end.

    A thread of gloo says that work is done before it lets go of the tensors, for which it needs
    the interpreter (torch 2.13): one that waits for it when the interpreter ends aborts the
    program. Where we still have the work then, the thread has nothing to let go of.
    """

    def __init__(self):
        self._process = None

    def put(self, wait, callback):
        """Have ``callback()`` called when ``wait`` of this module says that work is done."""
        if self._process != os.getpid():
            self._start()
        if self._threads:
            self._queue.put((wait, callback))

    def _start(self):
        if self._process is None:
            session.at_end(self._stop)
        self._process = os.getpid()
        self._queue = SimpleQueue()
        self._is_over, self._is_left = threading.Event(), threading.Event()
        self._is_ending, self._kept, self._last_s = False, [], 0.0
        started = [start_thread(self._serve) for _ in range(_N_THREADS)]
        self._threads = [thread for thread in started if thread is not None]
        if not self._threads:
            sys.stderr.write(
                "traceprof: process %d cannot start another thread, so its collectives are not "
                "recorded\n" % os.getpid()
            )

    def _serve(self):
        while True:
            wait, callback = self._queue.get()
            if wait is None:
                return
            wait(self._is_left if wait.is_by_gloo else self._is_over)
            self._last_s = time.monotonic()
            if self._is_ending:
                self._kept.append(wait)
            callback()
            del wait, callback  # or the next wait would keep their tensors

    def _stop(self):
        """Let the threads end: one that waits for torch must not outlive the interpreter."""
        if self._process != os.getpid():
            return
        self._is_ending = True
        for _ in self._threads:
            self._queue.put((None, None))
        with suppress(KeyboardInterrupt):
            if self._last_s:
                time.sleep(max(0.0, self._last_s + _LETTING_GO_S - time.monotonic()))
            self._join(_GRACE_S)
            self._is_over.set()
            if _would_wait_for_gloo():
                self._join()
        self._is_over.set()
        self._is_left.set()
        while any(thread.is_alive() for thread in self._threads):
            with suppress(KeyboardInterrupt):
                self._join()

    def _join(self, most_s=None):
        end = None if most_s is None else time.monotonic() + most_s
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))


def _would_wait_for_gloo():
    """Return whether this program, which ends, stays until its calls of gloo are done.

    It does where the interpreter frees its groups, and the other ranks count on that. Processes
    that multiprocessing forked leave without, and a program that has failed is not kept.
    """
    method = getattr(current_process(), "_start_method", None) or get_start_method()
    is_forked = parent_process() is not None and method != "spawn"
    return not is_forked and getattr(sys, "last_value", None) is None


class WaitsForWork:
    """Waits in torch for work of gloo on CPU tensors.

    Several may wait for a collective of gloo. It is not so for sends and receives, whose waiting
    is itself part of the transfer, nor for CUDA tensors, where it orders the streams of a thread.
    """

    is_by_gloo = True

    def __init__(self, work, wait):
        self._work, self._wait = work, wait

    def __call__(self, is_left):
        while not (self._work.is_completed() or is_left.is_set()):
            try:
                self._wait(self._work, _SLICE)
            except Exception:  # its time is up, or it failed: the program gets that itself
                is_left.wait(_FIRST_LOOK_S)


class WaitsForBoxedWork:
    """Waits for work as torch 2.1 hands it to Python: it can be waited for, and no more."""

    is_by_gloo = True

    def __init__(self, work):
        self._work = work

    def __call__(self, _is_left):
        with suppress(Exception):
            self._work.wait()


class WaitsForFuture:
    """Looks at a future again and again, ever less often."""

    is_by_gloo = False

    def __init__(self, future):
        self._future = future

    def __call__(self, is_over):
        pause_s = _FIRST_LOOK_S
        while not (self._future.done() or is_over.wait(pause_s)):
            pause_s = min(1.5 * pause_s, _LOOK_S)

"""Threads that wait for collectives, so that no thread of torch runs our Python code.

A callback on a future would run on gloo's thread, which then needs the GIL. A program that frees
its process group joins that thread while it holds the GIL: a deadlock. When the interpreter exits,
such a thread is unwound through C++, which aborts the process.
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

_N_THREADS = 4  # a gloo group runs two calls at a time, in order
_WAIT_TIMEOUT = timedelta(milliseconds=200)  # so that a thread notices the end of recording
_MIN_POLL_S = 50e-6
_MAX_POLL_S = 2e-3
_GRACE_S = 1.0  # how long to wait at exit for calls that the program has not waited for
_RELEASE_S = 0.05  # time for gloo's thread to release tensors after it reported completion


class WaitThreads:
    """Calls callbacks when work is done, in the order of `put`, or at the end of recording.

    A gloo thread reports that work is done before it releases the tensors, for which it needs the
    GIL (torch 2.13). If it waits for the GIL while the interpreter exits, the process aborts. So
    the work of the last calls is kept: then the gloo thread has nothing to release.
    """

    def __init__(self):
        self._process = None

    def put(self, wait, callback):
        """Call ``callback()`` once ``wait``, an instance of a Waits… class, returns."""
        if self._process != os.getpid():
            self._start()
        if self._threads:
            self._queue.put((wait, callback))

    def _start(self):
        """Start the threads; print a warning if the machine allows no more threads."""
        if self._process is None:
            session.at_end(self._stop)
        self._process = os.getpid()
        self._queue = SimpleQueue()
        self._is_over, self._is_abandoned = threading.Event(), threading.Event()
        self._is_ending, self._kept_waits, self._last_done_s = False, [], 0.0
        started = [start_thread(self._serve) for _ in range(_N_THREADS)]
        self._threads = [thread for thread in started if thread is not None]
        if not self._threads:
            sys.stderr.write(
                "traceprof: process %d cannot start another thread, so its collectives are not "
                "recorded\n" % os.getpid()
            )

    def _serve(self):
        """Wait for queued work and call its callback, until the queue contains None."""
        while True:
            wait, callback = self._queue.get()
            if wait is None:
                return
            wait(self._is_abandoned if wait.is_by_gloo else self._is_over)
            self._last_done_s = time.monotonic()
            if self._is_ending:
                self._kept_waits.append(wait)
            callback()
            del wait, callback  # otherwise they keep their tensors alive until the next item

    def _stop(self):
        """End the threads: a thread that waits in torch must not outlive the interpreter."""
        if self._process != os.getpid():
            return
        self._is_ending = True
        for _ in self._threads:
            self._queue.put((None, None))
        with suppress(KeyboardInterrupt):
            if self._last_done_s:
                time.sleep(max(0.0, self._last_done_s + _RELEASE_S - time.monotonic()))
            self._join(_GRACE_S)
            self._is_over.set()
            if _must_wait_for_gloo():
                self._join()
        self._is_over.set()
        self._is_abandoned.set()
        while any(thread.is_alive() for thread in self._threads):
            with suppress(KeyboardInterrupt):
                self._join()

    def _join(self, timeout_s=None):
        """Join all threads, for ``timeout_s`` in total; None: without limit."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))


def _must_wait_for_gloo():
    """Return whether this program stays at exit until its gloo calls are done.

    It does if the interpreter frees the process groups, because the other ranks rely on these
    calls. Processes that multiprocessing forked exit without freeing them. A program that has
    failed is not kept waiting.
    """
    method = getattr(current_process(), "_start_method", None) or get_start_method()
    is_forked = parent_process() is not None and method != "spawn"
    return not is_forked and getattr(sys, "last_value", None) is None


class WaitsForWork:
    """Waits in torch for gloo work on CPU tensors.

    Several threads may wait for a gloo collective. They may not wait for sends and receives, whose
    wait is part of the transfer, or for CUDA tensors, where the wait orders a thread's streams.
    """

    is_by_gloo = True

    def __init__(self, work, wait):
        self._work, self._wait = work, wait

    def __call__(self, is_abandoned):
        while not (self._work.is_completed() or is_abandoned.is_set()):
            try:
                self._wait(self._work, _WAIT_TIMEOUT)
            except Exception:  # timeout, or failed work: the program receives that error itself
                is_abandoned.wait(_MIN_POLL_S)


class WaitsForBoxedWork:
    """Waits for work as torch 2.1 passes it to Python: it supports only an unlimited wait."""

    is_by_gloo = True

    def __init__(self, work):
        self._work = work

    def __call__(self, _is_abandoned):
        with suppress(Exception):
            self._work.wait()


class WaitsForFuture:
    """Polls a future, with growing pauses."""

    is_by_gloo = False

    def __init__(self, future):
        self._future = future

    def __call__(self, is_over):
        pause_s = _MIN_POLL_S
        while not (self._future.done() or is_over.wait(pause_s)):
            pause_s = min(1.5 * pause_s, _MAX_POLL_S)

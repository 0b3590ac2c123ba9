"""Threads that wait for collectives whose work has no future that Python can reach (torch 2.1)."""

import os
import threading
from contextlib import suppress
from queue import SimpleQueue

from . import session

_N_THREADS = 4  # a group of gloo works on two calls at a time, in their order


class WaitThreads:
    """Waits for work in the order in which it was handed in.

    Several may wait for a collective of gloo. It is not so for sends and receives, whose waiting
    is itself part of the transfer, nor for CUDA tensors, where it orders the streams of a thread.
    """

    def __init__(self):
        self._process = None

    def with_future(self, work):
        """Return a stand-in for ``work`` that has a future."""
        return _WorkWithFuture(self, work)

    def put(self, work, callback):
        """Have ``callback(work)`` called when ``work`` is done."""
        if self._process != os.getpid():
            self._start()
        self._queue.put((work, callback))

    def _start(self):
        if self._process is None:
            session.at_end(self._stop)
        self._process = os.getpid()
        self._queue = SimpleQueue()
        self._threads = [
            threading.Thread(target=_wait, args=(self._queue,), daemon=True)
            for _ in range(_N_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def _stop(self):
        """Let the threads end: one that waits for torch must not outlive the interpreter."""
        if self._process == os.getpid():
            for _ in self._threads:
                self._queue.put((None, None))
            for thread in self._threads:
                thread.join(1)


class _WorkWithFuture:
    def __init__(self, threads, work):
        self._threads = threads
        self._work = work

    def get_future(self):
        return self

    def add_done_callback(self, callback):
        self._threads.put(self._work, callback)


def _wait(queue):
    while True:
        work, callback = queue.get()
        if work is None:
            return
        with suppress(Exception):  # the program gets it where it waits itself
            work.wait()
        callback(work)
        del work, callback  # or the next wait would keep their tensors

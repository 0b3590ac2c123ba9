"""CPU time of the training thread, and the time that it waits for a core, at every step boundary.

A thread that is ready to run waits in the run queue of a core while other threads run there, or
while a CPU limit of its container stops it. Linux counts both times of every thread in
``/proc/thread-self/schedstat``. Time that the thread sleeps (for a GPU, a file, or a worker) is in
neither of them. So a small share of CPU time alone does not show that the processor is busy.
The recorder's own work on the thread, when it opens and closes windows, is left out.
"""

import functools
import os
import threading

from . import session, steps

_SCHEDSTAT = "/proc/thread-self/schedstat"  # ns on a core, ns of waiting for one, number of slices


class _LeftOut(threading.local):
    """Both times of the recorder's own work on each thread; a forked process begins with 0."""

    process, times_ns = 0, (0, 0)

    def get_ns(self):
        return self.times_ns if self.process == os.getpid() else (0, 0)

    def add(self, before, after):
        running_ns, waiting_ns = self.get_ns()
        self.times_ns = running_ns + after[0] - before[0], waiting_ns + after[1] - before[1]
        self.process = os.getpid()


_left_out = _LeftOut()


def install_processor(_torch):
    """Record both times, since the start of the thread, before each step and after the last."""
    if _read_times_ns() is not None:
        steps.on_boundary(_mark_times)


def _mark_times(_number):
    if not session.active or not session.is_capturing():
        return  # reading the file takes longer than all other hooks of a short step
    times_ns = _read_times_ns()
    if times_ns is not None:
        emitter = session.emitter()
        left_out_ns = _left_out.get_ns()
        emitter.mark("metric:thread_cpu_ns", times_ns[0] - left_out_ns[0])
        emitter.mark("metric:thread_cpu_wait_ns", times_ns[1] - left_out_ns[1])


def leave_out(work):
    """Return ``work``, a method, so that its times on the thread of the caller do not count."""

    @functools.wraps(work)
    def call(*args):
        before = _read_times_ns()
        try:
            return work(*args)
        finally:
            after = _read_times_ns()
            if before is not None and after is not None:
                _left_out.add(before, after)

    return call


def _read_times_ns():
    """Return both times of this thread; None if the system does not count them.

    The file is opened each time: programs close descriptors, and ``thread-self`` is a thread.
    """
    try:
        file = os.open(_SCHEDSTAT, os.O_RDONLY)
    except OSError:
        return None
    try:
        running_ns, waiting_ns = map(int, os.read(file, 100).split()[:2])
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    return (running_ns, waiting_ns) if running_ns else None

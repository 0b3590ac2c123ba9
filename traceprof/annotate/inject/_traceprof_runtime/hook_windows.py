"""Windows of torch's profiler (Kineto): a few steps in detail, in bounded memory.

Torch writes each window in C++ as a Chrome trace, and the recorder converts it after the run. So
the training loop stalls little, and a finished window survives a crash. A profiler that the program
starts itself always has priority.
"""

import functools
import os
import sys
import threading
import time

from . import session, settings, steps, turns
from .after_import import complain
from .clock import time_ns
from .hook_processor import leave_out
from .identity import identity
from .replaced import at_restore, replace

_NEVER = 1 << 60  # a step number that is never reached
_BY_TIME = object()  # value of _Windows._stop_at for a window that ends by time
# Variables that nsys and nvprof set: CUPTI has only one subscriber.
_PROFILERS = ("NSYS_PROFILING_SESSION_ID", "NVPROF_ID")
_TRIAL_STEPS = 2
# Limit per window: about 200,000 events, which need 300 MB of memory while they are written
_MAX_WINDOW_BYTES = 60 << 20
_MAX_TOTAL_BYTES = 1 << 30
# Windows before any step is detected: 0.5 s long, one every 20 s. The first begins at the second
# forward pass. If an optimizer exists, which may step soon, it begins 2 s later.
_FIRST_DELAY_NS, _WINDOW_NS, _PERIOD_NS = 2000000000, 500000000, 20000000000
_WINDOWS_PER_HALVING = 16  # after this many windows, their frequency is halved again
_COMMUNICATION_ENDS_S = 0.01


def install_windows(torch):
    """Open and close windows between steps, if requested and no other profiler is active."""
    if settings.WINDOWS is None:
        return
    windows = _make_windows(torch, *settings.WINDOWS)
    if windows is None:
        return
    steps.on_boundary(windows.at_step)
    if settings.STEPS is None:
        steps.on_activity(windows.at_activity)
        _notice_replays(torch)
    session.at_end(windows.stop)


def windows_on_request(torch):
    """Return windows that open when `_Windows.open_for` is called; None if they cannot."""
    return _make_windows(torch, _NEVER, 1, 0)


def _make_windows(torch, skip, active, every):
    """Return the windows of this process; None if another profiler is active."""
    if any(variable in os.environ for variable in _PROFILERS):
        why = "another profiler is recording this program"
        sys.stderr.write("traceprof: no operators are recorded because %s\n" % why)
        return None
    if "KINETO_LOG_LEVEL" not in os.environ:
        os.environ["KINETO_LOG_LEVEL"] = "99"  # otherwise Kineto logs to stderr
        at_restore(lambda: os.environ.pop("KINETO_LOG_LEVEL", None))
    windows = _Windows(torch, skip, active, every)
    windows.give_way_to_program()
    return windows


def _notice_replays(torch):
    """Treat replays of CUDA graphs as activity: modules are not called during a replay."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    original = getattr(graph, "replay", None)
    if original is None:
        return

    @functools.wraps(original)
    def replay(self):
        if session.active:
            steps.note_work()
        return original(self)

    replace(graph, "replay", replay)


def device_option(torch):
    """Return the argument that makes the profiler record the GPU; {} if CUDA is not initialized.

    Checking whether a GPU exists would initialize the driver. A program that forks later may not
    want that.
    """
    if not torch.cuda.is_initialized():
        return {}
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return {"use_device": "cuda"} if version >= (2, 3) else {"use_cuda": True}


def _let_communication_end():
    """Wait until threads that communicate (gloo) have left the profiler.

    They end a record after the program went on. If the profiler ends before them, torch frees what
    they still write to: one of four runs of two busy ranks crashed.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        time.sleep(_COMMUNICATION_ENDS_S)


class _Windows:
    """Records ``active`` of every ``every`` steps after the first ``skip``; ``every`` 0: only once.

    Windows become rarer in a long run. So their disk space, and the recorder's memory after the
    run, hardly grow.

    If there is more than one window, the first is a short trial that determines the length of the
    others. On a GPU, only the trial records operators and their shapes, because these make a step a
    third longer. The other windows, which are analyzed, record GPU activity and launches.
    """

    def __init__(self, torch, skip, active, every):
        self._torch = torch
        self._active, self._every = active, every
        self._next_start, self._stop_at = skip, None
        self._n_windows, self._n_written_bytes = 0, 0
        self._trial_steps = _TRIAL_STEPS if every and active > _TRIAL_STEPS else 0
        self._prepared_profile = None
        self._open_range = None
        self._is_making_profile = False
        self._process = os.getpid()
        self._thread = None  # opened the last window; only it can close it. Numbers are used again.
        self._due_ns = None  # when the next window by time begins, or the open one ends

    def give_way_to_program(self):
        """Stop for good when the program starts its own profiler."""
        profile = self._torch.autograd.profiler.profile
        original = profile.__init__
        windows = self

        def __init__(self, *args, **kwargs):
            if not windows._is_making_profile and session.active:
                windows.stop()
                windows._next_start, windows._prepared_profile = _NEVER, None
                session.emitter().mark("traceprof.window.ceded", steps.number)
            original(self, *args, **kwargs)

        replace(profile, "__init__", __init__)

    def at_step(self, number):
        """Open or close a window if it is due; prepare the profiler one step before a window."""
        if self._process != os.getpid() or self._is_of_other_thread():
            return  # a forked process: only its parent has the profiler
        if self._stop_at is _BY_TIME:
            self.stop()
        if self._stop_at is not None:
            if number >= self._stop_at or not session.is_capturing():
                self.stop()
        elif number >= self._next_start and session.is_capturing():
            self._start(number)
        elif number + 1 == self._next_start:
            self._prepare()

    def at_activity(self):
        """Open or close a window by time, in a program without detected steps."""
        now = time_ns()
        if self._due_ns is None:
            self._due_ns = now + (_FIRST_DELAY_NS if turns.created else 0)
            return
        if now < self._due_ns or self._process != os.getpid() or self._is_of_other_thread():
            return
        cuda = self._torch.cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return  # the profiler would call functions that a capture forbids
        if self._stop_at is _BY_TIME:
            self.stop()
            self._due_ns = now + _PERIOD_NS
        elif self._next_start != _NEVER and session.is_capturing():
            self._start(steps.number)
            if self._stop_at is not None:
                self._stop_at = _BY_TIME
            self._due_ns = now + _WINDOW_NS

    def _is_of_other_thread(self):
        """Return whether this thread cannot close the open window, or may not close another.

        Threads of C++ (requests of torch.distributed.rpc) take turns.
        """
        if self._stop_at is not None:
            return self._thread is not threading.current_thread()
        return isinstance(threading.current_thread(), threading._DummyThread)

    def open_for(self, number, n_steps):
        """Open a window for ``n_steps`` steps at step ``number``; the caller stops it.

        The process may have been forked since the last window.
        """
        self._process, self._active = os.getpid(), n_steps
        if not self._is_of_other_thread():
            self._start(number)

    def _prepare(self):
        """Create and prepare a profiler, unless one is prepared or the program's is running.

        On a GPU, it takes long the first time, so it has a range of the recorder.
        """
        if self._prepared_profile is None and not self._torch._C._autograd._profiler_enabled():
            emitter = session.emitter()
            emitter.push("traceprof.window.start", steps.number)
            try:
                profile = self._make_profile()
                profile._prepare_trace()
                self._prepared_profile = profile
            except Exception as error:
                self._next_start = _NEVER
                complain("no operators are recorded", error)
            finally:
                emitter.pop()

    @leave_out
    def _start(self, number):
        """Open a window."""
        self._prepare()
        profile, self._prepared_profile = self._prepared_profile, None
        if profile is None:
            return
        emitter = session.emitter()
        emitter.push("traceprof.window.start", number)
        try:
            profile._start_trace()
        except Exception as error:
            self._next_start = _NEVER
            complain("no operators are recorded", error)
        else:
            self._stop_at = number + (self._trial_steps or self._active)
            self._thread = threading.current_thread()
            self._open_range = (emitter, emitter.start("traceprof.window", number))
        finally:
            emitter.pop()

    def _make_profile(self):
        """Return a profiler: with operators and shapes in the trial, otherwise of GPU activity."""
        options = device_option(self._torch)
        profile = self._torch.autograd.profiler.profile
        self._is_making_profile = True
        try:
            if not options or not self._every:
                return profile(use_cpu=True, use_kineto=True, **options)
            if self._n_windows:
                try:
                    return profile(use_cpu=False, use_kineto=True, **options)
                except AssertionError:  # this torch records GPUs only together with operators
                    return profile(use_cpu=True, use_kineto=True, **options)
            return profile(use_cpu=True, use_kineto=True, record_shapes=True, **options)
        finally:
            self._is_making_profile = False

    @leave_out
    def stop(self):
        """Close the open window, if any, and write it; return its path, "" without a file."""
        if self._stop_at is None:
            return ""
        is_by_time = self._stop_at is _BY_TIME
        if self._is_of_other_thread():  # torch would crash
            self._stop_at, self._next_start = None, _NEVER
            complain("a recording of operators was lost", "its thread has ended")
            return ""
        self._stop_at = None
        n_bytes, written = 0, ""
        emitter, token = self._open_range
        emitter.end(token)
        emitter.push("traceprof.window.stop", steps.number)
        try:
            _let_communication_end()
            result = self._torch.autograd._disable_profiler()
            path = self._new_path()
            result.save(path + ".tmp")
            del result  # here: freeing a large window is not part of a step
            os.replace(path + ".tmp", path)
            self._n_windows += 1
            n_bytes, written = os.path.getsize(path), path
            self._n_written_bytes += n_bytes
        except Exception as error:
            complain("a recording of operators was lost", error)
        finally:
            emitter.pop()
        if not is_by_time:
            self._next_start = self._next_start_after(n_bytes)
        elif self._is_limit_reached():
            self._next_start = _NEVER
        return written

    def _new_path(self):
        """Return an unused path for a window; a previous program (exec) may have written some."""
        folder, number = settings.DIRECTORY, self._n_windows
        while True:
            path = os.path.join(folder, "window.%s.%d.json" % (identity(), number))
            if not os.path.exists(path):
                return path
            number += 1

    def _next_start_after(self, n_bytes):
        """Return the step at which the next window begins, after a window of ``n_bytes``."""
        if not self._every or self._next_start == _NEVER or self._is_limit_reached():
            return _NEVER
        if not self._trial_steps:
            if self._n_windows % _WINDOWS_PER_HALVING == 0:
                self._every *= 2
            return steps.number + self._every - self._active
        per_step = max(1, n_bytes // self._trial_steps)
        self._active = max(1, min(self._active, _MAX_WINDOW_BYTES // per_step))
        self._trial_steps = 0
        return steps.number + 1

    def _is_limit_reached(self):
        """Return whether the windows have reached the size limit; report it if they have."""
        if self._n_written_bytes <= (settings.MAX_BYTES or _MAX_TOTAL_BYTES):
            return False
        sys.stderr.write(
            "traceprof: recorded operators use %d MB (the limit); process %d records no more\n"
            % (self._n_written_bytes >> 20, os.getpid())
        )
        return True

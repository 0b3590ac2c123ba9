"""Windows of torch's own profiler (Kineto): a few steps in detail, in bounded memory.

Each window is written by torch in C++ as a Chrome trace and converted by the recorder after the
run, so that the training loop stalls as little as possible and a finished window survives
any crash. The program's own use of the profiler always has priority.
"""

import functools
import os
import sys

from . import session, settings, steps, turns
from .after_import import complain
from .clock import time_ns
from .identity import identity
from .replaced import at_restore, replace

_NEVER = 1 << 60
_BY_TIME = object()
# What nsys and nvprof leave in the environment: CUPTI has one subscriber only.
_PROFILERS = ("NSYS_PROFILING_SESSION_ID", "NVPROF_ID")
_TRIAL_STEPS = 2
# Of one window: some 200 000 events, which take 300 MB while they are written
_MAX_BYTES = 60 << 20
_MAX_BYTES_OF_ALL = 1 << 30
# Where no step is seen: half a second each, every 20 s. The first begins with the second pass of a
# model, after 2 s of work where there is an optimizer: its steps are yet to come.
_FIRST_NS, _LENGTH_NS, _PERIOD_NS = 2000000000, 500000000, 20000000000
_WINDOWS_PER_HALVING = 16  # after so many windows they become half as frequent, again and again


def install_windows(torch):
    """Open and close windows between steps."""
    if settings.WINDOWS is None:
        return
    if any(variable in os.environ for variable in _PROFILERS):
        why = "another profiler is recording this program"
        sys.stderr.write("traceprof: no operators are recorded because %s\n" % why)
        return
    if "KINETO_LOG_LEVEL" not in os.environ:
        os.environ["KINETO_LOG_LEVEL"] = "99"  # else it writes lines on stderr
        at_restore(lambda: os.environ.pop("KINETO_LOG_LEVEL", None))
    windows = _Windows(torch, *settings.WINDOWS)
    windows.give_way_to_program()
    steps.on_boundary(windows.at_step)
    if settings.STEPS is None:
        steps.on_activity(windows.at_activity)
        _notice_replays(torch)
    session.at_end(windows.stop)


def _notice_replays(torch):
    """Take replays of CUDA graphs for work, too: models are not called any more then."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    original = getattr(graph, "replay", None)
    if original is None:
        return

    @functools.wraps(original)
    def replay(self):
        if session.active:
            steps.acting()
        return original(self)

    replace(graph, "replay", replay)


def device_option(torch):
    """Return the argument that has the profiler see the GPU, where the program uses one.

    Asking whether there is one would itself touch the driver, which a program that forks later
    may not want.
    """
    if not torch.cuda.is_initialized():
        return {}
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return {"use_device": "cuda"} if version >= (2, 3) else {"use_cuda": True}


class _Windows:
    """``active`` steps out of every ``every`` after the first ``skip``; ``every`` 0: only once.

    The longer the run, the rarer they become: what they take of the disk, and of the recorder's
    memory after the run, hardly grows with it.

    Where there is more than one window, the first is a short trial: it tells how long the others
    may be. On a GPU it alone has operators, and their shapes, since these make a step a third
    longer: in the others, which are judged, the profiler sees devices and their launches.
    """

    def __init__(self, torch, skip, active, every):
        self._torch = torch
        self._active, self._every = active, every
        self._next_start, self._stop_at = skip, None
        self._count, self._n_bytes = 0, 0
        self._trial = _TRIAL_STEPS if every and active > _TRIAL_STEPS else 0
        self._profile = None
        self._open = None
        self._is_ours = False
        self._process = os.getpid()
        self._due_ns = None  # when a window by time is to begin, or to end

    def give_way_to_program(self):
        """Stop for good when the program starts a profiler of its own."""
        profile = self._torch.autograd.profiler.profile
        original = profile.__init__
        windows = self

        def __init__(self, *args, **kwargs):
            if not windows._is_ours and session.active:
                windows.stop()
                windows._next_start, windows._profile = _NEVER, None
                session.emitter().mark("traceprof.window.ceded", steps.number)
            original(self, *args, **kwargs)

        replace(profile, "__init__", __init__)

    def at_step(self, number):
        """Open or close a window where it is due; the profiler is warmed up a step before."""
        if self._process != os.getpid():
            return  # a forked process: the profiler stayed with its parent
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
        """Open or close a window by time, in a program of which no step has been seen yet."""
        now = time_ns()
        if self._due_ns is None:
            self._due_ns = now + (_FIRST_NS if turns.known else 0)
            return
        if now < self._due_ns or self._process != os.getpid():
            return
        cuda = self._torch.cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return  # the profiler would ask the device for what no capture allows
        if self._stop_at is _BY_TIME:
            self.stop()
            self._due_ns = now + _PERIOD_NS
        elif self._next_start != _NEVER and session.is_capturing():
            self._start(steps.number)
            if self._stop_at is not None:
                self._stop_at = _BY_TIME
            self._due_ns = now + _LENGTH_NS

    def _prepare(self):
        if self._profile is None and not self._torch._C._autograd._profiler_enabled():
            try:
                profile = self._make_profile()
                profile._prepare_trace()
                self._profile = profile
            except Exception as error:
                self._next_start = _NEVER
                complain("no operators are recorded", error)

    def _start(self, number):
        self._prepare()
        profile, self._profile = self._profile, None
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
            self._stop_at = number + (self._trial or self._active)
            self._open = (emitter, emitter.start("traceprof.window", number))
        finally:
            emitter.pop()

    def _make_profile(self):
        more = device_option(self._torch)
        profile = self._torch.autograd.profiler.profile
        self._is_ours = True
        try:
            if not more or not self._every:
                return profile(use_cpu=True, use_kineto=True, **more)
            if self._count:
                try:
                    return profile(use_cpu=False, use_kineto=True, **more)
                except AssertionError:  # this torch sees devices through operators alone
                    return profile(use_cpu=True, use_kineto=True, **more)
            return profile(use_cpu=True, use_kineto=True, record_shapes=True, **more)
        finally:
            self._is_ours = False

    def stop(self):
        """Close the open window, if any, and write it out."""
        if self._stop_at is None:
            return
        is_by_time = self._stop_at is _BY_TIME
        self._stop_at = None
        n_bytes = 0
        emitter, token = self._open
        emitter.end(token)
        emitter.push("traceprof.window.stop", steps.number)
        try:
            result = self._torch.autograd._disable_profiler()
            path = self._new_path()
            result.save(path + ".tmp")
            os.replace(path + ".tmp", path)
            self._count += 1
            n_bytes = os.path.getsize(path)
            self._n_bytes += n_bytes
        except Exception as error:
            complain("a recording of operators was lost", error)
        finally:
            emitter.pop()
        if not is_by_time:
            self._next_start = self._after_window(n_bytes)
        elif self._is_enough():
            self._next_start = _NEVER

    def _new_path(self):
        """Return the path of the next window: those of the program before (exec) are kept."""
        folder, number = settings.DIRECTORY, self._count
        while True:
            path = os.path.join(folder, "window.%s.%d.json" % (identity(), number))
            if not os.path.exists(path):
                return path
            number += 1

    def _after_window(self, n_bytes):
        """Return the step at which the next window is due."""
        if not self._every or self._next_start == _NEVER or self._is_enough():
            return _NEVER
        if not self._trial:
            if self._count % _WINDOWS_PER_HALVING == 0:
                self._every *= 2
            return steps.number + self._every - self._active
        per_step = max(1, n_bytes // self._trial)
        self._active = max(1, min(self._active, _MAX_BYTES // per_step))
        self._trial = 0
        return steps.number + 1

    def _is_enough(self):
        """Return whether the windows have taken what they may of the disk, and say so."""
        if self._n_bytes <= (settings.MAX_BYTES or _MAX_BYTES_OF_ALL):
            return False
        sys.stderr.write(
            "traceprof: recorded operators use %d MB (the limit); process %d records no more\n"
            % (self._n_bytes >> 20, os.getpid())
        )
        return True

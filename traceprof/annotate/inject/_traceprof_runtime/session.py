"""The recording state of this process: whether recording is on, and where events are written."""

import atexit
import functools
import os
import threading
from contextlib import ExitStack

from . import process_record, settings
from .clock import time_ns
from .emitters import NOWHERE, TeeEmitter, nvtx_emitter
from .replaced import replace
from .spool import Spool

_SUDDEN_ENDS = ("_exit", "abort", "execv", "execve")  # the other exec functions call these

active = False
_process = None
_is_dormant = False
_is_held = False
_is_end_registered = False
_capture_token = None
_emitter = None
_idle_emitter = NOWHERE  # the emitter for events that are not captured
_open_emitter = None
_spool = None
_nvtx = None
_lock = threading.RLock()  # for opening, holding, and releasing events in any thread
_at_end = []
_in_new_process = []
_on_capture = []
at_end = _at_end.append  # (function): called before the spool is closed
in_new_process = _in_new_process.append  # (function): called in a forked process that records
on_capture = _on_capture.append  # (function): called with True when capturing begins, False at end


def begin():
    """Switch recording on; return False if it was already on. Files appear with the first event."""
    global active, _process
    if _process is not None:
        return False
    active = True
    _process = os.getpid()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
    _flush_before_sudden_ends()
    return True


def _flush_before_sudden_ends():
    """Write the recorded events before calls that end a program without what runs at exit."""
    for name in _SUDDEN_ENDS:
        replace(os, name, _with_flush(getattr(os, name)))


def _with_flush(function):
    """Return ``function`` with a flush of this process's events before it."""

    @functools.wraps(function)
    def flush_first(*args, **kwargs):
        if has_events():
            _spool.flush(patience_s=1)
        return function(*args, **kwargs)

    return flush_first


def emitter():
    """Return the emitter for events."""
    return _emitter if _emitter is not None else _open()


def clear_at_exit(references):
    """Return ``references``, a dict of weak references, and clear it before Python exits.

    The objects may outlive the modules that the callbacks of their weak references need.
    """
    atexit.register(references.clear)
    return references


def has_events():
    """Return whether this process has opened its spool."""
    return _spool is not None and _process == os.getpid()


def follow_fork():
    """Give a forked process its own record and spool."""
    global _process, _spool, _emitter, _capture_token, _is_end_registered
    if _process == os.getpid():
        return
    for function in _in_new_process:
        function()
    _process, _spool, _capture_token = os.getpid(), None, None
    _is_end_registered = False  # multiprocessing drops finalizers in a forked process
    _emitter = _idle_emitter if _is_held else None
    if _is_held:
        _register_end()
    process_record.write_process_record()


def spool():
    """Return the spool of this process."""
    if _spool is None:
        _open()
    return _spool


def hold(idle_emitter=None):
    """Do not capture events until `begin_capture`: drop them, or send them to ``idle_emitter``."""
    global _is_held, _emitter, _idle_emitter
    if not _is_held and _spool is None:
        _register_end()  # the counts of steps are written even if no event is recorded
    with _lock:
        _is_held = True
        _idle_emitter = idle_emitter or _idle_emitter
        _emitter = _idle_emitter


def is_capturing():
    """Return whether events are recorded."""
    return not _is_held


def begin_capture():
    """Record events from now on; a profiler starts at the range that this function opens."""
    global _is_held, _emitter, _capture_token
    if _is_held:
        with _lock:
            _is_held = False
            _emitter = None
        _capture_token = emitter().start("traceprof.capture", 0)
        _mark_clock()
        for function in _on_capture:
            function(True)


def end_capture():
    """Drop events from now on; a profiler stops at the end of the capture range."""
    global _capture_token
    if _capture_token is not None:
        _mark_clock()
        _open_emitter.end(_capture_token)
        _capture_token = None
        hold()
        for function in _on_capture:
            function(False)


def close_capture():
    """End capturing and close the spool: the next capture opens another one."""
    global _spool
    end_capture()
    with _lock:
        spool_to_close, _spool = _spool, None
    if spool_to_close is not None:
        spool_to_close.close()


def resume_in_fork():
    """Switch recording on again in a forked process that trains; return whether recording is on."""
    global active, _is_dormant
    if _is_dormant:
        _is_dormant = False
        follow_fork()
        active = True
    return active


def _open():
    """Open the spool and the emitters if necessary, and return the current emitter."""
    global _emitter, _open_emitter, _spool, _nvtx
    with _lock:
        if _nvtx is None:
            _nvtx = nvtx_emitter() or False
        is_new = _spool is None
        if is_new:
            _spool = Spool(settings.DIRECTORY, _mark_clock if _nvtx else None)
            _open_emitter = TeeEmitter(_nvtx, _spool) if _nvtx else _spool
            if _idle_emitter is not NOWHERE:  # the live status continues during a capture
                _open_emitter = TeeEmitter(_idle_emitter, _open_emitter)
            _mark_clock()
        _emitter = opened_emitter = _idle_emitter if _is_held else _open_emitter
    if is_new:
        _register_end()
    return opened_emitter


def _mark_clock():
    """Emit the time of our clock to the profiler; samples and other nodes use our clock."""
    if _nvtx:
        _nvtx.mark("clock", time_ns())


def _register_end():
    """Register `close` for the end of this process, once."""
    global _is_end_registered
    if _is_end_registered:
        return
    _is_end_registered = True
    atexit.register(close)
    try:  # multiprocessing ends its processes without atexit
        from multiprocessing import util

        util.Finalize(None, close, exitpriority=-100)
    except ImportError:
        pass


def close(failed=None):
    """Run the functions of `at_end`, close the spool, and write the end record.

    It runs when the process ends. An exception in one function does not prevent the others. If
    recording ends before the process, ``failed`` says whether the recorded code failed.
    """
    global active, _is_end_registered
    if _process != os.getpid() or not _is_end_registered:
        return
    _is_end_registered = active = False  # a recording that began now would not be written
    with ExitStack() as stack:
        stack.callback(lambda: process_record.note_end(failed, _spool and _spool.counts()))
        stack.callback(_close_spool)
        for function in reversed(_at_end):
            stack.callback(function)


def end_inside(failed):
    """End a recording inside a program that continues; ``failed``: the recorded code failed."""
    global active
    _register_end()
    close(failed)
    active = False


def _close_spool():
    """End capturing and close the spool, if it is open."""
    if _spool is not None:
        end_capture()
        _mark_clock()
        _spool.close()


def _after_fork():
    """Pause recording in a forked process: it is a data-loading worker unless it trains."""
    global active, _is_dormant, _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    _is_dormant = _is_dormant or active
    active = False
    if _spool is not None:
        _spool.leave_to_parent()
    process_record.note_child()

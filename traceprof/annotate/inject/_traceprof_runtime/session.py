"""The state of recording in this process: whether it is on, and where events go."""

import atexit
import os
import threading
from contextlib import ExitStack

from . import process_record, settings
from .clock import time_ns
from .emitters import NOWHERE, TeeEmitter, nvtx_emitter
from .spool import Spool

active = False
_process = None
_is_dormant = False
_is_held = False
_has_end = False
_capture = None
_emitter = None
_everywhere = None
_spool = None
_nvtx = None
_turn = threading.RLock()  # of who opens, holds and lets through: threads of the program, and ours
_at_end = []
_in_new_process = []
_on_capture = []
at_end = _at_end.append  # (function): it is called before the spool is closed
in_new_process = _in_new_process.append  # (function): it is called in a forked process that records
on_capture = _on_capture.append  # (function): it is told when events go through, or no longer


def begin():
    """Switch recording on; files appear with the first event. Return False where it is on."""
    global active, _process
    if _process is not None:
        return False
    active = True
    _process = os.getpid()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
    return True


def emitter():
    """Return where events go."""
    return _emitter if _emitter is not None else _open()


def until_exit(references):
    """Return a table of weak references, which is emptied before Python ends.

    What they refer to may outlive the modules that their callbacks need.
    """
    atexit.register(references.clear)
    return references


def has_events():
    """Return whether this process has left any event."""
    return _spool is not None and _process == os.getpid()


def follow_fork():
    """Give a forked process a record and a spool of its own."""
    global _process, _spool, _emitter, _capture, _has_end
    if _process == os.getpid():
        return
    for function in _in_new_process:
        function()
    _process, _spool, _capture = os.getpid(), None, None
    _has_end = False  # multiprocessing forgets what was to be done in the end
    _emitter = NOWHERE if _is_held else None
    if _is_held:
        _register_end()
    process_record.write_process_record()


def spool():
    """Return the spool of this process."""
    if _spool is None:
        _open()
    return _spool


def hold():
    """Hold events back until `begin_capture`."""
    global _is_held, _emitter
    if not _is_held and _spool is None:
        _register_end()  # what was seen is told even if nothing is let through
    with _turn:
        _is_held = True
        _emitter = NOWHERE


def is_capturing():
    """Return whether events go anywhere."""
    return not _is_held


def begin_capture():
    """Let events through; the profiler starts with the range that this opens."""
    global _is_held, _emitter, _capture
    if _is_held:
        with _turn:
            _is_held = False
            _emitter = None
        _capture = emitter().start("traceprof.capture", 0)
        _mark_clock()
        for function in _on_capture:
            function(True)


def end_capture():
    """Hold events back for good; the profiler stops with the end of the range."""
    global _capture
    if _capture is not None:
        _mark_clock()
        _everywhere.end(_capture)
        _capture = None
        hold()
        for function in _on_capture:
            function(False)


def resume_in_fork():
    """Switch recording on again in a forked process that turns out to train."""
    global active, _is_dormant
    if _is_dormant:
        _is_dormant = False
        follow_fork()
        active = True
    return active


def _open():
    global _emitter, _everywhere, _spool, _nvtx
    with _turn:
        if _nvtx is None:
            _nvtx = nvtx_emitter() or False
        is_new = _spool is None
        if is_new:
            _spool = Spool(settings.DIRECTORY, _mark_clock if _nvtx else None)
            _everywhere = TeeEmitter(_nvtx, _spool) if _nvtx else _spool
            _mark_clock()
        _emitter = opened = NOWHERE if _is_held else _everywhere
    if is_new:
        _register_end()
    return opened


def _mark_clock():
    """Tie the profiler's clock to ours, which samples and other nodes use."""
    if _nvtx:
        _nvtx.mark("clock", time_ns())


def _register_end():
    global _has_end
    if _has_end:
        return
    _has_end = True
    atexit.register(close)
    try:  # processes of multiprocessing leave without running atexit
        from multiprocessing import util

        util.Finalize(None, close, exitpriority=-100)
    except ImportError:
        pass


def close(failed=None):
    """Write out everything, if interrupted too; called when the process ends.

    Where recording ends before it, ``failed`` says whether what was recorded did.
    """
    global active, _has_end
    if _process != os.getpid() or not _has_end:
        return
    _has_end = active = False  # what begins now would end too late
    with ExitStack() as stack:
        stack.callback(lambda: process_record.note_end(failed, _spool and _spool.counts()))
        stack.callback(_close_spool)
        for function in reversed(_at_end):
            stack.callback(function)


def end_inside(failed):
    """End recording in a program that goes on; ``failed`` says whether what was recorded did."""
    global active
    _register_end()
    close(failed)
    active = False


def _close_spool():
    if _spool is not None:
        end_capture()
        _mark_clock()
        _spool.close()


def _after_fork():
    """Stand still in a forked process: it is a data-loading worker until it shows otherwise."""
    global active, _is_dormant, _turn
    _turn = threading.RLock()  # another thread may have had it
    _is_dormant = _is_dormant or active
    active = False
    if _spool is not None:
        _spool.leave_to_parent()
    process_record.note_child()

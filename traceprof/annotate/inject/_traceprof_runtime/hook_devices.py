"""CUPTI in this process: which part of the run it records, its end, and when it gives way.

The driver loads the recorder's library when the program first uses CUDA, torch or not. A profiler
of the program's own always has priority.
"""

import atexit
import os

from . import session, settings
from .after_import import complain
from .replaced import replace

_VERSION = 1  # of the library's functions
_AT_ONCE, _WHEN_TOLD = 1, 2  # when it begins to record
_INJECTION = "CUDA_INJECTION64_PATH"
_library = None
_is_over = False


def follow_capture():
    """Have CUPTI record while events go through, and end in order."""
    global _library
    path = os.environ.get("TRACEPROF_CUPTI_RECORDER")
    if not path or _library is not None or "devices" in settings.DISABLED:
        return
    try:
        _library = _load(path)
        _let_through(session.is_capturing())
        session.on_capture(_let_through)
        session.at_end(_stop)
        atexit.register(_stop)  # also where no event opened the spool
    except Exception as error:
        complain("no GPU activity is recorded", error)


def _load(path):
    import ctypes

    library = ctypes.CDLL(path)
    if ctypes.c_int.in_dll(library, "traceprof_recorder_version").value != _VERSION:
        raise OSError("%s belongs to another version of traceprof" % path)
    library.traceprof_why.restype = ctypes.c_char_p
    return library


def install_devices(torch):
    """Start CUPTI when torch first uses CUDA, and give way where the program uses a profiler."""
    if _library is not None:
        _start_before_cuda(torch)
        _give_way_to_program(torch)


def _let_through(is_on):
    _library.traceprof_plan(_AT_ONCE if is_on else _WHEN_TOLD)
    _library.traceprof_capture(int(is_on))


def _start_before_cuda(torch):
    """Start no sooner than the program needs CUDA: processes that fork must not have it before."""
    original = torch.cuda._lazy_init

    def _lazy_init():
        if not _is_over and not torch.cuda.is_initialized():
            _start()
        return original()

    replace(torch.cuda, "_lazy_init", _lazy_init)


def _start():
    global _is_over
    if _library.traceprof_start():
        _is_over = True
        complain("no GPU activity is recorded", _library.traceprof_why().decode())
    else:
        session.emitter().mark("traceprof.devices", 0)


def _give_way_to_program(torch):
    """Stop for good when the program starts a profiler of its own: CUPTI has one user."""
    profile = torch.autograd.profiler.profile
    original = profile.__init__

    def __init__(self, *args, **kwargs):
        if not _is_over and session.active:
            _stop()
            os.environ.pop(_INJECTION, None)  # where it is set torch leaves CUPTI alone
            session.emitter().mark("traceprof.devices.ceded", 0)
        original(self, *args, **kwargs)

    replace(profile, "__init__", __init__)


def _stop():
    global _is_over
    _is_over = True
    _library.traceprof_stop()

"""CUPTI in this process: which part of the run it records, and when it stops for another profiler.

The driver loads the recorder's library when the program first uses CUDA, with or without torch.
A profiler that the program starts itself always has priority.
"""

import atexit
import os
import sys

from . import session, settings
from .after_import import complain, offer_cupti
from .replaced import replace

_LIBRARY_VERSION = 1  # version of the library's interface
_IMMEDIATELY, _ON_REQUEST = 1, 2  # when the library begins to record
_NOT_RECORDED = "no GPU activity is recorded: "
_INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"
_library = None
_is_over = settings.LIVE  # then it begins on request


def follow_capture():
    """Load the recorder's library, and make CUPTI record while capturing is on."""
    global _library
    path = _library_path()
    if not path or _library is not None or settings.LIVE:  # a live run waits for a request
        return
    try:
        _library = _load_library(path)
        _set_capturing(session.is_capturing())
        session.on_capture(_set_capturing)
        session.at_end(_stop_recording)
        atexit.register(_stop_recording)  # also if no event opened the spool
    except Exception as error:
        complain("no GPU activity is recorded", error)


def _library_path():
    """Return the path of the recorder's library; "" if CUPTI does not record."""
    is_disabled = "devices" in settings.DISABLED
    return "" if is_disabled else os.environ.get("TRACEPROF_CUPTI_RECORDER", "")


def record_on_request(folder):
    """Record GPU activity of a running program to ``folder``; return why not, "" if it records.

    Raises:
        OSError: The library cannot be loaded, or belongs to another version.
    """
    global _library, _is_over
    path = _library_path()
    if not path:
        return _NOT_RECORDED + "the launcher has no compiled CUPTI recorder"
    _library = _library or _load_library(path)
    offer_cupti()
    _library.traceprof_plan(_IMMEDIATELY)
    before = os.environ.get("TRACEPROF_DIR", "")
    os.environ["TRACEPROF_DIR"] = folder  # where the library writes
    _is_over = bool(_library.traceprof_start())
    os.environ["TRACEPROF_DIR"] = before
    if _is_over:
        return _NOT_RECORDED + _library.traceprof_why().decode("utf-8", "replace")
    session.emitter().mark("traceprof.devices", 0)
    return ""


def end_request():
    """Stop recording GPU activity on request, once the GPU has done the work of the last step."""
    if _is_over:
        return
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()
    _stop_recording()


def _load_library(path):
    """Load the recorder's library.

    Raises:
        OSError: The library cannot be loaded, or belongs to another version.
    """
    import ctypes

    library = ctypes.CDLL(path)
    if ctypes.c_int.in_dll(library, "traceprof_recorder_version").value != _LIBRARY_VERSION:
        raise OSError("%s belongs to another version of traceprof" % path)
    library.traceprof_why.restype = ctypes.c_char_p
    return library


def install_devices(torch):
    """Start CUPTI when torch first uses CUDA, and stop it if the program starts a profiler."""
    if _library is not None:
        _start_before_cuda(torch)
    if _library_path():
        _give_way_to_program(torch)


def _set_capturing(is_on):
    """Make the library record, or stop recording."""
    _library.traceprof_plan(_IMMEDIATELY if is_on else _ON_REQUEST)
    _library.traceprof_capture(int(is_on))


def _start_before_cuda(torch):
    """Start CUPTI just before torch initializes CUDA, so that a fork before has no CUDA state."""
    original = torch.cuda._lazy_init

    def _lazy_init():
        if not _is_over and not torch.cuda.is_initialized():
            _start_recording()
        return original()

    replace(torch.cuda, "_lazy_init", _lazy_init)


def _start_recording():
    """Start CUPTI; report an error if it does not start."""
    global _is_over
    if _library.traceprof_start():
        _is_over = True
        complain("no GPU activity is recorded", _library.traceprof_why().decode())
    else:
        session.emitter().mark("traceprof.devices", 0)


def _give_way_to_program(torch):
    """Stop CUPTI for good when the program starts its own profiler: CUPTI has one user."""
    profile = torch.autograd.profiler.profile
    original = profile.__init__

    def __init__(self, *args, **kwargs):
        if not _is_over and session.active:
            _stop_recording()
            os.environ.pop(
                _INJECTION_VARIABLE, None
            )  # if it is set, torch's profiler does not use CUPTI
            session.emitter().mark("traceprof.devices.ceded", 0)
        original(self, *args, **kwargs)

    replace(profile, "__init__", __init__)


def _stop_recording():
    """Stop CUPTI for good."""
    global _is_over
    _is_over = True
    _library.traceprof_stop()

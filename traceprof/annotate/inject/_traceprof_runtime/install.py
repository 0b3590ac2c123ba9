"""Switches recording on in a process, and installs the hooks once torch is imported.

It records the whole run, or only the requested steps or time span.
"""

import importlib
import sys
import time

from . import compiling, hook_devices, process_record, replaced, session, settings, steps
from .after_import import call_after_import, complain
from .spool import start_thread

_HOOKS = (  # (name in TRACEPROF_DISABLE, module with the function install_NAME)
    ("data", "hook_loading"),
    ("modules", "hook_passes"),
    ("backward", "hook_passes"),
    ("rollouts", "hook_rollouts"),
    ("environments", "hook_environments"),
    ("optimizer", "hook_optimizers"),
    ("collectives", "hook_collectives"),
    ("copies", "hook_calls"),
    ("sizes", "hook_optimizers"),
    ("processor", "hook_processor"),
    ("windows", "hook_windows"),
    ("devices", "hook_devices"),
    ("memory", "hook_memory"),
    ("flops", "hook_flops"),
    ("named", "hook_calls"),
    ("pauses", "hook_calls"),
    ("groups", "hook_calls"),
    ("checkpoints", "hook_calls"),
    ("epochs", "hook_loading"),
    ("agents", "hook_agents"),
    ("trying", "trying"),
    ("live", "live_capture"),
)
_ALWAYS_HOOKS = (("boundaries", "hook_boundaries"), ("live", "live_capture"))


def _finish():
    """Close the last step, and write the summary of all steps."""
    steps.finish()
    process_record.write("seen.%s.json", steps.summary())


def install_hooks(torch):
    """Install every hook that is not disabled; a hook that fails does not affect the others."""
    process_record.write_process_record()
    if "hooks" in settings.DISABLED:
        return
    if not start():
        session.resume_in_fork()  # a forked process that imports torch only now trains
    session.at_end(_finish)
    if settings.CHANGES:
        importlib.import_module(".changes", __package__).install_changes(torch)
    for name, module in _ALWAYS_HOOKS if settings.ALWAYS else _HOOKS:
        if name in settings.DISABLED:
            continue
        try:
            hook = importlib.import_module("." + module, __package__)
            getattr(hook, "install_" + name)(torch)
        except Exception as error:
            complain("the %s hook failed" % name, error)
    compiling.skip_traceprof_frames()


def begin_inside():
    """Begin recording inside a running program, which may or may not have imported torch."""
    start(process_record.write_process_record)
    call_after_import("torch", install_hooks)
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        process_record.write_process_record(
            rank=distributed.get_rank(), world_size=distributed.get_world_size()
        )


def end_inside(failed):
    """End a recording before its program ends, and restore everything that the hooks replaced."""
    session.end_inside(failed)
    replaced.restore()
    for name in [name for name in sys.modules if name.partition(".")[0] == __package__]:
        del sys.modules[name]  # the next recording starts with fresh modules


def start(prepare=None):
    """Switch recording on unless it is on; return whether it was off.

    ``prepare`` is called before the delay and duration start to count.
    """
    if not session.begin():
        return False
    if prepare is not None:
        prepare()
    if settings.LIVE:
        importlib.import_module(".live_capture", __package__).begin()
    elif settings.STEPS is not None:
        session.hold()
        steps.on_boundary(_at_step)
        session.at_end(_finish)  # also of a program without torch: it may end before these steps
    elif settings.DELAY_S or settings.DURATION_S:
        session.hold()
        if start_thread(_capture_by_time, "traceprof-bounds") is None:
            complain("--delay and --duration are ignored", "cannot start another thread")
            session.begin_capture()
    hook_devices.follow_capture()
    return True


def _at_step(number):
    """Begin and end capturing at the requested steps."""
    first, last = settings.STEPS
    if number == first:
        session.begin_capture()
    elif number == last + 1:
        session.end_capture()


def _capture_by_time():
    """Begin capturing after the delay, and end it after the duration."""
    time.sleep(settings.DELAY_S)
    session.begin_capture()
    if settings.DURATION_S:
        time.sleep(settings.DURATION_S)
        session.end_capture()

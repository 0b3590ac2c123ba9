"""Installing the hooks once torch is there."""

import importlib

from . import compiling, process_record, session, settings, start, steps
from .after_import import complain

_HOOKS = (
    "data",
    "modules",
    "backward",
    "optimizer",
    "collectives",
    "copies",
    "sizes",
    "windows",
    "named",
    "pauses",
    "groups",
    "checkpoints",
    "epochs",
    "agents",
)


def _finish():
    steps.finish()
    process_record.note_seen(steps.seen())


def install_hooks(torch):
    """Install every hook that is not switched off; one that fails does not stop the others."""
    process_record.write_process_record()
    if "hooks" in settings.DISABLED:
        return
    if not start.start():
        session.resume_in_fork()  # a process that imports torch only now is no data loader
    session.at_end(_finish)
    for name in _HOOKS:
        if name in settings.DISABLED:
            continue
        try:
            importlib.import_module(".hook_" + name, __package__).install(torch)
        except Exception as error:
            complain("no hook for %s" % name, error)
    compiling.skip_own_frames()

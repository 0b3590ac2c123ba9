"""Checkpoints that are saved and loaded, whole or by the ranks together.

What a job that is restarted goes on from is known only by them: a saved one is written out at
once, since the process may be killed before the next second.
"""

from . import session
from .after_import import call_after_import
from .hook_groups import wrapped

_OF_RANKS = {
    "save": "checkpoint.save",
    "async_save": "checkpoint.save",
    "load": "checkpoint.load",
}


def install(torch):
    """Wrap ``torch.save``, ``torch.load`` and the functions of torch.distributed.checkpoint."""
    torch.save = torch.serialization.save = wrapped(torch.save, "checkpoint.save", _write_out)
    torch.load = torch.serialization.load = wrapped(torch.load, "checkpoint.load")
    call_after_import("torch.distributed.checkpoint", _wrap_all)


def _wrap_all(module):
    for name, label in _OF_RANKS.items():
        if hasattr(module, name):
            afterwards = _write_out if label.endswith("save") else None
            setattr(module, name, wrapped(getattr(module, name), label, afterwards))


def _write_out():
    if session.is_capturing():
        session.spool().flush()

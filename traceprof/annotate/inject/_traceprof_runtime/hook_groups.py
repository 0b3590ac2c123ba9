"""Process groups that are made and destroyed: how long workers take to find one another."""

import functools

from . import session

_NAMES = ("init_process_group", "destroy_process_group")


def install(torch):
    """Wrap the functions of torch.distributed."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    for name in _NAMES:
        method = wrapped(getattr(distributed, name), name)
        setattr(distributed, name, method)
        setattr(distributed.distributed_c10d, name, method)


def wrapped(original, name, afterwards=None):
    """Return ``original`` with a range of that name around each call."""

    @functools.wraps(original)
    def function(*args, **kwargs):
        if not session.active:
            return original(*args, **kwargs)
        emitter = session.emitter()
        emitter.push(name)
        try:
            return original(*args, **kwargs)
        finally:
            emitter.pop()
            if afterwards is not None:
                afterwards()

    return function

"""Training steps as they can be seen while the program runs.

A step lasts from the fetch of its batch to the fetch of the next one after an optimizer step
(gradient accumulation fetches several batches per step). Without a DataLoader it starts with
the forward pass and ends with the optimizer step.
"""

from . import session

number = 0
_open = None  # the open step: (emitter, token)
_has_loader = False
_has_optimized = False
_is_explicit = False
_is_first = True
_listeners = []


def on_boundary(listener):
    """Have ``listener(number)`` called before each step, and after the last."""
    _listeners.append(listener)


def fetching(may_train):
    """Note that a batch is about to be fetched.

    ``may_train`` is False where there is no batch left, or where gradients are switched off: that
    is how an evaluation fetches.
    """
    global _has_loader
    _has_loader = True
    if _has_optimized:
        close()
    if may_train:
        open_()


def computing():
    """Note that a forward pass (of a program without a DataLoader) or a backward pass starts."""
    if not _has_loader:
        open_()


def optimized():
    """Note that an optimizer has made its step."""
    global _has_optimized
    _has_optimized = True
    if not _has_loader:
        close()


def open_():
    """Open a step unless one is open."""
    global _open
    if _open is None and not _is_explicit:
        _announce_first()
        emitter = session.emitter()
        _open = (emitter, emitter.start("step", number))


def close():
    """Close the open step, if any."""
    global _has_optimized
    _has_optimized = False
    if _end_open():
        _advance()


def begin_explicit(wanted):
    """Begin a step that the program names itself; return its number."""
    global number, _is_explicit
    _is_explicit = True
    _end_open()
    if wanted is not None:
        number = wanted
    _announce_first()
    return number


def end_explicit():
    """End a step that the program named itself."""
    _advance()


def finish():
    """Close the last step of the program if its optimizer has run."""
    if _has_optimized:
        close()


def _forget():
    """Drop the state in a forked process."""
    global _open, _has_optimized
    _open, _has_optimized = None, False


session.in_new_process(_forget)


def _end_open():
    """End the open step; return whether there was one."""
    global _open
    if _open is None:
        return False
    emitter, token = _open
    _open = None
    emitter.end(token)
    return True


def _announce_first():
    global _is_first
    if _is_first:
        _is_first = False
        _tell_listeners()


def _advance():
    global number
    number += 1
    _tell_listeners()


def _tell_listeners():
    for listener in _listeners:
        listener(number)

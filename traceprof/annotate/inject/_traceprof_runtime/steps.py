"""Training steps as they can be seen while the program runs.

A step lasts from the fetch of its batch to the fetch of the next one after an optimizer step
(gradient accumulation fetches several batches per step). Without a DataLoader it starts with
the forward pass and ends with the optimizer step.
"""

from . import session

number = 0
_token = None
_has_loader = False
_has_optimized = False
_is_explicit = False
_listeners = []


def on_close(listener):
    """Have ``listener(number)`` called after each step."""
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
    global _token
    if _token is None and not _is_explicit:
        _token = session.emitter().start("step", number)


def close():
    """Close the open step, if any."""
    global _token, _has_optimized
    _has_optimized = False
    if _token is None:
        return
    session.emitter().end(_token)
    _token = None
    _advance()


def _advance():
    global number
    number += 1
    for listener in _listeners:
        listener(number)


def begin_explicit(wanted):
    """Begin a step that the program names itself; return its number."""
    global number, _is_explicit, _token
    _is_explicit = True
    if _token is not None:
        session.emitter().end(_token)
        _token = None
    if wanted is not None:
        number = wanted
    return number


def end_explicit():
    """End a step that the program named itself."""
    _advance()


def finish():
    """Close the last step of the program if its optimizer has run."""
    if _has_optimized:
        close()


def forget():
    """Drop the state in a forked process."""
    global _token, _has_optimized
    _token, _has_optimized = None, False

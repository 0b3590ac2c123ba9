"""Training steps as they can be seen while the program runs.

A step lasts from the fetch of its batch to the fetch of the next one after an optimizer's step
(gradient accumulation fetches several batches per step). Where the batch came from no DataLoader
it begins with the forward pass and ends with the optimizer. Several optimizers that take turns
are one step. Without any optimizer of torch it ends with the backward pass, or where several add
to the same gradients when these are reset. What comes first is
guessed, and corrected when it comes again: the number of steps is right, the first border may be
late. The analysis, which knows what comes afterwards, finds them anew.
"""

import threading

from . import gradients, session, settings, turns

# What the user may take steps from: the end of each, of a batch the time until the next.
BACKWARD, OPTIMIZER, LOADER, FORWARD = "backward", "optimizer", "loader", "every-forward"
_FETCHES = ("", BACKWARD, OPTIMIZER, FORWARD)
_TRAINS = ("", BACKWARD, OPTIMIZER)
_OF_ONE = OPTIMIZER + "#"
_LEFT = "step.left"  # of no time: the step of that number was begun and never done
_MANY_PASSES = 64  # backward passes without a step of the optimizers that are there

number = 0
tells_samples = False  # whether the program says itself how many samples a step has
_open = None  # the open step: (emitter, token)
_asked = settings.STEP_FROM
_name = "step:" + _asked if _asked else "step"
_only = 0  # the number of the optimizer whose steps are asked for, 0 for any
if _asked.startswith(_OF_ONE):
    _only, _asked = int(_asked[len(_OF_ONE) :]), OPTIMIZER
_has_batch = False
_is_complete = False
_is_explicit = False
_is_first = True
_depth = 0  # calls of optimizers and of the backward pass that are open
_trainer = None  # the thread that trains
_passes = 0  # backward passes, while no optimizer has stepped
_passed_before = 0  # passes and steps of optimizers until the last batch came
_counts = {"fetches": 0, "forward passes": 0, "backward passes": 0, "optimizer steps": 0}
_listeners = []
_watchers = []
on_boundary = _listeners.append  # (listener): called with the number, before a step and at the end
on_activity = _watchers.append  # (watcher): called at anything while no step has been seen
made = turns.known.add  # (number): an optimizer was made
gone = turns.gone


def fetching(may_train):
    """Note that a batch is about to be fetched.

    ``may_train`` is False where there is no batch left, or where gradients are switched off: that
    is how an evaluation fetches.
    """
    global _has_batch
    _counts["fetches"] += 1
    if _is_elsewhere():
        return
    _notice()
    if _is_complete or _asked == LOADER or _was_updated():
        close()
    turns.begin_batch(_has_batch)
    _has_batch = may_train
    if _asked == FORWARD or (may_train and _asked in _FETCHES):
        open_()


def fetched():
    """Note that a batch has been fetched."""
    global _passed_before
    if _asked == LOADER and not _is_elsewhere():
        _passed_before = _passed()
        open_()


def exhausted():
    """Note that there was no batch left."""
    global _has_batch
    _has_batch = False
    _counts["fetches"] -= 1


def passing(may_train):
    """Note that a forward pass starts, and whether a backward pass may follow."""
    _counts["forward passes"] += 1
    if _is_elsewhere():
        return
    if not may_train or _asked not in _TRAINS:  # else a step begins now
        _notice()
    if _was_updated():
        close()
    if may_train:
        _begin()
    elif _is_complete and not _depth and not _expects_more() and not _holds_batch():
        close()
    if _asked == FORWARD:
        open_()


def passed():
    """Note that a forward pass of either kind is over."""
    if _asked == FORWARD and not _is_elsewhere():
        close()


def acting():
    """Note work that is no pass of a module."""
    if not _is_elsewhere():
        _notice()


def follows_gradients():
    """Return whether the gradients tell what a step is: no optimizer does, and nobody says it."""
    return not (turns.known or _asked or _is_explicit)


def begin_backward(adds=False):
    """Note that a backward pass starts, and whether it adds to the gradients of the one before."""
    global _depth, _trainer
    _counts["backward passes"] += 1
    if _trainer is None:
        _trainer = threading.get_ident()
    if _is_elsewhere():
        return
    _notice()
    if not adds and gradients.holds() and not _depth:
        close()
    _begin()
    _depth += 1


def end_backward():
    """Note that a backward pass is over."""
    global _depth, _passes, _is_complete
    if _is_elsewhere() or not _depth:
        return
    _depth -= 1
    if _asked == BACKWARD:
        close()
    elif not turns.seen and not _asked:
        _passes += 1
        if _passes >= _MANY_PASSES if turns.known else not gradients.holds():
            _is_complete = True
    _end_if_complete()


def begin_optimizer(optimizer):
    """Note that an optimizer starts its step."""
    global _depth, _trainer
    _counts["optimizer steps"] += 1
    if not turns.seen:
        _trainer = threading.get_ident()
    if _is_elsewhere():
        return
    if not (_depth or _only) and optimizer in turns.stepped and not _holds_batch():
        close()  # it is its turn again: the step before should have ended earlier
    if _asked in ("", OPTIMIZER):
        open_()
    _depth += 1


def end_optimizer(optimizer, is_done=True):
    """Note that a call of an optimizer's step is over, and whether it has made it."""
    global _depth, _is_complete
    if _is_elsewhere() or not _depth:
        return
    _depth -= 1
    if not is_done or _asked not in ("", OPTIMIZER):
        return
    if not _depth:
        turns.note(optimizer)
    if _only and optimizer != _only:
        return
    _is_complete = True
    _end_if_complete()


def open_():
    """Open a step unless one is open."""
    global _open
    if _open is None and not _is_explicit:
        _announce_first()
        emitter = session.emitter()
        _open = (emitter, emitter.start(_name, number))


def close():
    """Close the open step, if any."""
    global _is_complete
    _is_complete = False
    turns.end_step(_has_batch)
    gradients.end_step()
    if _end_open():
        advance()


def begin_named(name):
    """Begin a step where the user asked for the ranges of this name; return whether they did."""
    if _asked != "range:" + name or _is_explicit:
        return False
    close()
    open_()
    return True


def begin_explicit(wanted, tells):
    """Begin a step that the program names itself, perhaps with its samples; return its number."""
    global number, tells_samples, _is_explicit
    tells_samples = tells
    _is_explicit = True
    _end_open()
    if wanted is not None:
        number = wanted
    _announce_first()
    return number


def seen():
    """Return how many steps there were, and of what they might have been made."""
    return dict(
        _counts,
        steps=number,
        named=int(_is_explicit),
        joined=turns.joined,
        changes=turns.changes,
        turns=turns.counts,
    )


def finish():
    """Close the last step of the program if its work was done; else say that it was not.

    A batch that was fetched as the loop was left is no step where others had passes.
    """
    is_worked = _asked == LOADER and _passed() != (_passed_before or -1)
    if _is_complete or is_worked or (_open is not None and gradients.holds()):
        close()
    elif _end_open():
        emitter = session.emitter()
        emitter.push(_LEFT, number)
        emitter.pop()


def _passed():
    """Return how many passes and steps of optimizers there were."""
    return sum(_counts.values()) - _counts["fetches"]


def _begin():
    """Let a pass that may train belong to a step: to the open one, or to the next."""
    # Without optimizers only the next fetch tells.
    is_of_batch = (_has_batch and not turns.seen) or _holds_batch()
    if _is_complete and not _depth and not is_of_batch and not _expects_more():
        close()
    if _asked in _TRAINS:
        open_()


def _end_if_complete():
    """End the step with the optimizer, unless it goes on up to the next batch."""
    if not _is_complete or _depth:
        return
    if _asked == OPTIMIZER or not (_has_batch or _expects_more()):
        close()


def _expects_more():
    """Return whether another optimizer is likely to take its turn in this step."""
    return not _asked and turns.expects_more()


def _holds_batch():
    """Return whether the open step goes on to the next batch, whoever takes turns."""
    return not _asked and _has_batch and turns.holds_batch()


def _was_updated():
    """Return whether gradients were reset: the open step has ended, where only they tell it."""
    return _open is not None and not _depth and follows_gradients() and gradients.were_reset()


def _is_elsewhere():
    """Return whether this is not the thread that trains."""
    global _trainer
    own = threading.get_ident()
    if _trainer is None or _trainer == own:
        return False
    if any(thread.ident == _trainer for thread in threading.enumerate()):
        return True
    _trainer = None  # that thread has ended
    return False


def _notice():
    if _is_first:
        for watcher in _watchers:
            watcher()


def _forget():
    """Drop the state in a forked process."""
    global _open, _is_complete, _depth, _trainer
    _open, _is_complete, _depth, _trainer = None, False, 0, None
    turns.stepped.clear()


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


def advance():
    """Count a step that is over, as one that the program named itself is."""
    global number
    number += 1
    _tell_listeners()


def _tell_listeners():
    for listener in _listeners:
        listener(number)

"""Training steps, detected while the program runs.

A step lasts from the fetch of its batch to the first fetch after the optimizer's step (with
gradient accumulation, a step fetches several batches). If no DataLoader provides the batch, the
step begins with the forward pass and ends with the optimizer. Several optimizers that take turns
are one step. If the program uses no optimizer of torch, the step ends with the backward pass. If
several backward passes add to the same gradients, it ends when the gradients are reset.

The first occurrence of a pattern is guessed, and the guess is corrected at the next one. So the
number of steps is right, but the first boundary may be late. The analysis knows the whole run and
detects the steps again.
"""

import threading

from . import gradients, session, settings, turns

# Values of TRACEPROF_STEP_FROM: a step ends with each of these. LOADER: it lasts to the next fetch.
BACKWARD, OPTIMIZER, LOADER, FORWARD = "backward", "optimizer", "loader", "every-forward"
_BEGIN_WITH_FETCH = ("", BACKWARD, OPTIMIZER, FORWARD)
_BEGIN_WITH_PASS = ("", BACKWARD, OPTIMIZER)
_ONE_OPTIMIZER = OPTIMIZER + "#"
_UNFINISHED = "step.left"  # empty range: the step with this number was begun and never completed
# After this many backward passes without an optimizer step, existing optimizers are ignored.
_MAX_UNSTEPPED_PASSES = 64

number = 0
has_explicit_samples = False  # whether the program sets the number of samples of its steps
_open_step = None  # the open step: (emitter, token)
_step_from = settings.STEP_FROM
_range_name = "step:" + _step_from if _step_from else "step"
_only_optimizer = 0  # number of the only optimizer whose steps count; 0: any
if _step_from.startswith(_ONE_OPTIMIZER):
    _only_optimizer, _step_from = int(_step_from[len(_ONE_OPTIMIZER) :]), OPTIMIZER
_has_batch = False
_is_step_complete = False
_is_explicit = False
_is_first = True
_n_open_calls = 0  # nesting depth of optimizer steps and backward passes
_training_thread = None  # id of the thread that trains
_n_backward_passes = 0  # backward passes before the first optimizer step
_n_calls_at_batch = 0  # training calls (see _count_training_calls) before the last batch
_counts = {"fetches": 0, "forward passes": 0, "backward passes": 0, "optimizer steps": 0}
_listeners = []
_watchers = []
on_boundary = _listeners.append  # (listener): called with the number, before a step and at the end
on_activity = _watchers.append  # (watcher): called at any activity before the first step
add_optimizer = turns.created.add  # (number): an optimizer was created
remove_optimizer = turns.forget  # (number): an optimizer was deleted


def begin_fetch(may_train):
    """Note that a batch is about to be fetched.

    ``may_train`` is False if no batch is left, or if gradients are disabled: evaluations fetch
    like that.
    """
    global _has_batch
    _counts["fetches"] += 1
    if is_other_thread():
        return
    _notify_watchers()
    if _is_step_complete or _step_from == LOADER or _were_gradients_reset():
        close_step()
    turns.begin_batch(_has_batch)
    _has_batch = may_train
    if _step_from == FORWARD or (may_train and _step_from in _BEGIN_WITH_FETCH):
        open_step()


def end_fetch():
    """Note that a batch has been fetched."""
    global _n_calls_at_batch
    if _step_from == LOADER and not is_other_thread():
        _n_calls_at_batch = _count_training_calls()
        open_step()


def end_batches():
    """Note that the fetch returned no batch."""
    global _has_batch
    _has_batch = False
    _counts["fetches"] -= 1


def begin_forward(may_train):
    """Note that a forward pass starts; ``may_train``: a backward pass may follow."""
    _counts["forward passes"] += 1
    if is_other_thread():
        return
    if not may_train or _step_from not in _BEGIN_WITH_PASS:  # otherwise a step begins now
        _notify_watchers()
    if _were_gradients_reset():
        close_step()
    if may_train:
        _begin_pass()
    elif _is_step_complete and not _n_open_calls and not _expects_more() and not _holds_batch():
        close_step()
    if _step_from == FORWARD:
        open_step()


def end_forward():
    """Note that a training or evaluation forward pass is over."""
    if _step_from == FORWARD and not is_other_thread():
        close_step()


def note_work():
    """Note work outside modules, for example the replay of a CUDA graph."""
    if not is_other_thread():
        _notify_watchers()


def follows_gradients():
    """Return whether gradients define the steps: no optimizer and no user setting does."""
    return not (turns.created or _step_from or _is_explicit)


def begin_backward(adds=False):
    """Note that a backward pass starts; ``adds``: it adds to the gradients of the previous pass."""
    global _n_open_calls, _training_thread
    _counts["backward passes"] += 1
    if _training_thread is None:
        _training_thread = threading.get_ident()
    if is_other_thread():
        return
    _notify_watchers()
    if not adds and gradients.keeps_step_open() and not _n_open_calls:
        close_step()
    _begin_pass()
    _n_open_calls += 1


def end_backward():
    """Note that a backward pass is over, and end the step if the pass completes it."""
    global _n_open_calls, _n_backward_passes, _is_step_complete
    if is_other_thread() or not _n_open_calls:
        return
    _n_open_calls -= 1
    if _step_from == BACKWARD:
        close_step()
    elif not turns.have_stepped and not _step_from:
        _n_backward_passes += 1
        if (
            _n_backward_passes >= _MAX_UNSTEPPED_PASSES
            if turns.created
            else not gradients.keeps_step_open()
        ):
            _is_step_complete = True
    _end_if_complete()


def begin_optimizer(optimizer):
    """Note that the optimizer with this number starts its step."""
    global _n_open_calls, _training_thread
    _counts["optimizer steps"] += 1
    if not turns.have_stepped:
        _training_thread = threading.get_ident()
    if is_other_thread():
        return
    if not (_n_open_calls or _only_optimizer) and optimizer in turns.stepped and not _holds_batch():
        close_step()  # a second turn: the previous step should have ended earlier
    if _step_from in ("", OPTIMIZER):
        open_step()
    _n_open_calls += 1


def end_optimizer(optimizer, is_done=True):
    """Note that an optimizer's step returned; ``is_done`` is False if it raised."""
    global _n_open_calls, _is_step_complete
    if is_other_thread() or not _n_open_calls:
        return
    _n_open_calls -= 1
    if not is_done or _step_from not in ("", OPTIMIZER):
        return
    if not _n_open_calls:
        turns.note_step(optimizer)
    if _only_optimizer and optimizer != _only_optimizer:
        return
    _is_step_complete = True
    _end_if_complete()


def open_step():
    """Open a step unless one is open or the program marks its steps."""
    global _open_step
    if _open_step is None and not _is_explicit:
        _announce_first()
        emitter = session.emitter()
        _open_step = (emitter, emitter.start(_range_name, number))


def close_step():
    """Close the open step, if any, and reset the state of the step."""
    global _is_step_complete
    _is_step_complete = False
    turns.end_step(_has_batch)
    gradients.end_step()
    if _end_open():
        advance()


def begin_named(name):
    """Begin a step if the user selected ranges of this name as steps; return whether it did."""
    if _step_from != "range:" + name or _is_explicit:
        return False
    close_step()
    open_step()
    return True


def begin_explicit(explicit_number, has_samples):
    """Begin a step that the program marks; return its number.

    ``explicit_number`` None continues the count. ``has_samples``: the program sets its samples.
    """
    global number, has_explicit_samples, _is_explicit
    has_explicit_samples = has_samples
    _is_explicit = True
    _end_open()
    if explicit_number is not None:
        number = explicit_number
    _announce_first()
    return number


def claim_thread():
    """Note that the current thread trains."""
    global _training_thread
    _training_thread = threading.get_ident()


def is_explicit():
    """Return whether the program marks its steps."""
    return _is_explicit


def summary():
    """Return the number of steps, and the counts from which the analysis can check them."""
    return dict(
        _counts,
        steps=number,
        named=int(_is_explicit),
        joined=turns.n_joined_steps,
        changes=turns.n_turn_changes,
        turns=turns.n_turns,
    )


def finish():
    """Close the last step if its work was done; otherwise mark it as unfinished.

    A batch that was fetched when the loop ended is not a step if other batches had passes.
    """
    has_trained = _step_from == LOADER and _count_training_calls() != (_n_calls_at_batch or -1)
    if _is_step_complete or has_trained or (_open_step is not None and gradients.keeps_step_open()):
        close_step()
    elif _end_open():
        emitter = session.emitter()
        emitter.push(_UNFINISHED, number)
        emitter.pop()


def _count_training_calls():
    """Return the number of forward passes, backward passes, and optimizer steps."""
    return sum(_counts.values()) - _counts["fetches"]


def _begin_pass():
    """Assign a training pass to the open step or to a new one."""
    # Without optimizer steps, the step of a batch lasts until the next fetch.
    belongs_to_batch = (_has_batch and not turns.have_stepped) or _holds_batch()
    if _is_step_complete and not _n_open_calls and not belongs_to_batch and not _expects_more():
        close_step()
    if _step_from in _BEGIN_WITH_PASS:
        open_step()


def _end_if_complete():
    """End a complete step, unless it lasts until the next batch or another optimizer follows."""
    if not _is_step_complete or _n_open_calls:
        return
    if _step_from == OPTIMIZER or not (_has_batch or _expects_more()):
        close_step()


def _expects_more():
    """Return whether another optimizer is likely to step within this step."""
    return not _step_from and turns.expects_more()


def _holds_batch():
    """Return whether the open step lasts until the next batch, whichever optimizers step."""
    return not _step_from and _has_batch and turns.holds_batch()


def _were_gradients_reset():
    """Return whether a reset of gradients has ended the open step, if only gradients define it."""
    return (
        _open_step is not None
        and not _n_open_calls
        and follows_gradients()
        and gradients.were_reset()
    )


def is_other_thread():
    """Return whether the current thread is not the training thread."""
    global _training_thread
    this_thread = threading.get_ident()
    if _training_thread is None or _training_thread == this_thread:
        return False
    if any(thread.ident == _training_thread for thread in threading.enumerate()):
        return True
    _training_thread = None  # that thread has ended
    return False


def _notify_watchers():
    """Call the watchers, if no step has been detected yet."""
    if _is_first:
        for watcher in _watchers:
            watcher()


def _reset_after_fork():
    """Reset the state in a forked process."""
    global _open_step, _is_step_complete, _n_open_calls, _training_thread
    _open_step, _is_step_complete, _n_open_calls, _training_thread = None, False, 0, None
    turns.stepped.clear()


session.in_new_process(_reset_after_fork)


def _end_open():
    """End the open step; return whether one was open."""
    global _open_step
    if _open_step is None:
        return False
    emitter, token = _open_step
    _open_step = None
    emitter.end(token)
    return True


def _announce_first():
    """Call the listeners before the first step."""
    global _is_first
    if _is_first:
        _is_first = False
        _notify_listeners()


def advance():
    """Count a completed step, and call the listeners."""
    global number
    number += 1
    _notify_listeners()


def _notify_listeners():
    for listener in _listeners:
        listener(number)

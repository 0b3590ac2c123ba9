"""Which optimizer steps when: several optimizers can share one step, or each have its own steps.

A turn is one step of an optimizer. Optimizers are identified by their numbers.
"""

created = set()  # all optimizers
have_stepped = set()  # optimizers that have stepped at least once
stepped = set()  # optimizers that have stepped in the open step
n_turns = {}  # optimizer -> number of its turns
n_joined_steps = 0  # steps with turns of several optimizers whose end no batch defined
n_turn_changes = 0  # how often another optimizer than the previous one stepped
# optimizer -> (its number of turns in a row, the next optimizer), within one batch
_successors = {}
_last_optimizer, _n_in_row = None, 0  # the last optimizer, and its number of turns in a row
_batch_counts = {}  # optimizer -> number of its turns with the current batch
_is_batch_one_step = None  # whether all turns with a batch are one step; None: unknown yet


def forget(optimizer):
    """Remove a deleted optimizer."""
    for numbers in (created, have_stepped, stepped):
        numbers.discard(optimizer)
    for key in [key for key, (_, after) in _successors.items() if optimizer in (key, after)]:
        del _successors[key]


def note_step(optimizer):
    """Note a turn of an optimizer, and learn after how many turns it follows the previous one."""
    global _last_optimizer, _n_in_row, n_turn_changes
    have_stepped.add(optimizer)
    stepped.add(optimizer)
    n_turns[optimizer] = n_turns.get(optimizer, 0) + 1
    _batch_counts[optimizer] = _batch_counts.get(optimizer, 0) + 1
    if _last_optimizer == optimizer:
        _n_in_row += 1
        return
    n_turn_changes += 1
    if _last_optimizer is not None:
        _successors[_last_optimizer] = (_n_in_row, optimizer)
    _last_optimizer, _n_in_row = optimizer, 1


def end_step(is_of_batch):
    """Note the end of a step; ``is_of_batch``: it lasted from one batch to the next."""
    global n_joined_steps
    n_joined_steps += len(stepped) > 1 and not is_of_batch
    stepped.clear()


def begin_batch(had_batch):
    """Learn from the previous batch whether all turns with a batch are one step.

    They are if several optimizers step and one of them steps once. Example: a critic that steps
    several times per batch.
    """
    global _is_batch_one_step, _last_optimizer
    if _batch_counts and had_batch:
        _is_batch_one_step = len(_batch_counts) > 1 and min(_batch_counts.values()) == 1
    _batch_counts.clear()
    _last_optimizer = None


def expects_more():
    """Return whether another optimizer is likely to step within this step."""
    if _last_optimizer is None:
        return False
    if _last_optimizer not in _successors:
        return _n_in_row == 1 and bool(created - have_stepped)
    n_turns, successor = _successors[_last_optimizer]
    return _n_in_row == n_turns and successor not in stepped


def holds_batch():
    """Return whether the step lasts until the next batch, whichever optimizers step."""
    return bool(created - have_stepped) if _is_batch_one_step is None else _is_batch_one_step

"""Whose turn it is: optimizers that step one after another, in one step or in several."""

known = set()  # optimizers that were made
seen = set()  # those of them that have stepped
stepped = set()  # those that have in this step
counts = {}  # optimizer -> how many turns it has had
joined = 0  # steps in which several took turns, without a batch that told where they end
changes = 0  # how often it was another one's turn
_following = {}  # optimizer -> after how many turns in a row whose turn was next, without a fetch
_last, _in_row = None, 0  # the last optimizer, and how many turns in a row it has had
_of_batch = {}  # optimizer -> how many turns it has had with the batch
_is_by_batch = None  # whether all turns with a batch are one step; None: not known yet


def gone(optimizer):
    """Note that an optimizer is no more."""
    for numbers in (known, seen, stepped):
        numbers.discard(optimizer)
    for key in [key for key, (_, other) in _following.items() if optimizer in (key, other)]:
        del _following[key]


def note(optimizer):
    """Remember whose turn it was, and after how many turns of the one before."""
    global _last, _in_row, changes
    seen.add(optimizer)
    stepped.add(optimizer)
    counts[optimizer] = counts.get(optimizer, 0) + 1
    _of_batch[optimizer] = _of_batch.get(optimizer, 0) + 1
    if _last == optimizer:
        _in_row += 1
        return
    changes += 1
    if _last is not None:
        _following[_last] = (_in_row, optimizer)
    _last, _in_row = optimizer, 1


def end_step(is_of_batch):
    """Note that a step is over, and whether it went from one batch to the next."""
    global joined
    joined += len(stepped) > 1 and not is_of_batch
    stepped.clear()


def begin_batch(had_batch):
    """Learn from a batch that is over whether all turns with a batch are one step.

    So it is where several optimizers take turns and one of them once: a critic that learns
    several times from each batch.
    """
    global _is_by_batch, _last
    if _of_batch and had_batch:
        _is_by_batch = len(_of_batch) > 1 and min(_of_batch.values()) == 1
    _of_batch.clear()
    _last = None


def expects_more():
    """Return whether another optimizer is likely to take its turn in this step."""
    if _last is None:
        return False
    if _last not in _following:
        return _in_row == 1 and bool(known - seen)
    in_row, other = _following[_last]
    return _in_row == in_row and other not in stepped


def holds_batch():
    """Return whether the step goes on to the next batch, whoever takes turns."""
    return bool(known - seen) if _is_by_batch is None else _is_by_batch

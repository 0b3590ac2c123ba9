"""Data loading: a range for each fetch, the size of each batch, and from which pass it is.

Passes over loaders are numbered; a mark tells the number where a thread turns to another one.
Every loop over a DataLoader, those of Lightning, Accelerate and the Trainer too, ends up in the
iterator's ``__next__`` in the main process.
"""

import functools
import itertools
import threading
import weakref

from . import session, steps

local = threading.local()
_passes = weakref.WeakKeyDictionary()  # iterator -> the number of its pass
_numbers = itertools.count(1)
_MAX_DEPTH = 3


def install(torch):
    """Wrap the DataLoader and its iterators."""
    from torch.utils.data import dataloader

    _wrap_next(torch, dataloader._BaseDataLoaderIter)
    _wrap_iter(dataloader.DataLoader)


def _wrap_next(torch, iterator):
    original = iterator.__next__

    @functools.wraps(original)
    def __next__(self):
        if not session.active:
            return original(self)
        emitter = session.emitter()
        steps.fetching(torch.is_grad_enabled() and not _is_exhausted(self))
        _tell_pass(self, emitter)
        local.is_fetching = True
        emitter.push("data", steps.number)
        try:
            batch = original(self)
        except StopIteration:
            emitter.push("data.end", steps.number)  # of no step: the analysis must know
            emitter.pop()
            steps.exhausted()
            raise
        finally:
            emitter.pop()
            local.is_fetching = False
        steps.fetched()
        if not steps.tells_samples:
            emitter.mark("batch", batch_size(torch, batch))
        return batch

    iterator.__next__ = __next__


def _wrap_iter(loader):
    original = loader.__iter__

    @functools.wraps(original)
    def __iter__(self):
        if not session.active:
            return original(self)
        emitter = session.emitter()
        emitter.push("data.start", steps.number)
        try:
            iterator = original(self)
        finally:
            emitter.pop()
        _begin_pass(iterator)  # also where workers stay: the iterator is the same
        return iterator

    loader.__iter__ = __iter__


def _begin_pass(iterator):
    """Give an iterator the next number, and return it; 0 where it cannot be remembered."""
    try:
        number = _passes[iterator] = next(_numbers)
    except TypeError:
        return 0  # of a class of its own that has no hash
    return number


def _tell_pass(iterator, emitter):
    """Mark the number of the pass where it is another than that of the fetch before."""
    try:
        number = _passes.get(iterator)
    except TypeError:
        return
    if number is None:
        number = _begin_pass(iterator)
    if getattr(local, "told", None) != (number, emitter):
        local.told = (number, emitter)
        emitter.mark("data.pass", number)


def _is_exhausted(iterator):
    """Return whether the next fetch will say that there are no more batches, where known."""
    try:
        return iterator._num_yielded >= len(iterator)
    except (AttributeError, TypeError):
        return False


def batch_size(torch, batch, depth=0):
    """Return the first dimension of the first tensor in ``batch``, 0 where there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    if depth > _MAX_DEPTH:
        return 0
    if isinstance(batch, dict):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    else:
        parts = getattr(batch, "__dict__", {}).values()
    for part in parts:
        size = batch_size(torch, part, depth + 1)
        if size:
            return size
    return 0

"""Data loading: a range for each fetch, the samples of each batch, and from which pass it is.

A batch has as many samples as its loader drew: what the program makes of them (images of different
sizes in a list, graphs or sequences laid end to end) does not show it.
Passes over loaders are numbered; a mark tells the number where a thread turns to another one.
Every loop over a DataLoader, those of Lightning, Accelerate and the Trainer too, ends up in the
iterator's ``__next__`` in the main process.
"""

import collections
import functools
import itertools
import threading
import weakref

from . import session, steps
from .replaced import replace

local = threading.local()
_passes = weakref.WeakKeyDictionary()  # iterator -> the number of its pass
_numbers = itertools.count(1)
_MAX_DEPTH = 3


def install_data(torch):
    """Wrap the DataLoader and its iterators."""
    from torch.utils.data import dataloader

    _wrap_draws(dataloader._BaseDataLoaderIter)
    _wrap_next(torch, dataloader._BaseDataLoaderIter, dataloader._DatasetKind.Iterable)
    _wrap_iter(dataloader.DataLoader)


def _wrap_draws(iterator):
    """Keep how many samples were drawn for each batch that is still to come."""
    original = iterator._next_index

    @functools.wraps(original)
    def _next_index(self):
        index = original(self)
        held = getattr(self, "_traceprof_drawn", None)
        if held is None or held[0] is not self._sampler_iter or held[2] is not _passes:
            # A new pass of workers that stay, or of a recording that began inside the program
            waiting = None if _has_begun(self) else collections.deque()
            held = self._traceprof_drawn = (self._sampler_iter, waiting, _passes)
        if held[1] is not None:
            held[1].append(_length(index) if self._auto_collation else 0)
        return index

    replace(iterator, "_next_index", _next_index)


def _has_begun(iterator):
    """Return whether batches were drawn that nobody has noted, and are still to come."""
    return bool(iterator._num_yielded or getattr(iterator, "_send_idx", 0))


def _length(index):
    try:
        return len(index)
    except TypeError:
        return 0  # of a sampler of its own


def _drawn(iterator):
    """Return how many samples were drawn for the batch that came, 0 where it is not known."""
    _, waiting, _ = getattr(iterator, "_traceprof_drawn", (None, None, None))
    return waiting.popleft() if waiting else 0


def _wrap_next(torch, iterator, stream):
    original = iterator.__next__

    @functools.wraps(original)
    def __next__(self):
        if not session.active:
            batch = original(self)
            _drawn(self)
            return batch
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
        drawn = _drawn(self)
        if not steps.tells_samples:
            is_stream = self._dataset_kind == stream
            emitter.mark("batch", n_samples(torch, batch, drawn, is_stream))
        return batch

    replace(iterator, "__next__", __next__)


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

    replace(loader, "__iter__", __iter__)


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


def n_samples(torch, batch, n_drawn, is_stream):
    """Return how many samples ``batch`` has, for which the loader drew ``n_drawn`` (0: not known).

    Of a stream, which may end, there are at most so many. One that was drawn may itself be a batch,
    made by the dataset.
    """
    size = batch_size(torch, batch)
    if not n_drawn:
        return size
    if n_drawn == 1:
        return 1 if _holds_one(batch) else max(size, 1)
    return min(size, n_drawn) if is_stream else n_drawn


def _holds_one(batch):
    """Return whether a batch is a list of one sample, or holds lists of one only."""
    if not isinstance(batch, (list, tuple, dict)):
        return False
    parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
    if len(parts) == 1 and isinstance(parts[0], (list, tuple, dict)):
        return True
    return bool(parts) and all(isinstance(p, (list, tuple)) and len(p) == 1 for p in parts)


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


def install_epochs(_torch):
    """Wrap ``DistributedSampler.set_epoch``, which is called before each epoch."""
    from torch.utils.data.distributed import DistributedSampler

    original = DistributedSampler.set_epoch

    @functools.wraps(original)
    def set_epoch(self, epoch):
        if session.active:
            session.emitter().mark("epoch", epoch)
        return original(self, epoch)

    replace(DistributedSampler, "set_epoch", set_epoch)

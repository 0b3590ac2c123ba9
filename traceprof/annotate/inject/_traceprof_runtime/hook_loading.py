"""Hooks for data loading: a range for each fetch, and the samples and pass number of each batch.

A batch has as many samples as its loader drew. The batch itself may not show the number: a program
may collate images of different sizes into a list, or concatenate graphs or sequences.
Passes over loaders are numbered. A mark contains the number when a thread changes to another pass.
Every loop over a DataLoader, including those of Lightning, Accelerate and the Trainer, calls the
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
_passes = weakref.WeakKeyDictionary()  # iterator -> number of its current pass
_numbers = itertools.count(1)
_MAX_DEPTH = 3


def install_data(torch):
    """Wrap the DataLoader and its iterators."""
    from torch.utils.data import dataloader

    _wrap_draws(dataloader._BaseDataLoaderIter)
    _wrap_next(torch, dataloader._BaseDataLoaderIter, dataloader._DatasetKind.Iterable)
    _wrap_iter(dataloader.DataLoader)


def _wrap_draws(iterator):
    """Note the number of samples drawn for each batch that has not been fetched yet."""
    original = iterator._next_index

    @functools.wraps(original)
    def _next_index(self):
        index = original(self)
        sampler, n_drawn, passes = getattr(self, "_traceprof_drawn", (None, None, None))
        if sampler is not self._sampler_iter or passes is not _passes:
            # A new pass with persistent workers, or of a recording that began inside the program.
            # None: batches of unknown size were drawn before.
            n_drawn = None if _has_begun(self) else collections.deque()
            self._traceprof_drawn = (self._sampler_iter, n_drawn, _passes)
        if n_drawn is not None:
            n_drawn.append(_count_samples(index) if self._auto_collation else 0)
        return index

    replace(iterator, "_next_index", _next_index)


def _has_begun(iterator):
    """Return whether batches were drawn, before this hook, that are not fetched yet."""
    return bool(iterator._num_yielded or getattr(iterator, "_send_idx", 0))


def _count_samples(index):
    """Return the number of indices of a batch; 0 if a custom sampler's index has no length."""
    try:
        return len(index)
    except TypeError:
        return 0


def _take_n_drawn(iterator):
    """Return the number of samples drawn for the fetched batch, and forget it; 0: unknown."""
    _, n_drawn, _ = getattr(iterator, "_traceprof_drawn", (None, None, None))
    return n_drawn.popleft() if n_drawn else 0


def _wrap_next(torch, iterator, stream):
    """Wrap the iterator's ``__next__``; ``stream`` is the dataset kind of an IterableDataset."""
    original = iterator.__next__

    @functools.wraps(original)
    def __next__(self):
        if not session.active:
            batch = original(self)
            _take_n_drawn(self)
            return batch
        steps.begin_fetch(torch.is_grad_enabled() and not _is_exhausted(self))
        emitter = session.emitter()  # after the end of the last step: a capture may begin there
        _mark_pass(self, emitter)
        local.is_fetching = True
        emitter.push("data", steps.number)
        try:
            batch = original(self)
        except StopIteration:
            emitter.push(
                "data.end", steps.number
            )  # for the analysis: this fetch belongs to no step
            emitter.pop()
            steps.end_batches()
            raise
        finally:
            emitter.pop()
            local.is_fetching = False
        steps.end_fetch()
        n_drawn = _take_n_drawn(self)
        if not steps.has_explicit_samples:
            is_stream = self._dataset_kind == stream
            emitter.mark("batch", n_samples(torch, batch, n_drawn, is_stream))
        return batch

    replace(iterator, "__next__", __next__)


def _wrap_iter(loader):
    """Wrap the loader's ``__iter__``, which starts a pass."""
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
        _begin_pass(iterator)  # persistent workers reuse the iterator
        return iterator

    replace(loader, "__iter__", __iter__)


def _begin_pass(iterator):
    """Assign the next pass number to an iterator, and return it; 0 if it cannot be stored."""
    try:
        number = _passes[iterator] = next(_numbers)
    except TypeError:
        return 0  # a custom class without a hash
    return number


def _mark_pass(iterator, emitter):
    """Record a mark with the pass number, if it differs from the thread's previous fetch."""
    try:
        number = _passes.get(iterator)
    except TypeError:
        return
    if number is None:
        number = _begin_pass(iterator)
    if getattr(local, "marked_pass", None) != (number, emitter):
        local.marked_pass = (number, emitter)
        emitter.mark("data.pass", number)


def _is_exhausted(iterator):
    """Return whether the iterator has no more batches; False if unknown."""
    try:
        return iterator._num_yielded >= len(iterator)
    except (AttributeError, TypeError):
        return False


def n_samples(torch, batch, n_drawn, is_stream):
    """Return the number of samples in ``batch``; the loader drew ``n_drawn`` samples (0: unknown).

    A stream may end, so ``n_drawn`` is an upper bound for a stream. If ``n_drawn`` is 1, the sample
    may itself be a batch that the dataset made.
    """
    size = batch_size(torch, batch)
    if not n_drawn:
        return size
    if n_drawn == 1:
        return 1 if _has_one_sample(batch) else max(size, 1)
    return min(size, n_drawn) if is_stream else n_drawn


def _has_one_sample(batch):
    """Return whether a batch is a list of one sample, or contains only lists of length 1."""
    if not isinstance(batch, (list, tuple, dict)):
        return False
    parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
    if len(parts) == 1 and isinstance(parts[0], (list, tuple, dict)):
        return True
    return bool(parts) and all(isinstance(part, (list, tuple)) and len(part) == 1 for part in parts)


def batch_size(torch, batch, depth=0):
    """Return the first dimension of the first tensor in ``batch``; 0 if it contains no tensor."""
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
    """Wrap ``DistributedSampler.set_epoch``, which programs call before each epoch."""
    from torch.utils.data.distributed import DistributedSampler

    original = DistributedSampler.set_epoch

    @functools.wraps(original)
    def set_epoch(self, epoch):
        if session.active:
            session.emitter().mark("epoch", epoch)
        return original(self, epoch)

    replace(DistributedSampler, "set_epoch", set_epoch)

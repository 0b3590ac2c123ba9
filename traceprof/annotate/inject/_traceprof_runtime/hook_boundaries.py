"""Hooks of ``record --always``: only the calls that bound steps, and no ranges.

Forward passes, ``zero_grad``, and collectives are not hooked. A turn is one step of an optimizer.
Steps are bounded by one of two rules, which the turns between two fetches decide:

- by loader: a step lasts from the fetch of its batch to the first fetch after a turn.
- otherwise, a step ends with each turn of the optimizer that steps least. This holds if there is
  no DataLoader in the training thread, or if one optimizer steps several times per batch.

A program without an optimizer of torch is bounded by its backward passes instead. The code is
written for few Python operations per step: `scripts/bench_live` measures them.
"""

import functools
from threading import get_ident
from time import monotonic_ns

from . import hook_loading, hook_optimizers, live, session, steps
from .compiling import is_tracing
from .replaced import replace

_MAX_UNDECIDED_TURNS = 64
_BACKWARD = 0  # stands for an optimizer, in programs that use none of torch


class Boundaries:
    """Finds steps, and gives each of them to ``record((start, end, data, samples))``.

    ``record`` gets ns on the monotonic clock. All methods are called in the training thread;
    ``begin`` is called there before the first turn.
    """

    def __init__(self, record, begin=lambda: None):
        self.record = record
        self.begin = begin
        self.thread = None  # the training thread, once an optimizer has stepped
        self.is_by_loader = None  # None: not decided yet
        self.only = None  # the only optimizer, if loaders bound its steps: it ends none
        self.data_ns = self.n_samples = 0
        self._boundary = None  # the optimizer whose turns end steps, unless loaders bound them
        self._n_turns = 0
        self._counts = {}  # optimizer -> number of its turns, since the start
        self.n_batch_turns = 0  # turns since the last training fetch
        self._batch_counts = {}  # optimizer -> such turns; only filled if there are several
        self._fetch_thread = None  # the thread of the fetches before the first turn
        self.start_ns = 0

    def is_elsewhere(self):
        """Return whether another thread trains; called if this is not the training thread."""
        return self.thread is not None and steps.is_other_thread()

    def begin_fetch(self, now_ns, may_train):
        """End the open step if an optimizer has stepped; begin one if the batch may train."""
        if self.n_batch_turns:
            if may_train:
                self.is_by_loader = self._n_least_turns() == 1
                self.only = next(iter(self._counts)) if self._is_one_by_loader() else None
            if self.is_by_loader:
                self.end_step(now_ns)
                self.n_batch_turns = 0
        elif self.thread is None:
            self._fetch_thread = get_ident()
        if not may_train:
            self.forget_step()  # the time of an evaluation belongs to no step
            return
        self.n_batch_turns = 0
        if not self.start_ns:
            self.start_ns = now_ns

    def _n_least_turns(self):
        """Return the number of turns since the last fetch of the optimizer that stepped least."""
        if not self._batch_counts:
            return self.n_batch_turns
        least = min(self._batch_counts.values())
        self._batch_counts.clear()
        return least

    def end_turn(self, optimizer):
        """Note that an optimizer has stepped; end the open step if this bounds it."""
        self.n_batch_turns += 1
        counts = self._counts
        if self._is_one_by_loader() and optimizer in counts:
            return
        self.only = None
        if not counts or (_BACKWARD in counts and optimizer != _BACKWARD):
            self._begin_turns()
        self._n_turns += 1
        counts[optimizer] = counts.get(optimizer, 0) + 1
        if len(counts) > 1:
            self._batch_counts[optimizer] = self._batch_counts.get(optimizer, 0) + 1
        if self.is_by_loader is None:
            is_without_batch = counts[optimizer] > 1 and not self.data_ns
            if is_without_batch or self._n_turns >= _MAX_UNDECIDED_TURNS:
                self.is_by_loader = False
        if self._n_turns & (self._n_turns - 1) == 0:  # 1, 2, 4, 8 … turns
            is_rarest = counts[optimizer] == min(counts.values())
            self._boundary = optimizer if is_rarest else min(counts, key=counts.__getitem__)
        if self.is_by_loader is False and optimizer == self._boundary:
            now_ns = monotonic_ns()
            self.end_step(now_ns)
            self.start_ns = now_ns

    def _is_one_by_loader(self):
        """Return whether loaders bound the steps of one optimizer: its turns end no steps."""
        return self.is_by_loader and len(self._counts) == 1

    def has_optimizer(self):
        """Return whether an optimizer of torch has stepped."""
        return bool(self._counts) and _BACKWARD not in self._counts

    def _begin_turns(self):
        """Forget everything before the first turn of an optimizer, except a fetched batch."""
        self.begin()
        steps.claim_thread()
        self.thread = get_ident()
        self._counts.clear()
        self._batch_counts.clear()
        self._boundary, self._n_turns, self.n_batch_turns = None, 0, 1
        if self._fetch_thread != self.thread:  # another thread fetches the batches
            self.forget_step()

    def end_step(self, now_ns):
        """Record the open step, if any."""
        if self.start_ns:
            self.record((self.start_ns, now_ns, self.data_ns, self.n_samples))
        self.start_ns = self.data_ns = self.n_samples = 0

    def forget_step(self):
        """Forget the open step, for example because its fetch returned no batch."""
        self.start_ns = self.data_ns = self.n_samples = 0


def install_boundaries(torch):
    """Hook the fetches of DataLoaders, optimizer steps, and backward passes."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterator

    emitter = live.status.emitter
    boundaries = Boundaries(emitter.rows.append, emitter.begin_training)
    session.in_new_process(lambda: boundaries.__init__(boundaries.record, boundaries.begin))
    replace(Iterator, "__next__", _wrap_next(torch, Iterator.__next__, boundaries))
    hook_optimizers.wrap_steps(torch, functools.partial(_wrap_step, boundaries))
    replace(torch.autograd, "backward", _wrap_backward(torch, boundaries))


def _wrap_next(torch, original, boundaries):
    """Return the iterator's ``__next__`` with the boundary of a step.

    The usual fetch, of the next step of one optimizer, is handled here: each call and each object
    costs time in every step.
    """
    is_grad_enabled, tensor, batch_size = (
        torch.is_grad_enabled,
        torch.Tensor,
        hook_loading.batch_size,
    )

    @functools.wraps(original)
    def __next__(self):
        if not session.active or (get_ident() != boundaries.thread and boundaries.is_elsewhere()):
            return original(self)
        may_train = is_grad_enabled()
        start_ns = monotonic_ns()
        is_next_step = boundaries.n_batch_turns == 1 and boundaries.only is not None and may_train
        if is_next_step and boundaries.start_ns:
            boundaries.record(
                (boundaries.start_ns, start_ns, boundaries.data_ns, boundaries.n_samples)
            )
            boundaries.start_ns = start_ns
            boundaries.data_ns = boundaries.n_samples = boundaries.n_batch_turns = 0
        else:
            boundaries.begin_fetch(start_ns, may_train)
        try:
            batch = original(self)
        except StopIteration:
            if boundaries.is_by_loader is not False:
                boundaries.forget_step()
            raise
        if may_train:
            boundaries.data_ns += monotonic_ns() - start_ns
            first = batch[0] if type(batch) in (list, tuple) and batch else None
            shape = first.shape if type(first) is tensor else ()
            if shape:  # the usual batch; `size(0)` takes four times as long
                boundaries.n_samples += shape[0]
            else:
                boundaries.n_samples += batch_size(torch, batch)
        return batch

    return __next__


def _wrap_step(boundaries, original, is_compiling):
    """Return an optimizer's ``step`` that notes its end."""

    def method(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        is_active = session.active or session.resume_in_fork()
        if is_active and not is_compiling():
            if id(self) == boundaries.only and get_ident() == boundaries.thread:
                boundaries.n_batch_turns += 1
            elif get_ident() == boundaries.thread or not boundaries.is_elsewhere():
                boundaries.end_turn(id(self))
        return result

    return hook_optimizers.copy_attributes(method, original)


def _wrap_backward(torch, boundaries):
    """Return ``torch.autograd.backward``, which bounds steps until an optimizer of torch does."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args, **kwargs):
        result = original(*args, **kwargs)
        if boundaries.has_optimizer():
            if torch.autograd.backward is backward:
                torch.autograd.backward = original
            return result
        is_active = session.active or session.resume_in_fork()
        is_here = get_ident() == boundaries.thread or not boundaries.is_elsewhere()
        if is_active and is_here and not is_tracing():
            boundaries.end_turn(_BACKWARD)
        return result

    return backward

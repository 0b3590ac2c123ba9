"""How far the program is, if it states its length, and what it logs: for the live status.

The length comes from a trainer (Hugging Face, Lightning), from a progress bar of tqdm, and from the
batches of the training DataLoader. The thread of the live status reads what these objects store, so
the training loop does no work for it. A program that states no length has no progress.
"""

import functools
import math
import sys
import weakref

from . import session
from .after_import import call_after_import
from .replaced import replace

RUN, EPOCH = "run", "epoch"
_LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
_nothing = weakref.ref(set())  # a reference to an object that is gone
_pass = _trainer_state = _lightning_trainer = _nothing


class ProgressReader:
    """What is done of the run and of the epoch, and since when, for the speed.

    The speed is that of at least the last half of what is done: it includes evaluations, and the
    slow first steps do not count for long.
    """

    def __init__(self):
        self._n_steps = -1
        self._last = {}
        self._marks = {}  # kind -> (source, total), done at the start, last two (done, time)

    def read(self, n_steps, now_ns):
        """Return kind → (done, total, done at an earlier time, that time, source) of the work.

        It is unchanged if no step has ended: an evaluation also moves loaders and bars.
        """
        if n_steps != self._n_steps:
            self._n_steps, self._last = n_steps, {}
            for kind, find in ((RUN, _find_run), (EPOCH, _find_epoch)):
                try:
                    done, total, source = find()
                except Exception:  # objects of other libraries, which the program changes
                    continue
                if 0 <= done <= total and 0 < total < math.inf:
                    mark = self._mark(kind, done, total, source, now_ns)
                    self._last[kind] = (done, total, *mark, source)
        return self._last

    def _mark(self, kind, done, total, source, now_ns):
        """Return an earlier (done, time), of at most half of what is done since the start."""
        known, start, before, last = self._marks.get(kind, (None, 0, None, None))
        if known != (source, total) or done < last[0]:  # new, or begun again
            start, before, last = done, (done, now_ns), (done, now_ns)
        elif done - start >= 2 * max(last[0] - start, 1):
            before, last = last, (done, now_ns)
        self._marks[kind] = (source, total), start, before, last
        return before


_UNKNOWN = -1, 0, ""


def _find_run():
    """Return (done, total, source) of the run; the total is 0 if it is unknown."""
    state, trainer = _trainer_state(), _lightning_trainer()
    if state is not None:
        return state.global_step, state.max_steps, "Trainer"
    if trainer is not None and trainer.training:
        return _progress_of_lightning(trainer)
    return _progress_of_bar()


def _progress_of_lightning(trainer):
    """Return (done, total, source): of the batches of all epochs, or of the steps."""
    batches = trainer.fit_loop.epoch_loop.batch_progress.total.completed
    ends = (  # -1 and None: without limit
        (batches, (trainer.max_epochs or -1) * trainer.num_training_batches, "Lightning"),
        (trainer.global_step, trainer.max_steps, "Lightning"),
    )
    known = [end for end in ends if 0 < end[1] < math.inf]
    return max(known, key=lambda end: end[0] / end[1]) if known else _UNKNOWN


def _progress_of_bar():
    """Return (done, total, source) of the outermost progress bar of tqdm.

    A bar that counts the batches of a pass shows an epoch, not the run. In the middle of an epoch,
    a bar that counts epochs has also done a part of the current one.
    """
    bar_class = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    bars = [bar for bar in list(getattr(bar_class, "_instances", ())) if bar.total]
    if not bars:
        return _UNKNOWN
    bar = min(bars, key=lambda bar: abs(bar.pos))
    n_batches, per_epoch, _ = _find_epoch()
    if bar.total == per_epoch:
        return _UNKNOWN
    part = n_batches / per_epoch if per_epoch and bar.n < bar.total else 0
    return bar.n + part, bar.total, "progress bar"


def _find_epoch():
    """Return (done, total, source) of the current pass over the training data."""
    iterator = _pass()
    try:
        return iterator._num_yielded, len(iterator), "DataLoader"
    except (AttributeError, TypeError):  # none, or a stream of unknown length
        return _UNKNOWN


def read_metrics():
    """Return name → (value, step) of the numbers that a trainer has logged last.

    A tensor on a GPU is not read: its value would make the GPU and this thread wait.
    """
    state, trainer = _trainer_state(), _lightning_trainer()
    try:
        if state is not None:
            logged = [entry for entry in state.log_history[-2:] if "loss" in entry]
            found = dict(logged[-1]) if logged else {}
            step = found.pop("step", state.global_step)
            found.pop("epoch", None)
        elif trainer is not None:
            step = trainer.global_step
            found = {
                name: value.item()
                for name, value in trainer.callback_metrics.items()
                if value.device.type == "cpu"
            }
        else:
            return {}
        return {
            str(name): (value if math.isfinite(value) else None, step)  # JSON has no NaN
            for name, value in found.items()
            if isinstance(value, (int, float))
        }
    except Exception:  # see `ProgressReader.read`
        return {}


def install_progress(torch):
    """Note the passes over training data, and the trainers."""
    loader = torch.utils.data.DataLoader
    original, is_grad_enabled = loader.__iter__, torch.is_grad_enabled

    @functools.wraps(original)
    def __iter__(self):
        iterator = original(self)
        if session.active and is_grad_enabled():
            note_pass(iterator)
        return iterator

    replace(loader, "__iter__", __iter__)
    call_after_import("transformers.trainer_callback", _follow_trainer)
    for name in _LIGHTNING:
        call_after_import(name, _follow_lightning)


def note_pass(iterator):
    """Note that a pass over training data begins."""
    global _pass
    _pass = weakref.ref(iterator)


def _follow_trainer(module):
    """Note the state of Hugging Face's Trainer when it begins to train."""
    original = module.CallbackHandler.on_train_begin

    @functools.wraps(original)
    def on_train_begin(self, args, state, control):
        global _trainer_state
        _trainer_state = weakref.ref(state)
        return original(self, args, state, control)

    replace(module.CallbackHandler, "on_train_begin", on_train_begin)


def _follow_lightning(module):
    """Note a Trainer of Lightning when it begins to fit."""
    original = module.Trainer.fit

    @functools.wraps(original)
    def fit(self, *args, **kwargs):
        global _lightning_trainer
        _lightning_trainer = weakref.ref(self)
        return original(self, *args, **kwargs)

    replace(module.Trainer, "fit", fit)

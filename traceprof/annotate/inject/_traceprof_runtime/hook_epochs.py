"""Epochs by the number that the program gives the sampler of its data."""

import functools

from . import session


def install(_torch):
    """Wrap ``DistributedSampler.set_epoch``, which is called before each epoch."""
    from torch.utils.data.distributed import DistributedSampler

    original = DistributedSampler.set_epoch

    @functools.wraps(original)
    def set_epoch(self, epoch):
        if session.active:
            session.emitter().mark("epoch", epoch)
        return original(self, epoch)

    DistributedSampler.set_epoch = set_epoch

"""Counts the FLOPs of one step with torch's own counter, by module and operator.

The counter intercepts every operator, which is slower and disables torch.compile. So it counts the
second step, which the analysis does not treat as typical. The counts are recorded as metrics as
soon as recording is active.
"""

import os
import threading

from . import session, settings, steps
from .after_import import complain

_COUNTED_STEP = 1  # not step 0, which loads data and allocates memory
_MAX_MODULES = 400  # the whole model and the outermost modules come first
_WHOLE_MODEL = "Global"


def install_flops(torch):
    """Count the FLOPs of a step, if requested."""
    if not settings.FLOPS:
        return
    counter = _Counter(torch)
    steps.on_boundary(counter.at_step)
    session.at_end(counter.finish)


class _Counter:
    """Counts the FLOPs of one step in one process."""

    def __init__(self, torch):
        self._torch = torch
        self._mode = None
        self._flops_by_module = None
        self._is_over = False
        self._process, self._thread = os.getpid(), None

    def at_step(self, number):
        """Begin before the counted step, and end before the next step."""
        if self._process != os.getpid():
            return
        if self._mode is not None and number > _COUNTED_STEP:
            self._end()
        elif not self._is_over and number == _COUNTED_STEP:
            self._begin()
        self._mark_flops()

    def finish(self):
        """Record the counts at the end of the program, if they are not recorded yet."""
        if self._process == os.getpid():
            self._end()
            self._mark_flops()

    def _begin(self):
        self._is_over = True
        try:
            from torch.utils.flop_counter import FlopCounterMode

            mode = FlopCounterMode(display=False)
            mode.__enter__()
        except Exception as error:
            complain("FLOPs are not counted", error)
            return
        self._mode, self._thread = mode, threading.get_ident()

    def _end(self):
        # A mode belongs to the thread that entered it.
        if self._mode is None or self._thread != threading.get_ident():
            return
        mode, self._mode = self._mode, None
        try:
            mode.__exit__(None, None, None)
            self._flops_by_module = mode.get_flop_counts()
        except Exception as error:
            complain("the FLOP count was lost", error)

    def _mark_flops(self):
        """Record the counts once, as metrics ``flop:MODULE|OPERATOR``."""
        if self._flops_by_module is None or not session.active:
            return
        flops_by_module, self._flops_by_module = self._flops_by_module, None
        emitter = session.emitter()
        modules = sorted(
            flops_by_module, key=lambda name: (name != _WHOLE_MODEL, name.count("."), name)
        )
        for module in modules[:_MAX_MODULES]:
            for operator, flops in flops_by_module[module].items():
                emitter.mark("metric:flop:%s|%s" % (module, operator), flops)

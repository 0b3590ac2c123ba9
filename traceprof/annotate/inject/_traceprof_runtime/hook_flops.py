"""The FLOPs of one step, as torch's own counter counts them: by module and operator.

The counter sees every operator of the step, which is slower and runs without torch.compile: it is
the second one, which nobody takes for a typical one. What it counted becomes metrics, as soon as
anything is recorded.
"""

import os
import threading

from . import session, settings, steps
from .after_import import complain

_COUNTED = 1  # the step: the first one loads and allocates
_MOST_MODULES = 400  # with their operators; the whole model comes first
_GLOBAL = "Global"


def install_flops(torch):
    """Count the FLOPs of a step, where that was asked for."""
    if not settings.FLOPS:
        return
    counter = _Counter(torch)
    steps.on_boundary(counter.at_step)
    session.at_end(counter.finish)


class _Counter:
    def __init__(self, torch):
        self._torch = torch
        self._mode = None
        self._found = None
        self._is_over = False
        self._process, self._thread = os.getpid(), None

    def at_step(self, number):
        """Begin before the step that is counted, end before the next one."""
        if self._process != os.getpid():
            return
        if self._mode is not None and number > _COUNTED:
            self._end()
        elif not self._is_over and number == _COUNTED:
            self._begin()
        self._tell()

    def finish(self):
        """Tell what is known at the end of the program."""
        if self._process == os.getpid():
            self._end()
            self._tell()

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
            self._found = mode.get_flop_counts()
        except Exception as error:
            complain("the FLOP count was lost", error)

    def _tell(self):
        if self._found is None or not session.active:
            return
        found, self._found = self._found, None
        emitter = session.emitter()
        modules = sorted(found, key=lambda name: (name != _GLOBAL, name.count("."), name))
        for module in modules[:_MOST_MODULES]:
            for operator, flops in found[module].items():
                emitter.mark("metric:flop:%s|%s" % (module, operator), flops)

"""Starting to record in a process: all of the run, or only the steps or the time asked for."""

import threading
import time

from . import session, settings, steps


def start(prepare=None):
    """Switch recording on unless it is, whatever asks first; return whether it was off.

    ``prepare`` is called before time begins to count.
    """
    if not session.begin():
        return False
    if prepare is not None:
        prepare()
    if settings.STEPS is not None:
        session.hold()
        steps.on_boundary(_at_step)
    elif settings.DELAY_S or settings.DURATION_S:
        session.hold()
        threading.Thread(target=_by_time, name="traceprof-bounds", daemon=True).start()
    return True


def _at_step(number):
    first, last = settings.STEPS
    if number == first:
        session.begin_capture()
    elif number == last + 1:
        session.end_capture()


def _by_time():
    time.sleep(settings.DELAY_S)
    session.begin_capture()
    if settings.DURATION_S:
        time.sleep(settings.DURATION_S)
        session.end_capture()

"""Capturing only some steps, or only some time, of a long run."""

import threading
import time

from . import session, settings, steps


def install():
    """Hold everything back until the capture is due, where the recorder asked for that."""
    if settings.STEPS is None and not settings.DELAY_S and not settings.DURATION_S:
        return
    session.hold()
    if settings.STEPS is not None:
        steps.on_boundary(_at_step)
    else:
        threading.Thread(target=_by_time, name="traceprof-bounds", daemon=True).start()


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

"""What the program names itself, through the functions of the traceprof package."""

import itertools

from . import install, process_record, session, steps

_epochs = itertools.count()


def _emitter():
    """Return where events go, in whatever process this is, with or without torch."""
    install.start(process_record.write_process_record)
    session.follow_fork()
    return session.emitter()


class Range:
    """A range that has begun; `end` ends it."""

    def __init__(self, name, payload):
        self._emitter = _emitter()
        self._is_step = steps.begin_named(name)
        self._emitter.push(name, payload)

    def end(self):
        self._emitter.pop()
        if self._is_step:
            steps.close()


class Step:
    """A step that has begun: it takes the place of those that the hooks find."""

    def __init__(self, number, samples):
        _emitter()  # in a process that was forked: its own state
        self._number = steps.begin_explicit(number, samples is not None)
        self._emitter = session.emitter()
        self._token = self._emitter.start("user_step", self._number)
        if samples is not None:
            self._emitter.mark("batch", samples)

    def end(self):
        self._emitter.end(self._token)
        steps.advance()


class Epoch:
    """An epoch that has begun."""

    def __init__(self, number):
        self._emitter = _emitter()
        self._token = self._emitter.start("epoch", next(_epochs) if number is None else number)

    def end(self):
        self._emitter.end(self._token)


def mark(name, payload):
    """Note an instant."""
    _emitter().mark(name, payload)


def metric(name, value):
    """Note the value of a metric."""
    _emitter().mark("metric:" + name, value)

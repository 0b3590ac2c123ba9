"""Ranges, steps, epochs, and metrics that the program records through the traceprof package."""

import itertools

from . import install, process_record, session, steps

_epochs = itertools.count()


def _emitter():
    """Return the emitter of this process, which may be forked and may lack torch."""
    install.start(process_record.write_process_record)
    session.follow_fork()
    return session.emitter()


class Range:
    """An open range; `end` closes it."""

    def __init__(self, name, payload):
        self._emitter = _emitter()
        self._is_step = steps.begin_named(name)
        self._emitter.push(name, payload)

    def end(self):
        self._emitter.pop()
        if self._is_step:
            steps.close_step()


class Step:
    """An open step; explicit steps replace the steps that the hooks detect."""

    def __init__(self, number, samples):
        _emitter()  # give a forked process its own state first
        self._number = steps.begin_explicit(number, samples is not None)
        self._emitter = session.emitter()
        self._token = self._emitter.start("user_step", self._number)
        if samples is not None:
            self._emitter.mark("batch", samples)

    def end(self):
        self._emitter.end(self._token)
        steps.advance()


class Epoch:
    """An open epoch."""

    def __init__(self, number):
        self._emitter = _emitter()
        self._token = self._emitter.start("epoch", next(_epochs) if number is None else number)

    def end(self):
        self._emitter.end(self._token)


def mark(name, payload):
    """Record a mark at the current time."""
    _emitter().mark(name, payload)


def metric(name, value):
    """Record the value of a metric at the current time."""
    _emitter().mark("metric:" + name, value)

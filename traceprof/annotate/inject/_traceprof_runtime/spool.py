"""The spool: one append-only file of JSON lines per process, written out every 0.2 s.

The first line describes the process. Each other line is
``[start_ns, end_ns, name, payload, thread, kind, details]`` with times in ns since 1970; kind is
``p`` (push/pop range), ``s`` (start/end range), ``m`` (mark, end is null), ``c`` (collective).
A process that is killed loses what the last 0.2 s brought and perhaps the end of a line; how many
events it made is in a file of their number (see the module counts).

A program may close the file and open one of its own, which then has the same descriptor: before
anything is written it is checked that the descriptor is still the spool, and else the spool is
opened again.

What grows without end is thinned: once there are a million rows, of ranges that are not the hooks'
own every second one of each name is kept, after a million of these every fourth, and so on. Marks
say how many of each name were not kept.
"""

import errno
import itertools
import json
import os
import sys
import threading
from contextlib import suppress

from . import settings
from .clock import time_ns
from .counts import ENDED, N_PLACES, SIZE_LIMIT, STOPPED, THINNED, Counts
from .identity import identity

_SECOND_NS = 1000000000
_MANY = 1000000
_MOST_NAMES = 10000
_THINNED = "traceprof.thinned:"
_THINNED_PERIOD_NS = 10 * _SECOND_NS
_OWN = ("step", "step.left", "user_step", "epoch", "data", "data.start", "data.end", "forward")
_OWN += ("eval", "backward", "gradients.kept", "optimizer", "optimizer.skipped", "zero_grad", "h2d")
_OWN = frozenset((*_OWN, "gc", "compile", "init_process_group", "destroy_process_group"))
_LAST_PLACE = N_PLACES - 1
_OWN_BEGIN = ("comm", "traceprof.", "checkpoint.")


class Spool:
    """Collects events in memory and appends them to its file from a thread of its own."""

    def __init__(self, directory, every_second=None):
        self.path = os.path.join(directory, "events.%s.jsonl" % identity())
        self._counts = Counts(directory)
        self._places = self._counts.places
        self._number = itertools.count(self._counts.n_made + 1).__next__
        self._rows = []
        self._local = threading.local()
        self._open = {}
        self._last_token = 0
        self._lock = threading.Lock()
        self._every_second = every_second
        self._file = self._state = None
        self._failed = False
        self._n_bytes = 0
        self._n_kept = 0
        self._seen, self._thinned = {}, {}
        self._thinned_due_ns = 0
        if not os.path.exists(self.path):  # else this program replaced another one (exec)
            self._write(json.dumps({"pid": os.getpid(), "version": 1}) + "\n")
        self._wake = threading.Event()
        if start_thread(self._run, "traceprof-spool") is None:
            _say(
                "process %d cannot start another thread, so its events are written only when it "
                "exits, and lost if it is killed" % os.getpid()
            )

    def push(self, name, payload=0):
        """Open a range on this thread."""
        try:
            stack = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
            self._local.thread = threading.get_native_id()
        stack.append((name, payload, time_ns()))

    def pop(self):
        """Close the innermost open range of this thread."""
        name, payload, start = self._local.stack.pop()
        number = self._number()
        self._places[number & _LAST_PLACE] = number
        self._rows.append((start, time_ns(), name, payload, self._local.thread, "p"))

    def start(self, name, payload=0):
        """Open a range that any thread may end; return its token."""
        with self._lock:
            self._last_token += 1
            token = self._last_token
        self._open[token] = (name, payload, time_ns(), threading.get_native_id())
        return token

    def end(self, token):
        """Close the range that `start` returned ``token`` for."""
        name, payload, start, thread = self._open.pop(token)
        number = self._number()
        self._places[number & _LAST_PLACE] = number
        self._rows.append((start, time_ns(), name, payload, thread, "s"))

    def mark(self, name, payload=0):
        """Note an instant."""
        number = self._number()
        self._places[number & _LAST_PLACE] = number
        self._rows.append((time_ns(), None, name, payload, threading.get_native_id(), "m"))

    def collective(self, start, end, name, n_bytes, thread, details):
        """Note a collective call that is over."""
        number = self._number()
        self._places[number & _LAST_PLACE] = number
        self._rows.append((start, end, name, n_bytes, thread, "c", details))

    def flush(self):
        """Append what has been collected to the file."""
        with self._lock:
            count = len(self._rows)
            if count:
                self._check_size()
                rows = self._thin_out(self._rows[:count])
                self._write("".join(json.dumps(row) + "\n" for row in rows))
                del self._rows[:count]

    def close(self):
        """Flush, and stop writing every second and counting: the recording is over."""
        self._wake.set()
        self._note_thinned()
        self._places = [0] * N_PLACES
        self.flush()
        self._counts.facts[ENDED] = 1

    def counts(self):
        """Return how many events there were, and were thinned out, and why others were lost."""
        made, facts = self._counts.n_made, self._counts.facts
        return {"made": made, "thinned": facts[THINNED], "stopped": facts[STOPPED]}

    def leave_to_parent(self):
        """Count no longer in a process that was forked: what it has of this is its parent's."""
        self._counts.let_go()
        self._places = self._counts.places

    def _thin_out(self, rows):
        """Return those of ``rows`` that are kept."""
        stride = 1 << min(self._n_kept // _MANY, 30)
        if stride == 1:
            self._n_kept += len(rows)
            return rows
        if time_ns() >= self._thinned_due_ns:
            self._thinned_due_ns = time_ns() + _THINNED_PERIOD_NS
            self._note_thinned()
        return [row for row in rows if self._is_kept(row, stride)]

    def _is_kept(self, row, stride):
        name = row[2]
        if row[5] != "p" or name.partition("#")[0] in _OWN or name.startswith(_OWN_BEGIN):
            return True
        if name not in self._seen and len(self._seen) >= _MOST_NAMES:
            name = "other names"
        count = self._seen[name] = self._seen.get(name, -1) + 1
        if count % stride == 0:
            self._n_kept += 1
            return True
        self._thinned[name] = self._thinned.get(name, 0) + 1
        self._counts.facts[THINNED] += 1
        return False

    def _note_thinned(self):
        for name, count in self._thinned.items():
            self.mark(_THINNED + name, count)

    def _check_size(self):
        """Stop at the size that was asked for, and say so."""
        if settings.MAX_BYTES and self._n_bytes > settings.MAX_BYTES and not self._failed:
            self._stop(SIZE_LIMIT, "%s has reached --max-size; recording stopped")

    def _stop(self, why, text):
        self._failed = True
        self._counts.facts[STOPPED] = why
        _say(text % self.path)

    def _write(self, text):
        if self._failed:
            return
        try:
            if self._file is None or _state_of(self._file) != self._state:
                self._open_file()
            data = text.encode("utf-8", "replace")
            self._n_bytes += len(data)
            while data:
                data = data[os.write(self._file, data) :]
            self._state = _state_of(self._file)
        except OSError as error:
            why = str(error).replace("%", "%%")
            self._stop(error.errno or errno.EIO, "events are lost; cannot write %s: " + why)

    def _open_file(self):
        """Open the file; one that the program has closed anew, if it is still there."""
        flags = os.O_WRONLY | os.O_APPEND
        self._file = os.open(self.path, flags if self._state else flags | os.O_CREAT, 0o600)
        state = _state_of(self._file)
        if self._state not in (None, state):
            raise OSError(errno.ESTALE, "the file was replaced")

    def _run(self):
        due_ns = time_ns()
        while not self._wake.wait(settings.FLUSH_PERIOD_S):
            if self._every_second is not None and time_ns() >= due_ns:
                due_ns += _SECOND_NS
                self._every_second()
            self.flush()


def _state_of(descriptor):
    """Return which file a descriptor is, and its size, None where the program has closed it.

    Where our file was removed, too, one of the program's may have its inode, but not its size.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size


def _say(text):
    with suppress(OSError, ValueError, AttributeError):  # the program may have closed it
        sys.stderr.write("traceprof: %s\n" % text)


def start_thread(run, name=None):
    """Return a daemon thread that does ``run()``; None where the machine allows no more threads.

    The program itself must not fail for it.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread

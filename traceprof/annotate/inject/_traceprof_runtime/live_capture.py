"""Captures on request: a running program records its next steps in detail.

`traceprof capture` writes the file ``request.json`` into the folder of the live status. The thread
of the live status reads it; the training loop reads no file. At the requested step, this process
records like a recording that began there: its events in a spool, its operators and GPU activity in
one window of torch's profiler (or its GPU activity with CUPTI), all in the folder ``capture-N`` of
the request. The status of this process shows the progress.

A request can limit the size: of the spool, and of the windows. The first step is then a window of
its own. Its size shows how many more steps have room.
"""

import json
import os

from . import (
    hook_devices,
    hook_windows,
    live,
    live_progress,
    process_record,
    session,
    settings,
    steps,
)
from .after_import import complain

REQUEST = "request.json"
_MAX_REQUEST_BYTES, _MAX_STEPS = 1 << 16, 10000


class Captures:
    """Serves the requests in the folder ``directory`` of the live status, one after another."""

    def __init__(self, status, directory):
        self._status = status
        self._directory = directory
        self._windows = None
        self._stamp = None  # (time, size, inode) of the last request file that was read
        self._last_id = 0
        self._wanted = None  # the request that comes next; see `parse_request`
        self._max_bytes = settings.MAX_BYTES  # of captures whose request has no limit
        self._n_window_bytes = 0  # of the open capture
        self._first_end = None  # the step at which the size of the first step is known
        self._problem = ""  # why a part of the open capture is missing
        self._end = None  # the step at which the open capture ends

    def install(self, torch):
        """Prepare the windows of torch's profiler, once torch is imported."""
        self._windows = hook_windows.windows_on_request(torch)

    def poll(self):
        """Read a new request, in the thread of the live status."""
        path = os.path.join(self._directory, REQUEST)
        try:
            found = os.stat(path)
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp == self._stamp or self._wanted is not None or self._end is not None:
                return
            with open(path, "rb") as file:
                request = parse_request(file.read(_MAX_REQUEST_BYTES))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return  # no request, or a damaged one
        self._stamp = stamp
        number, ranks = request["id"], request["ranks"]
        if number <= self._last_id or (ranks is not None and live.find_rank()[0] not in ranks):
            return
        self._last_id = number
        self._set_state("waiting")
        self._wanted = request

    def forget(self):
        """Forget the requests of the parent in a forked process."""
        self._restore_settings()
        self._wanted = self._end = None
        self._status.capture = {}

    def at_step(self, number):
        """Begin or end a capture if it is due."""
        if self._end is not None:
            if number >= self._end:
                self.stop()
            elif number == self._first_end:
                self._shorten(number)
        elif self._wanted is not None and number >= self._wanted["first"]:
            self._begin(number)

    def _begin(self, number):
        """Begin the requested capture; a failure is reported and does not reach the program."""
        request, self._wanted = self._wanted, None
        n_steps, is_cupti = request["steps"], request["with"] == "cupti"
        folder = os.path.join(self._directory, "capture-%d" % request["id"])
        if not os.path.isdir(folder):
            self._set_state("failed", "the folder of the capture does not exist")
            return
        settings.DIRECTORY = folder
        settings.MAX_BYTES = request["max_bytes"] or self._max_bytes
        self._end = number + n_steps
        self._n_window_bytes, self._first_end = 0, None
        self._set_state("recording", steps=[number, number + n_steps - 1])
        try:
            rank, world_size = live.find_rank()
            process_record.write_process_record(rank=rank, world_size=world_size)
            session.begin_capture()
            self._problem = hook_devices.record_on_request(folder) if is_cupti else ""
            if self._windows is not None and not is_cupti:
                self._first_end = number + 1 if settings.MAX_BYTES else None
                self._windows.open_for(number, n_steps)
        except Exception as error:
            complain("the capture failed", error)
            self._end = None
            session.close_capture()
            self._restore_settings()
            self._set_state("failed", repr(error)[:200])

    def _shorten(self, number):
        """End the window of the first step; record only as many more steps as have room."""
        n_bytes = self._stop_window()
        if not n_bytes:  # lost, or the program has started its own profiler
            return
        n_left = self._end - number
        n_more = max(0, settings.MAX_BYTES - n_bytes) // n_bytes
        if n_more < n_left and not self._problem:
            counts = (n_more + 1, n_left + 1)
            self._problem = "recorded %d of %d steps because of --max-size" % counts
        if n_more:
            self._end = number + min(n_more, n_left)
            self._windows.open_for(number, n_left)
        else:
            self.stop()

    def _stop_window(self):
        """Write the open window, and remove it if it exceeds the limit; return its size."""
        path = self._windows.stop()
        n_bytes = os.path.getsize(path) if path else 0
        self._n_window_bytes += n_bytes
        if n_bytes and 0 < settings.MAX_BYTES < self._n_window_bytes:
            os.unlink(path)
            self._n_window_bytes -= n_bytes
            self._problem = "operators removed because of --max-size"
        return n_bytes

    def stop(self):
        """End the open capture, if any."""
        if self._end is None:
            return
        self._end = None
        try:
            hook_devices.end_request()
            if self._windows is not None:
                self._stop_window()
            counts = session.spool().counts()
            session.close_capture()
            self._set_state("done", error=_problem_of(counts) or self._problem)
        except Exception as error:
            complain("the capture failed", error)
            self._set_state("failed", repr(error)[:200])
        finally:
            self._restore_settings()

    def _restore_settings(self):
        settings.DIRECTORY, settings.MAX_BYTES = self._directory, self._max_bytes

    def _set_state(self, state, error="", **more):
        """Show the state of the current request in the status of this process."""
        before = self._status.capture
        kept = before if before.get("id") == self._last_id else {}
        self._status.capture = dict(kept, id=self._last_id, state=state, error=error, **more)


def _problem_of(counts):
    """Return why the spool stopped writing; "" if it did not."""
    return "events were lost (error %d)" % counts["stopped"] if counts["stopped"] else ""


def parse_request(data):
    """Return a request: id, first, steps, max_bytes (0: no limit), ranks (None: all), and with.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: the text is not a request.
    """
    found = json.loads(data.decode())
    request = {name: int(found[name]) for name in ("id", "first", "steps")}
    request["max_bytes"] = int(found.get("max_bytes") or 0)
    if min(request.values()) < 0 or not request["id"] or not 0 < request["steps"] <= _MAX_STEPS:
        raise ValueError("numbers of a request are out of range")
    ranks = found.get("ranks")
    request["ranks"] = None if ranks is None else {int(rank) for rank in ranks}
    request["with"] = found.get("with")
    return request


captures = None
_has_torch = False


def begin():
    """Begin the live status, and serve requests; called when recording begins in this process."""
    global captures
    live.begin(settings.DIRECTORY)
    captures = Captures(live.status, settings.DIRECTORY)
    if not settings.ALWAYS:  # its hooks are too few for a capture
        live.status.poll = captures.poll
        steps.on_boundary(captures.at_step)
    session.in_new_process(captures.forget)
    session.at_end(_close_without_torch)


def install_live(torch):
    """Prepare captures with torch's profiler; the last hook that is installed."""
    global _has_torch
    if settings.LIVE:
        _has_torch = True
        live_progress.install_progress(torch)
        if not settings.ALWAYS:
            captures.install(torch)
        session.at_end(_close)  # after the last step is closed


def _close():
    """End the open capture, and write the status for the last time."""
    captures.stop()
    live.status.close()


def _close_without_torch():
    if not _has_torch:
        _close()

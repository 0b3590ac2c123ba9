"""The spool: one append-only file of JSON lines per process, flushed every 0.2 s.

The first line describes the process. Each other line is
``[start_ns, end_ns, name, payload, thread, kind, details]`` with times in ns since 1970; kind is
``p`` (push/pop range), ``s`` (start/end range), ``m`` (mark, end is null), ``c`` (collective).
A killed process loses the events of the last 0.2 s and perhaps the end of a line. A file of counts
shows how many events it had recorded (see `_Counts`).

A program may close the file and open its own file with the same descriptor number. So every write
first checks that the descriptor is still the spool, and reopens the spool if it is not.

Long recordings are thinned. After a million rows, the spool keeps every second range of each name,
after another million every fourth, and so on. Ranges of the hooks are always kept. Marks report
how many ranges of each name were dropped.
"""

import ctypes
import errno
import itertools
import json
import mmap
import os
import sys
import threading
from contextlib import suppress

from . import settings
from .clock import time_ns
from .identity import identity

_SECOND_NS = 1000000000
_ROWS_PER_HALVING = 1000000
_MAX_NAMES = 10000
_THINNED_MARK = "traceprof.thinned:"
_THINNED_PERIOD_NS = 10 * _SECOND_NS
# Ranges that are never thinned: those of the hooks, and names with these prefixes
_HOOK_RANGES = {
    "step",
    "step.left",
    "user_step",
    "epoch",
    "data",
    "data.start",
    "data.end",
    "forward",
    "eval",
    "backward",
    "gradients.kept",
    "optimizer",
    "optimizer.skipped",
    "zero_grad",
    "h2d",
    "gc",
    "compile",
    "init_process_group",
    "destroy_process_group",
    *("generation", "environment", "reward", "logprobs", "advantage", "weight_sync", "sleep_wake"),
    *("rollout", "rollout.used", "update"),
}
_HOOK_RANGE_PREFIXES = ("comm", "traceprof.", "checkpoint.")
_THINNED, _STOPPED, _ENDED = 1, 2, 3  # indices of the facts in the counts
_SIZE_LIMIT = 1 << 32  # larger than any errno
_MAGIC = 0x31544E4350545054
_N_FACTS, _N_SLOTS = 8, 64
_SLOT_MASK = _N_SLOTS - 1
_N_BYTES = 8 * (_N_FACTS + _N_SLOTS)
_PAGE_BYTES = 4096
_IN_PLACE_FILE_SYSTEMS = {"tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "overlay"}


class Spool:
    """Collects events in memory and appends them to its file from a thread of its own.

    ``call_every_second`` is a function that this thread calls every second.
    """

    def __init__(self, directory, call_every_second=None):
        self.path = os.path.join(directory, "events.%s.jsonl" % identity())
        self._counts = _Counts(directory)
        self._slots = self._counts.slots
        self._next_number = itertools.count(self._counts.n_made + 1).__next__
        self._rows = []
        self._local = threading.local()
        self._open_ranges = {}
        self._last_token = 0
        self._lock = threading.Lock()
        self._call_every_second = call_every_second
        self._file = self._file_state = None
        self._is_stopped = False
        self._n_written_bytes = 0
        self._n_kept_rows = 0
        self._n_seen_by_name, self._n_thinned_by_name = {}, {}
        self._thinned_marks_due_ns = 0
        if not os.path.exists(self.path):  # otherwise this program replaced another one (exec)
            self._write(json.dumps({"pid": os.getpid(), "version": 1}) + "\n")
        self._is_closed = threading.Event()
        if start_thread(self._run, "traceprof-spool") is None:
            _print_warning(
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
        name, payload, start_ns = self._local.stack.pop()
        number = self._next_number()
        self._slots[number & _SLOT_MASK] = number
        self._rows.append((start_ns, time_ns(), name, payload, self._local.thread, "p"))

    def add_past(self, start_ns, end_ns, name, payload=0):
        """Record a range of this thread that has ended."""
        number = self._next_number()
        self._slots[number & _SLOT_MASK] = number
        thread = threading.get_native_id()
        self._rows.append((start_ns, end_ns, name, payload, thread, "p"))

    def start(self, name, payload=0):
        """Open a range that any thread may end; return its token."""
        with self._lock:
            self._last_token += 1
            token = self._last_token
        self._open_ranges[token] = (name, payload, time_ns(), threading.get_native_id())
        return token

    def end(self, token):
        """End the range whose `start` returned ``token``."""
        name, payload, start_ns, thread = self._open_ranges.pop(token)
        number = self._next_number()
        self._slots[number & _SLOT_MASK] = number
        self._rows.append((start_ns, time_ns(), name, payload, thread, "s"))

    def mark(self, name, payload=0):
        """Record a mark at the current time."""
        number = self._next_number()
        self._slots[number & _SLOT_MASK] = number
        self._rows.append((time_ns(), None, name, payload, threading.get_native_id(), "m"))

    def collective(self, start_ns, end_ns, name, n_bytes, thread, details):
        """Record a completed collective call."""
        number = self._next_number()
        self._slots[number & _SLOT_MASK] = number
        self._rows.append((start_ns, end_ns, name, n_bytes, thread, "c", details))

    def flush(self, patience_s=-1):
        """Append the collected rows to the file.

        Give up if another flush lasts longer than ``patience_s`` (-1: wait for it): a signal
        handler may have interrupted that flush.
        """
        if not self._lock.acquire(timeout=patience_s):
            return
        try:
            count = len(self._rows)
            if count:
                self._check_size()
                rows = self._thin_out(self._rows[:count])
                self._write("".join(json.dumps(row) + "\n" for row in rows))
                del self._rows[:count]
        finally:
            self._lock.release()

    def close(self):
        """Flush the last rows and stop the thread and the counting: the recording is over."""
        self._is_closed.set()
        self._mark_thinned()
        self._slots = [0] * _N_SLOTS
        self.flush()
        self._counts.facts[_ENDED] = 1

    def counts(self):
        """Return the numbers of recorded and thinned events, and why writing stopped (or 0)."""
        made, facts = self._counts.n_made, self._counts.facts
        return {"made": made, "thinned": facts[_THINNED], "stopped": facts[_STOPPED]}

    def leave_to_parent(self):
        """Stop counting in a forked process, whose copy of this spool belongs to the parent."""
        self._counts.detach()
        self._slots = self._counts.slots

    def _thin_out(self, rows):
        """Return the rows to keep."""
        stride = 1 << min(self._n_kept_rows // _ROWS_PER_HALVING, 30)
        if stride == 1:
            self._n_kept_rows += len(rows)
            return rows
        if time_ns() >= self._thinned_marks_due_ns:
            self._thinned_marks_due_ns = time_ns() + _THINNED_PERIOD_NS
            self._mark_thinned()
        return [row for row in rows if self._is_kept(row, stride)]

    def _is_kept(self, row, stride):
        """Return whether to keep a row when every ``stride``-th range of each name is kept."""
        name = row[2]
        if (
            row[5] != "p"
            or name.partition("#")[0] in _HOOK_RANGES
            or name.startswith(_HOOK_RANGE_PREFIXES)
        ):
            return True
        if name not in self._n_seen_by_name and len(self._n_seen_by_name) >= _MAX_NAMES:
            name = "other names"
        count = self._n_seen_by_name[name] = self._n_seen_by_name.get(name, -1) + 1
        if count % stride == 0:
            self._n_kept_rows += 1
            return True
        self._n_thinned_by_name[name] = self._n_thinned_by_name.get(name, 0) + 1
        self._counts.facts[_THINNED] += 1
        return False

    def _mark_thinned(self):
        """Record a mark with the number of dropped ranges, for each name."""
        for name, count in self._n_thinned_by_name.items():
            self.mark(_THINNED_MARK + name, count)

    def _check_size(self):
        """Stop writing and print a warning if the file has reached the size limit."""
        if (
            settings.MAX_BYTES
            and self._n_written_bytes > settings.MAX_BYTES
            and not self._is_stopped
        ):
            self._stop(_SIZE_LIMIT, "%s has reached --max-size; recording stopped")

    def _stop(self, cause, text):
        """Stop writing; ``cause`` is an errno or `_SIZE_LIMIT`, and ``%s`` in ``text`` the path."""
        self._is_stopped = True
        self._counts.facts[_STOPPED] = cause
        _print_warning(text % self.path)

    def _write(self, text):
        """Append ``text`` to the file, after checking that the descriptor is still the spool."""
        if self._is_stopped:
            return
        try:
            if self._file is None or _read_file_state(self._file) != self._file_state:
                self._open_file()
            data = text.encode("utf-8", "replace")
            self._n_written_bytes += len(data)
            while data:
                data = data[os.write(self._file, data) :]
            self._file_state = _read_file_state(self._file)
        except OSError as error:
            reason = str(error).replace("%", "%%")
            self._stop(error.errno or errno.EIO, "events are lost; cannot write %s: " + reason)

    def _open_file(self):
        """Open the file; reopen the same file if the program has closed its descriptor.

        Raises:
            OSError: The file was removed or replaced.
        """
        flags = os.O_WRONLY | os.O_APPEND
        self._file = os.open(self.path, flags if self._file_state else flags | os.O_CREAT, 0o600)
        state = _read_file_state(self._file)
        if self._file_state not in (None, state):
            raise OSError(errno.ESTALE, "the file was replaced")

    def _run(self):
        """Flush periodically until the spool is closed."""
        due_ns = time_ns()
        while not self._is_closed.wait(settings.FLUSH_PERIOD_S):
            if self._call_every_second is not None and time_ns() >= due_ns:
                due_ns += _SECOND_NS
                self._call_every_second()
            self.flush()


def _read_file_state(descriptor):
    """Return device, inode and size of an open file; None if the program has closed the descriptor.

    If our file was removed, a file of the program may have its inode, but not also its size.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size


def _print_warning(text):
    with suppress(OSError, ValueError, AttributeError):  # the program may have closed stderr
        sys.stderr.write("traceprof: %s\n" % text)


def start_thread(run, name=None):
    """Return a daemon thread that runs ``run()``; None if the machine allows no more threads.

    A missing thread must not make the program fail.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


class _Counts:
    """The number of events that this process has recorded, in a file that survives its end.

    ``slots`` are the last event numbers, ``facts`` the other numbers.

    The file ``counts.PID.NAMESPACE-START`` is mapped into memory. Counting needs no system call,
    and the numbers remain after ``kill -9``. The file contains 72 numbers of 64 bits:

    - 1 magic number
    - 1 number of thinned rows
    - 1 reason why writing stopped: an errno, or `_SIZE_LIMIT`; 0: it has not stopped
    - 1 flag: the process has ended in order
    - 4 unused numbers
    - 64 slots for event numbers: event n is in slot n % 64, so that threads do not overwrite each
      other's numbers. The largest is the number of events.

    Some file systems write each change to a new place. If their disk is full, writing to a mapped
    page kills the process (SIGBUS). On file systems that are not known to write in place, the
    numbers stay in memory and are written to the end record of the process.
    """

    def __init__(self, directory):
        self._use(_map_numbers(directory) or memoryview(bytearray(_N_BYTES)).cast("Q"))

    def _use(self, numbers):
        """Use ``numbers``, a memoryview of 64-bit numbers, from now on."""
        self._numbers = numbers
        self.facts, self.slots = numbers[:_N_FACTS], numbers[_N_FACTS:]

    @property
    def n_made(self):
        """The number of recorded events."""
        return max(self.slots)

    def detach(self):
        """Leave the file unchanged; count in the memory of this process from now on."""
        self._use(memoryview(bytearray(self._numbers)).cast("Q"))


def _map_numbers(directory):
    """Return the numbers of this process's file; None if the file cannot be mapped safely."""
    with suppress(OSError, ValueError, AttributeError, IndexError):
        if _writes_in_place(directory):
            numbers = _map_file(os.path.join(directory, "counts." + identity()))
            if numbers is not None:
                numbers[0] = _MAGIC
                numbers[_STOPPED] = numbers[_ENDED] = 0  # set by a previous program (exec)
            return numbers
    return None


def _map_file(path):
    """Return the mapped numbers of a file; None if the disk has no room for them."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(file).st_size < _PAGE_BYTES and not _reserve(file):
            os.unlink(path)
            return None
        return _map_page(file)
    finally:
        os.close(file)


def _reserve(file):
    """Write a page, to reserve its disk space; return whether there was room."""
    try:
        return os.write(file, bytes(_PAGE_BYTES)) == _PAGE_BYTES
    except OSError:
        return False


def _map_page(file):
    """Map the page permanently; None if that fails.

    Python's module mmap would keep a descriptor open, which programs may close.
    """
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
    address = function(
        None, _PAGE_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0
    )
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    page = (ctypes.c_char * _N_BYTES).from_address(address)
    return memoryview(page).cast("B").cast("Q")


def _writes_in_place(directory):
    """Return whether the folder's file system writes a page again without allocating space."""
    device = os.stat(directory).st_dev
    device_number = "%d:%d" % (os.major(device), os.minor(device))
    with open("/proc/self/mountinfo", errors="replace") as file:
        file_systems = {
            line.rpartition(" - ")[2].split()[0]
            for line in file
            if line.split()[2] == device_number
        }
    if "overlay" in file_systems and not os.statvfs(directory).f_files:
        return False  # the overlay is on Btrfs, which reports no number of inodes
    return bool(file_systems) and file_systems <= _IN_PLACE_FILE_SYSTEMS

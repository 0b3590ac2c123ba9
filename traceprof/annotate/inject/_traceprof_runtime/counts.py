"""How many events this process has made, in a file that outlives it however it ends.

The file ``counts.PID.NAMESPACE-START`` is mapped into memory: to count takes no system call, and
the numbers are there after ``kill -9``. It has 72 numbers of 64 bits: a mark, how many rows were
thinned out, why no more is written (an errno, or `SIZE_LIMIT`; 0: it is), whether the process has
ended in order, four that are not used, and 64 numbers of events. Event n is in place n % 64 of
these, so that threads do not overwrite each other's: the largest is how many events were made.

To write to a mapped page whose disk is full ends a process (SIGBUS) where a file system puts each
change in a new place. On any that is not known to write in place the numbers stay in memory, and
are in the record of the end of the process.
"""

import ctypes
import mmap
import os
from contextlib import suppress

from .identity import identity

THINNED, STOPPED, ENDED = 1, 2, 3
SIZE_LIMIT = 1 << 32  # no errno
_MARK = 0x31544E4350545054
_N_FACTS, N_PLACES = 8, 64
_N_BYTES = 8 * (_N_FACTS + N_PLACES)
_PAGE = 4096
_IN_PLACE = {"tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "overlay"}


class Counts:
    """``places`` are the numbers of the last events, ``facts`` the others."""

    def __init__(self, directory):
        self._take(_mapped(directory) or memoryview(bytearray(_N_BYTES)).cast("Q"))

    def _take(self, numbers):
        self._numbers = numbers
        self.facts, self.places = numbers[:_N_FACTS], numbers[_N_FACTS:]

    @property
    def n_made(self):
        """How many events were made."""
        return max(self.places)

    def let_go(self):
        """Leave the file as it is; what is counted from now on stays in this process."""
        self._take(memoryview(bytearray(self._numbers)).cast("Q"))


def _mapped(directory):
    """Return the numbers of this process's file, None where they cannot be mapped safely."""
    with suppress(OSError, ValueError, AttributeError, IndexError):
        if _writes_in_place(directory):
            numbers = _of_file(os.path.join(directory, "counts." + identity()))
            if numbers is not None:
                numbers[0] = _MARK
                numbers[STOPPED] = numbers[ENDED] = 0  # of the program before this one (exec)
            return numbers
    return None


def _of_file(path):
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(file).st_size < _PAGE and not _reserve(file):
            os.unlink(path)
            return None
        return _map(file)
    finally:
        os.close(file)


def _reserve(file):
    """Write the page, so that the disk has room for it; return whether it has."""
    try:
        return os.write(file, bytes(_PAGE)) == _PAGE
    except OSError:
        return False


def _map(file):
    """Map the page for good. The module mmap would keep a descriptor, which programs close."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
    address = function(None, _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    page = (ctypes.c_char * _N_BYTES).from_address(address)
    return memoryview(page).cast("B").cast("Q")


def _writes_in_place(directory):
    """Return whether the file system of a folder needs no more room to write a page again."""
    device = os.stat(directory).st_dev
    wanted = "%d:%d" % (os.major(device), os.minor(device))
    with open("/proc/self/mountinfo", errors="replace") as file:
        kinds = {line.rpartition(" - ")[2].split()[0] for line in file if line.split()[2] == wanted}
    if "overlay" in kinds and not os.statvfs(directory).f_files:
        return False  # Btrfs lies below: it has no number of inodes
    return bool(kinds) and kinds <= _IN_PLACE

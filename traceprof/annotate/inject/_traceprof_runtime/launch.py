"""Becomes the recorded program, with other streams: launch.py STDOUT STDERR MARKER PROGRAM ...

A profiler that runs a program puts pipes in the place of its output and mixes its own messages
in. Started by the profiler in the program's place, this script puts the streams of traceprof
back (as the file descriptors STDOUT and STDERR, which the profiler hands down) and the folder for
temporary files (the variable TRACEPROF_TMPDIR, empty for none), leaves its process id and that of
its parent in MARKER to say that the program was started, and becomes the program.
"""

from __future__ import annotations

import os
import signal
import sys

TMPDIR = "TRACEPROF_TMPDIR"


def main() -> None:
    """Become the program."""
    stdout, stderr = int(sys.argv[1]), int(sys.argv[2])
    marker = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(marker, f"{os.getpid()} {os.getppid()}".encode())
    os.close(marker)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    if TMPDIR in os.environ:
        folder = os.environ.pop(TMPDIR)
        if folder:
            os.environ["TMPDIR"] = folder
        else:
            del os.environ["TMPDIR"]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; programs expect not to
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[4], sys.argv[4:])
    except OSError as error:
        sys.stderr.write(f"traceprof: {sys.argv[4]}: cannot be started ({error.strerror})\n")
        sys.exit(127)


if __name__ == "__main__":
    main()

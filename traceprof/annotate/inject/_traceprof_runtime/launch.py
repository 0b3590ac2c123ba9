"""Becomes the recorded program with restored streams: launch.py STDOUT STDERR MARKER PROGRAM ...

A profiler that runs a program replaces the program's output streams by pipes and mixes in its own
messages. The profiler starts this script instead of the program. The script

- restores traceprof's streams (the inherited file descriptors STDOUT and STDERR),
- restores the folder for temporary files (the variable TRACEPROF_TMPDIR; empty: none),
- writes its PID and its parent's PID to MARKER, which shows that the program was started,
- and becomes the program.
"""

from __future__ import annotations

import os
import signal
import sys

TMPDIR = "TRACEPROF_TMPDIR"


def main() -> None:
    """Restore the streams, the folder, and the signals, then execute the program."""
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
    # Python ignores these signals; programs expect the default action.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[4], sys.argv[4:])
    except OSError as error:
        sys.stderr.write(f"traceprof: {sys.argv[4]}: cannot be started ({error.strerror})\n")
        sys.exit(127)


if __name__ == "__main__":
    main()

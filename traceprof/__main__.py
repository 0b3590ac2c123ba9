"""``traceprof`` and ``python -m traceprof``: the command line from its first moment."""

import os
import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it at any time, without a traceback."""
    if sys.argv[1:2] != ["record"]:
        # numpy starts threads for linear algebra, which nothing here uses; where memory or
        # processes are limited, they cannot start and end the program. Who records keeps theirs.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from traceprof.cli import main as run  # noqa: PLC0415 (Ctrl-C comes while it is imported)

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what Python still tidies up says nothing


if __name__ == "__main__":
    main()

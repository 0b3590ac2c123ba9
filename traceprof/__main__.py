"""``traceprof`` and ``python -m traceprof``: the command line from its first moment."""

import os
import signal
import sys

_LEAST_BYTES = 288 << 20
"""What pandas and Arrow take before anything is read. With less their libraries end the program in
ways of their own."""


def main() -> None:
    """Run the command line; Ctrl-C ends it at any time, without a traceback."""
    if not {"-h", "--help", "--version"} & {*sys.argv}:
        _require_memory()
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


def _require_memory() -> None:
    try:
        import resource  # noqa: PLC0415 (there is none on Windows)
    except ImportError:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_BYTES:
        sys.stderr.write(
            f"traceprof: not enough memory: {limit >> 20} MiB are allowed here (ulimit -v), "
            f"{_LEAST_BYTES >> 20} are the least\n"
        )
        sys.exit(1)


if __name__ == "__main__":
    main()

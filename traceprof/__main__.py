"""Entry point of ``traceprof`` and ``python -m traceprof``; handles signals from the start."""

from __future__ import annotations

try:
    import atexit
    import contextlib
    import gc
    import os
    import signal
    import sys
except KeyboardInterrupt:  # Ctrl-C during the first imports
    raise SystemExit(130) from None

_MIN_MEMORY_BYTES = 288 << 20
"""Address space that pandas and Arrow need before traceprof reads anything.

With less, these libraries abort the process without a traceprof message.
"""


_GC_THRESHOLD_OBJECTS = 200_000
"""Allocations between garbage collections. Python's default is 700, but the imports alone create
100,000 objects that stay alive.
"""

_REPEAT_INTERRUPT_S = 0.2
"""Interval at which an interrupt is raised again until code stops swallowing it."""


_ending_signals = [int(signal.SIGINT)]
"""Signals that ended the command; the last one sets the exit code. SIGINT if there was none."""


def main() -> None:
    """Run the command line. Ctrl-C, SIGTERM, and SIGHUP end it at any time, without a traceback.

    An interrupted command leaves no partial files behind.
    """
    options = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    is_help = bool({"-h", "--help", "-V", "--version", "help"} & {*options})
    if not is_help:
        _require_memory()
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command not in ("record", "recover", "try"):  # these handle signals themselves
        _insist_on_interrupts()
    is_running = command in ("record", "try") and not is_help
    if not is_running:
        gc.set_threshold(_GC_THRESHOLD_OBJECTS, *gc.get_threshold()[1:])
    try:
        _limit_numpy_threads(for_programs=is_running)
        from traceprof.cli import main as run  # noqa: PLC0415 (Ctrl-C during the import)
        from traceprof.cli.streams import ensure_complete_writes  # noqa: PLC0415

        ensure_complete_writes()
        run()
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and ended.code != 128 + signal.SIGINT:
            raise
        _exit_with_daemon_threads(128 + _ending_signals[-1])
        sys.exit(128 + _ending_signals[-1])
    finally:
        gc.freeze()  # skips the final garbage collection: a tenth of the time of `traceprof info`
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no message while Python shuts down


def _exit_with_daemon_threads(exit_code: int) -> None:
    """Exit the process immediately if a daemon thread is still running.

    The interpreter's normal shutdown stops such a thread inside a C++ library, which then aborts.
    """
    import threading  # noqa: PLC0415 (most commands start none)

    if any(thread.daemon for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code)


def _limit_numpy_threads(*, for_programs: bool) -> None:
    """Keep numpy from starting linear algebra threads, which traceprof does not use.

    Where memory or processes are limited, starting them fails and ends the process. With
    ``for_programs``, the variable is removed again, so that recorded programs keep their own
    threads.
    """
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        if for_programs:
            import numpy  # noqa: F401, PLC0415 (numpy reads the variable at import)

            del os.environ["OPENBLAS_NUM_THREADS"]


def _insist_on_interrupts() -> None:
    """Let Ctrl-C and termination signals end the program even where their exception is swallowed.

    Garbage collector callbacks and imported libraries swallow exceptions.
    """
    if not hasattr(signal, "setitimer"):
        return
    default_hook = sys.unraisablehook

    def report_others(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            default_hook(unraisable)

    sys.unraisablehook = report_others
    signal.signal(signal.SIGALRM, _repeat_interrupt)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored: a background job, or nohup
            signal.signal(number, _interrupt)


def _repeat_interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt again, unless one is already being handled."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return  # the interrupt is already being handled
        error = error.__context__
    raise KeyboardInterrupt


def _interrupt(number: int, _frame: object) -> None:
    """Note the signal, raise KeyboardInterrupt, and start the timer that repeats it."""
    _ending_signals.append(number)
    signal.setitimer(signal.ITIMER_REAL, _REPEAT_INTERRUPT_S, _REPEAT_INTERRUPT_S)
    raise KeyboardInterrupt


def _require_memory() -> None:
    """Exit with an error message if the address space limit is below `_MIN_MEMORY_BYTES`."""
    try:
        import resource  # noqa: PLC0415 (not available on Windows)
    except ImportError:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _MIN_MEMORY_BYTES:
        sys.stderr.write(
            f"traceprof: not enough memory: {limit >> 20} MiB are allowed here (ulimit -v), "
            f"{_MIN_MEMORY_BYTES >> 20} are the least\n"
        )
        sys.exit(1)


if __name__ == "__main__":
    main()

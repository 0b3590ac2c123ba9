"""``traceprof`` and ``python -m traceprof``: the command line from its first moment."""

from __future__ import annotations

try:
    import atexit
    import contextlib
    import gc
    import os
    import signal
    import sys
except KeyboardInterrupt:  # in the very first moments
    raise SystemExit(130) from None

_MIN_MEMORY_BYTES = 288 << 20
"""What pandas and Arrow take before anything is read. With less their libraries end the program in
ways of their own."""


_GC_THRESHOLD_OBJECTS = 200_000
"""Python looks for garbage after each 700 objects, of which imports make 100 000 that stay."""

_REPEAT_INTERRUPT_S = 0.2
"""How soon Ctrl-C is said again to what has swallowed it."""


_ending_signals = [int(signal.SIGINT)]
"""What ended the command, if something did: the last one."""


def main() -> None:
    """Run the command line; Ctrl-C, SIGTERM and SIGHUP end it at any time, without a traceback.

    Nothing half stays behind.
    """
    options = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    is_help = bool({"-h", "--help", "-V", "--version", "help"} & {*options})
    if not is_help:
        _require_memory()
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command not in ("record", "recover", "try"):  # these end in ways of their own
        _insist_on_interrupts()
    is_running = command in ("record", "try") and not is_help
    if not is_running:
        gc.set_threshold(_GC_THRESHOLD_OBJECTS, *gc.get_threshold()[1:])
    try:
        _limit_numpy_threads(for_programs=is_running)
        from traceprof.cli import main as run  # noqa: PLC0415 (Ctrl-C comes while it is imported)
        from traceprof.cli.streams import write_wholly  # noqa: PLC0415

        write_wholly()
        run()
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and ended.code != 128 + signal.SIGINT:
            raise
        _exit_with_daemon_threads(128 + _ending_signals[-1])
        sys.exit(128 + _ending_signals[-1])
    finally:
        gc.freeze()  # the interpreter looks for garbage once more at its end: a tenth of `info`
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what Python still tidies up says nothing


def _exit_with_daemon_threads(exit_code: int) -> None:
    """End the program if another thread is still at work.

    The interpreter's own end would pull such a thread out of libraries in C++, which abort then.
    """
    import threading  # noqa: PLC0415 (most commands start none)

    if any(thread.daemon for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code)


def _limit_numpy_threads(*, for_programs: bool) -> None:
    """Let numpy start no threads for linear algebra, which nothing here uses.

    Where memory or processes are limited they cannot start and end this program. Programs that it
    runs start theirs.
    """
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        if for_programs:
            import numpy  # noqa: F401, PLC0415 (it looks at its variable now)

            del os.environ["OPENBLAS_NUM_THREADS"]


def _insist_on_interrupts() -> None:
    """Let Ctrl-C, and what ends programs, end this one where its exception is swallowed, too.

    So it is in callbacks of the garbage collector, and in libraries that are imported.
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
        if signal.getsignal(number) is not signal.SIG_IGN:  # in the background, or by nohup
            signal.signal(number, _interrupt)


def _repeat_interrupt(*_: object) -> None:
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return  # it is on its way, and things are tidied up
        error = error.__context__
    raise KeyboardInterrupt


def _interrupt(number: int, _frame: object) -> None:
    _ending_signals.append(number)
    signal.setitimer(signal.ITIMER_REAL, _REPEAT_INTERRUPT_S, _REPEAT_INTERRUPT_S)
    raise KeyboardInterrupt


def _require_memory() -> None:
    try:
        import resource  # noqa: PLC0415 (there is none on Windows)
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

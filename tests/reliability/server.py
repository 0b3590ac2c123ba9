"""A process that has imported everything and forks for every command: faults hit the work itself.

``python -m tests.reliability.server`` reads a JSON object per line from standard input, runs the
command line in a child, and answers with a line when the child is over.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import sys
import time
from typing import Any

from tests.forking import import_everything

STEPS = frozenset(
    ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate")
)
"""What a process does to folders and files, as Python's audit events name it."""
_REMOVING = frozenset(("os.remove", "os.rmdir"))
_PR_SET_PDEATHSIG = 1


def is_step(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether an audit event changes files, or begins to."""
    if event != "open":
        return event in STEPS or event == "sqlite3.connect"
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def inject(asked: dict[str, Any], hit: mmap.mmap) -> None:
    """Let something happen at the n-th step of writing: a signal, or an error of the system.

    ``hit`` becomes 1 when that step is reached, 2 where something would be removed.
    """
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if not is_step(event, arguments):
            return
        seen += 1
        if seen != asked["step"]:
            return
        hit[0] = 2 if event in _REMOVING else 1
        if asked.get("signal"):
            os.kill(os.getpid(), asked["signal"])
        elif asked.get("errno"):
            raise OSError(asked["errno"], os.strerror(asked["errno"]), str(arguments[0]))

    sys.addaudithook(hook)


def run_command(asked: dict[str, Any], hit: mmap.mmap) -> None:
    """Become the command line; never returns."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
        if asked.get("is_buffered"):  # the server itself has PYTHONUNBUFFERED
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8"))
    os.environ.update(asked.get("environment", {}))
    os.chdir(asked["folder"])
    if "file_bytes" in asked:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["file_bytes"],) * 2)
    if "memory_bytes" in asked:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + asked["memory_bytes"],) * 2)
    if "cpu_s" in asked:
        resource.setrlimit(resource.RLIMIT_CPU, (asked["cpu_s"],) * 2)
    jump_clock(asked.get("clock_offset_s", 0.0))
    if "user" in asked:
        os.setgid(asked["user"])
        os.setuid(asked["user"])
    if "step" in asked:
        inject(asked, hit)
    sys.argv = ["traceprof", *asked["arguments"]]
    code = 0
    try:
        from traceprof.__main__ import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code)


def jump_clock(offset_s: float) -> None:
    """Let wall time jump back and forth by ``offset_s`` between any two looks at it."""
    if not offset_s:
        return
    real, real_ns, looks = time.time, time.time_ns, [0]

    def jumped() -> float:
        looks[0] += 1
        return offset_s * (looks[0] % 2)

    time.time = lambda: real() + jumped()
    time.time_ns = lambda: real_ns() + int(jumped() * 1e9)


def serve() -> None:
    """Answer until standard input ends."""
    import_everything()
    sys.dont_write_bytecode = True  # what a command still imports is no step of its writing
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hit = mmap.mmap(-1, 1)  # shared with the children
    for line in sys.stdin:
        asked = json.loads(line)
        hit[0] = 0
        child = os.fork()
        if not child:
            run_command(asked, hit)
        print(json.dumps({"pid": child}), flush=True)
        _, status, used = os.wait4(child, 0)
        told = {
            "code": os.waitstatus_to_exitcode(status),
            "cpu_s": used.ru_utime + used.ru_stime,
            "peak_bytes": used.ru_maxrss << 10,
            "is_hit": bool(hit[0]),
            "is_removing": hit[0] == 2,
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    serve()

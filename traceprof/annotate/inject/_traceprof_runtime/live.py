"""The live status of this process: what it does now, in a small file that `traceprof watch` reads.

In ``record --live``, the hooks emit to a `LiveEmitter`, which adds times to numbers in memory. A
thread writes the file ``status.PID.NAMESPACE-START`` twice a second. So the program never waits for
a disk or for a watcher, and a write that fails only leaves the file outdated. The file has a fixed
size of `N_BYTES`:

- `HEADER_BYTES`: `MAGIC`, the length and the CRC of the text, and the text: JSON, see `_status`
- `N_STEPS` records of `STEP`: the last steps; step i is in slot i % `N_STEPS`
- sums of the steps of minutes, hours, and days: see `live_periods`

The header is written last: every step that it counts is in the file. The periods follow the clock
of the start of the process; a clock that is set later does not move them.
"""

import collections
import itertools
import json
import os
import socket
import struct
import sys
import threading
import time
import zlib
from time import monotonic_ns

from . import clock, live_periods, live_progress, process_record, session, settings, steps
from .identity import identity
from .spool import start_thread

MAGIC, VERSION = b"TPLIVE02", 2
HEADER_BYTES, N_STEPS = 8192, 1024
HEADER = struct.Struct("<8sII")  # magic, length of the text, CRC of the text
# index, number, end (monotonic), duration, data, forward, backward, optimizer, waiting for other
# ranks, samples, number of collectives, evaluation; times in ns
STEP = struct.Struct("<12q")
STEPS_AT, PERIODS_AT = HEADER_BYTES, HEADER_BYTES + N_STEPS * STEP.size
N_BYTES = PERIODS_AT + live_periods.N_BYTES

_PERIOD_S, _PAGE_BYTES = 0.5, 4096
_DATA, _FORWARD, _BACKWARD, _OPTIMIZER, _EVALUATION = range(5)
_PHASES = {
    "data": _DATA,
    "forward": _FORWARD,
    "backward": _BACKWARD,
    "optimizer": _OPTIMIZER,
    "eval": _EVALUATION,
}
_ASYNC = "comm.async:"
_METRIC = "metric:"
_HOOK_METRICS = "metric:thread_cpu"  # of hook_processor, not of the program
_STALL_NS, _STALL_STEPS = 2000000000, 5  # a stack is written after both times
_MAX_FRAMES, _MAX_FRAME_LENGTH, _MAX_METRICS, _MAX_NAME_LENGTH = 30, 160, 16, 60


class LiveEmitter:
    """Adds up the times of the open step. ``n_steps`` is the number of recorded steps."""

    def __init__(self):
        self.ring = bytearray(N_STEPS * STEP.size)
        self.rows = collections.deque(maxlen=N_STEPS)  # steps of `hook_boundaries`, not taken yet
        self.on_first_step = lambda: None
        self.clear()

    def clear(self):
        """Forget all steps: this process is new, or was forked."""
        self.rows.clear()
        self.n_steps = self.n_events = self.n_samples = 0
        self.pending = {}  # token -> (operator, start) of collectives that are not complete
        self.metrics = {}
        self.tokens, self.step_tokens = collections.deque(maxlen=20), 0  # of the last steps
        # With NCCL, the host does not wait for other ranks.
        self.is_wait_unknown = settings.ALWAYS
        self.training_thread = self.training_id = None
        self.training_stack = []
        self.last_step_ns = monotonic_ns()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._tokens = itertools.count(1)
        self._times = [0] * len(_PHASES)
        self._start_ns = self._end_ns = self._previous_start_ns = 0
        self._step_samples = self._wait_ns = self._n_calls = 0
        self._last_call_ns = self._counted_ns = 0

    def push(self, name, _payload=0):
        """Open a range on this thread."""
        try:
            stack = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
        stack.append([name, monotonic_ns(), 0, False])

    def pop(self):
        """Close the innermost range of this thread; add its time, without inner ranges.

        An optimizer that calls forward and backward passes runs a closure, with code of the program
        in it. The rest of its time then belongs to no phase.
        """
        stack = self._local.stack
        name, start_ns, inner_ns, is_closure = stack.pop()
        duration_ns = monotonic_ns() - start_ns
        if stack:
            stack[-1][2] += duration_ns
            if name == "backward":
                stack[-1][3] = True
        phase = _PHASES.get(name)
        if phase is None:
            if not name.startswith("optimizer#"):
                return
            phase = _OPTIMIZER
        if not is_closure:
            self._times[phase] += duration_ns - inner_ns
        self.n_events += 1

    def start(self, name, _payload=0):
        """Open a step (token None) or another range that any thread may end."""
        if name.startswith(("step", "user_step")):
            self._begin_step()
            return None
        token = next(self._tokens)
        if name.startswith(_ASYNC):
            now = self._last_call_ns = monotonic_ns()
            self.pending[token] = (name[len(_ASYNC) :], now)
        return token

    def end(self, token):
        """End a step or another range; the step is recorded at the next `at_step`."""
        if token is None:
            self._end_ns = monotonic_ns()
        else:
            self.pending.pop(token, None)

    def mark(self, name, payload=0):
        """Count the samples of a batch, and keep the last value of a metric."""
        if name == "batch":
            self._step_samples += payload
        elif name.startswith(_METRIC) and not name.startswith(_HOOK_METRICS):
            name = name[len(_METRIC) :][:_MAX_NAME_LENGTH]
            if name in self.metrics or len(self.metrics) < _MAX_METRICS:
                value = float(payload)
                is_finite = value - value == 0  # JSON has no NaN
                self.metrics[name] = (value if is_finite else None, steps.number)

    def add_past(self, *_arguments):
        """Do nothing: phases that are named afterward are not in the status."""

    def collective(self, start_ns, end_ns, _name, _n_bytes, _thread, details):
        """Add the time in which this process waited for a call that is complete.

        A call may overlap with the work before the next call. So its waiting begins with the last
        call that began before its end, and no time counts twice. Times are ns since 1970.
        """
        start_ns, end_ns = start_ns - clock._OFFSET_NS, end_ns - clock._OFFSET_NS
        if "nccl" in details.get("backend", ""):
            self.is_wait_unknown = True
        with self._lock:
            begin_ns = self._last_call_ns if start_ns <= self._last_call_ns <= end_ns else start_ns
            wait_ns = max(0, end_ns - max(begin_ns, self._counted_ns))
            self._counted_ns = max(self._counted_ns, end_ns)
            if start_ns >= self._start_ns:
                self._wait_ns += wait_ns
                self._n_calls += 1
            elif self.n_steps and start_ns >= self._previous_start_ns:
                self._add_to_last_step(wait_ns)

    def _add_to_last_step(self, wait_ns):
        """Add waiting time to the recorded step, whose call was completed by another thread."""
        offset = (self.n_steps - 1) % N_STEPS * STEP.size
        values = list(STEP.unpack_from(self.ring, offset))
        values[8] += wait_ns
        values[10] += 1
        STEP.pack_into(self.ring, offset, *values)

    def _begin_step(self):
        """Begin a step: times between steps, for example of an evaluation, do not count."""
        self.begin_training()
        self.training_stack = self._local.__dict__.setdefault("stack", [])
        with self._lock:
            self._previous_start_ns = self._start_ns
            self._start_ns = monotonic_ns()
            self._times = [0] * len(_PHASES)
            self._step_samples = self._wait_ns = self._n_calls = self.step_tokens = 0

    def begin_training(self):
        """Note that this thread trains."""
        if self.training_thread is None:
            self.training_id = threading.get_native_id()
            self.on_first_step()
        self.training_thread = threading.get_ident()

    def take_rows(self):
        """Add the steps of `hook_boundaries` to the ring, of which it knows few times."""
        rows = self.rows
        if steps.is_explicit():
            rows.clear()  # the program marks its steps
        index, number, ring, size = self.n_steps, steps.number, self.ring, STEP.size
        for _ in range(len(rows)):
            start_ns, end_ns, data_ns, n_samples = rows.popleft()
            times = end_ns, end_ns - start_ns, data_ns
            at = index % N_STEPS * size
            STEP.pack_into(ring, at, index, number, *times, 0, 0, 0, 0, n_samples, 0, 0)
            index += 1
            number += 1
            self.n_samples += n_samples
            self.last_step_ns = end_ns
        self.n_events += index - self.n_steps
        self.n_steps, steps.number = index, number

    def at_step(self, number):
        """Record the step that ended before the step with this number."""
        end_ns, self._end_ns = self._end_ns, 0
        if not end_ns:
            return
        data, forward, backward, optimizer, evaluation = self._times
        with self._lock:
            STEP.pack_into(
                self.ring,
                self.n_steps % N_STEPS * STEP.size,
                *(self.n_steps, number - 1, end_ns, end_ns - self._start_ns),
                *(data, forward, backward, optimizer, self._wait_ns),
                *(self._step_samples, self._n_calls, evaluation),
            )
            self.n_steps += 1
            self.n_samples += self._step_samples
        self.tokens.append(self.step_tokens)
        self.last_step_ns = end_ns


class Status:
    """Writes the status file of this process; see the description of this module."""

    def __init__(self, emitter, directory):
        self.emitter = emitter
        self._directory = directory
        self.capture = {}  # the state of the last requested capture
        self.poll = None  # called by the thread before each write
        self._clear()

    def _clear(self):
        self._is_over = threading.Event()
        self._thread = None
        self._n_written = self._n_added = self._n_errors = 0
        self.periods = live_periods.Sums()
        self._progress = live_progress.ProgressReader()
        self._rank = (None, None)
        self._started_ns = clock.time_ns()
        self.ended = ""

    def begin(self):
        """Start the thread, once the process trains."""
        if self._thread is None:
            self._thread = start_thread(self._run, "traceprof-live") or False

    def restart(self):
        """Begin again in a forked process that trains."""
        self.emitter.clear()
        self._clear()

    def _run(self):
        """Write the file until the process ends."""
        while not self._is_over.wait(_PERIOD_S):
            self.write()

    def close(self):
        """Write the file for the last time."""
        self._is_over.set()
        if self._thread is not None:
            self.ended = "failed" if getattr(sys, "last_value", None) is not None else "finished"
            self.write()

    def write(self):
        """Write the new steps, the minutes, and the header; on an error, try again later."""
        try:
            if self.poll is not None:
                self.poll()
            self._write()
        except Exception:  # a full disk, a missing folder: the program continues
            self._n_errors += 1

    def _write(self):
        self.emitter.take_rows()
        n_steps = self.emitter.n_steps
        # A collective of the last step may be completed after the step: write that step again.
        first = max(self._n_written - 1, n_steps - N_STEPS, 0)
        ring = bytes(self.emitter.ring)
        rows = range(max(self._n_added, n_steps - N_STEPS), n_steps)
        self.periods.add(
            [STEP.unpack_from(ring, index % N_STEPS * STEP.size) for index in rows],
            clock._OFFSET_NS,
        )
        self._n_added = n_steps
        path = os.path.join(self._directory, "status." + identity())
        mode = "r+b" if os.path.exists(path) else "w+b"
        with open(path, mode, buffering=0) as file:
            for index, size in _pieces(first, n_steps):
                offset = index * STEP.size
                file.seek(STEPS_AT + offset)
                file.write(ring[offset : offset + size * STEP.size])
            for offset, record in self.periods.records():
                file.seek(PERIODS_AT + offset)
                file.write(record)
            file.seek(0)
            file.write(encode(self._status(n_steps)))
            if mode == "w+b":
                file.truncate(N_BYTES)
        self._n_written = n_steps
        self.periods.note_written()

    def _status(self, n_steps):
        """Return the text of the header as a dictionary; times are monotonic unless noted."""
        emitter, now = self.emitter, monotonic_ns()
        stack, tokens = list(emitter.training_stack), list(emitter.tokens)
        quiet_ns = now - emitter.last_step_ns
        is_quiet = quiet_ns > max(_STALL_NS, _STALL_STEPS * self.periods.median_ns)
        pending = sorted(emitter.pending.copy().values(), key=lambda call: call[1])
        rank, world_size = self._rank = find_rank(*self._rank)
        status = {
            "version": VERSION,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot": clock.boot(),
            "rank": rank,
            "world_size": world_size,
            "restart_count": os.environ.get("TORCHELASTIC_RESTART_COUNT"),
            "started_ns": self._started_ns,  # since 1970, like offset_ns + a monotonic time
            "offset_ns": clock._OFFSET_NS,
            "now_ns": now,
            "n_steps": n_steps,
            "n_events": emitter.n_events,
            "n_samples": emitter.n_samples,
            "tokens": [len(tokens), sum(tokens)],  # steps, and their tokens
            "last_step_ns": emitter.last_step_ns,
            "phase": str(stack[-1][0])[:_MAX_NAME_LENGTH] if stack else "",
            "phase_since_ns": stack[-1][1] if stack else 0,
            "pending": [str(pending[0][0]), pending[0][1], len(pending)] if pending else None,
            "is_wait_unknown": emitter.is_wait_unknown,
            "is_always": settings.ALWAYS,
            "cpu_ns": time.process_time_ns(),
            "core_wait_ns": _core_wait_ns(emitter.training_id),
            "memory_bytes": _resident_bytes(),
            "device_bytes": _device_bytes(),
            "metrics": dict(live_progress.read_metrics(), **emitter.metrics),
            "progress": self._progress.read(n_steps, now),
            "capture": self.capture,
            "n_errors": self._n_errors,
            "ended": self.ended,
        }
        if is_quiet and not self.ended:
            status["stack"] = stack_of(emitter.training_thread)
        return status


def _pieces(first, end):
    """Yield (slot, number of slots) of the steps ``first`` to ``end``: two pieces if they wrap."""
    while first < end:
        slot = first % N_STEPS
        size = min(end - first, N_STEPS - slot)
        yield slot, size
        first += size


def encode(status):
    """Return the header for ``status``; leave out outer calls and metrics if it is too long."""
    # A kill does not interrupt the write of one page of memory.
    text = json.dumps(status).encode("ascii", "replace")
    while HEADER.size + len(text) > _PAGE_BYTES:
        if status.get("stack"):
            status["stack"].pop()
        else:
            status.pop("metrics" if "metrics" in status else "capture")
        text = json.dumps(status).encode("ascii", "replace")
    header = HEADER.pack(MAGIC, len(text), zlib.crc32(text)) + text
    return header.ljust(HEADER_BYTES, b"\0")


def find_rank(rank=None, world_size=None):
    """Return the rank and the world size of this process; the arguments where they are unknown."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    found = []
    for name, known in (("rank", rank), ("world_size", world_size)):
        variables = process_record._RANK_VARIABLES[name]
        values = [os.environ[variable] for variable in variables if variable in os.environ]
        is_set = bool(values) and values[0].isdigit() and known is None
        found.append(int(values[0]) if is_set else known)
    return found[0], found[1]


def stack_of(thread):
    """Return the Python calls of a thread as texts, the innermost first: "file:line function"."""
    frame = sys._current_frames().get(thread)
    calls = []
    while frame is not None and len(calls) < _MAX_FRAMES:
        code = frame.f_code
        if os.path.dirname(code.co_filename) != os.path.dirname(__file__):
            file = os.sep.join(code.co_filename.split(os.sep)[-2:])
            calls.append(("%s:%d %s" % (file, frame.f_lineno, code.co_name))[:_MAX_FRAME_LENGTH])
        frame = frame.f_back
    return calls


def _core_wait_ns(thread_id):
    """Return for how long a thread has waited for a core; None where the system does not count."""
    try:
        with open("/proc/self/task/%s/schedstat" % thread_id) as file:
            running_ns, waiting_ns = map(int, file.read().split()[:2])
    except (OSError, ValueError):
        return None
    return waiting_ns if running_ns else None


def _resident_bytes():
    """Return the resident memory of this process; None without /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _device_bytes():
    """Return the GPU memory of torch's allocator (in use, reserved); None without CUDA."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    return [cuda.memory_allocated(), cuda.memory_reserved()]


status = None


def begin(directory):
    """Make the hooks emit to the live status until a capture begins."""
    global status
    emitter = LiveEmitter()
    status = Status(emitter, directory)
    session.hold(emitter)
    emitter.on_first_step = status.begin
    steps.on_activity(status.begin)
    steps.on_boundary(emitter.at_step)
    session.in_new_process(status.restart)

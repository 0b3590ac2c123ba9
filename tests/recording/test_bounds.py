import sys

import pytest

from tests.recording.conftest import NAMED_STEPS, PROGRAMS, record
from tests.requirements import require
from traceprof.errors import UsageError
from traceprof.recording.request import Bounds, parse_bounds, parse_step_from


def test_texts_become_bounds():
    assert parse_bounds("20..30", None, None, None) == Bounds(steps=(20, 30))
    assert parse_bounds("7", None, None, "1.5MB") == Bounds(steps=(7, 7), max_bytes=1_500_000)
    assert parse_bounds(None, "10s", "250ms", None) == Bounds(
        delay_ns=10_000_000_000, duration_ns=250_000_000
    )
    assert not parse_bounds(None, None, None, "2G").is_bounded


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (("30..20", None, None, None), "before the first"),
        (("a..b", None, None, None), "first and last step"),
        (("1..2", "1s", None, None), "cannot be combined"),
        ((None, "-1s", None, None), "negative"),
        ((None, "-0s", None, None), "negative"),
        ((None, None, "-0.1ns", None), "negative"),
        ((None, None, None, "big"), "for example 500MB"),
    ],
)
def test_what_means_nothing_is_refused(texts, reason):
    with pytest.raises(UsageError, match=reason):
        parse_bounds(*texts)


@pytest.mark.parametrize("tool", ["torch", pytest.param("nsys", marks=pytest.mark.nsys)])
def test_only_the_steps_asked_for_are_captured(tmp_path, tool):
    if tool == "nsys":
        require("nsys")
    options = ("--with", tool, "--steps", "1..1")
    recorded = record(tmp_path / "run.sqlite", [*NAMED_STEPS, "0"], *options)
    assert recorded.done.returncode == 0, recorded.done.stderr
    ranges = recorded.trace.ranges.to_frame()
    assert ranges.loc[ranges["name"] == "user_step", "payload"].tolist() == [1]
    assert (ranges["name"] == "work").sum() == 1
    ours = [line for line in recorded.done.stderr.splitlines() if line.startswith("traceprof:")]
    assert not [line for line in ours if "did not" in line or "not all" in line]


@pytest.mark.torch
def test_operators_are_those_of_the_steps_asked_for(tmp_path):
    require("torch")
    command = [sys.executable, str(PROGRAMS / "train_cnn.py"), "--steps", "6", "--batch", "2"]
    trace = record(tmp_path / "run.sqlite", command, "--with", "torch", "--steps", "0..1").trace
    assert (trace.ranges.to_frame()["name"] == "optimizer").sum() == 2
    assert (trace.host_ops.to_frame()["name"] == "Optimizer.step#SGD.step").sum() == 2


def test_steps_that_never_come_leave_no_trace_and_a_reason(tmp_path):
    options = ("--with", "torch", "--steps", "100..110")
    recorded = record(tmp_path / "run.sqlite", [*NAMED_STEPS, "0"], *options)
    assert recorded.done.returncode == 0
    assert "the program ended before the capture started" in recorded.done.stderr
    assert not recorded.path.exists()


def test_a_duration_ends_the_capture_and_not_the_program(tmp_path):
    code = (
        "import itertools, threading, time, traceprof\n"
        "for i in itertools.count():\n"
        "    with traceprof.range(str(i)): time.sleep(.005)\n"
        "    if not [t for t in threading.enumerate() if t.name == 'traceprof-bounds']: break\n"
        "with traceprof.range('late'): pass\n"
        "print('done')"
    )
    options = ("--with", "torch", "--delay", "200ms", "--duration", "200ms")
    recorded = record(tmp_path / "run.sqlite", [sys.executable, "-c", code], *options)
    assert recorded.done.stdout == "done\n"
    names = recorded.trace.ranges.to_frame()["name"].astype(str)
    captured = [int(name) for name in names if name.isdigit()]
    assert captured == list(range(captured[0], captured[-1] + 1))
    assert captured[0] > 0
    assert "late" not in set(names)


def test_size_is_bounded(tmp_path):
    code = (
        "import glob, os, time, traceprof\n"
        "path = f'{os.environ[\"TRACEPROF_DIR\"]}/events.*'\n"
        "size = lambda: sum(map(os.path.getsize, glob.glob(path)))\n"
        "for i in range(10):\n"
        "    before = size()\n"
        "    for j in range(100):\n"
        "        with traceprof.range('x'): pass\n"
        "    while size() == before < 10_000: time.sleep(.01)"
    )
    command = [sys.executable, "-c", code]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch", "--max-size", "10kB")
    assert recorded.done.returncode == 0
    assert "of 1,000 events: --max-size was reached" in recorded.done.stderr
    assert "of 1,000 events: --max-size was reached" in "".join(recorded.trace.info.warnings)
    assert 100 <= len(recorded.trace.ranges.to_frame()) < 1000


_WAYS = ["optimizer", "optimizer#12", "backward", "loader", "every-forward", "range:a b"]


@pytest.mark.parametrize("text", _WAYS)
def test_what_a_step_may_be(text):
    assert parse_step_from(text) == text


@pytest.mark.parametrize("text", ["", "forward", "range:", "steps", "optimizer#", "optimizer#0"])
def test_what_a_step_cannot_be(text):
    with pytest.raises(UsageError, match="choose optimizer, backward, loader, every-forward, opt"):
        parse_step_from(text)

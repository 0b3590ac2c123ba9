import subprocess
import sys

import traceprof
from tests.requirements import ROOT
from traceprof.recording.program import INJECT_FOLDER


def test_nothing_happens_when_nobody_records():
    assert not traceprof.is_recording()
    with traceprof.step(3, samples=8), traceprof.epoch(), traceprof.range("x", 1):
        traceprof.metric("loss", 1.0)
        traceprof.mark("here")

    def work(a, b=2):
        return a + b

    assert traceprof.range("work")(work) is work
    assert traceprof.step()(work)(1) == 3


def test_importing_traceprof_imports_nothing_big():
    code = (
        "import sys, traceprof; traceprof.range; "
        "print([m for m in ('numpy', 'pandas', 'torch', 'typer', 'sqlite3') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "[]\n"


def test_a_decorated_function_keeps_its_name_and_its_exceptions(tmp_path):
    code = (
        "import traceprof\n"
        "@traceprof.range('f')\n"
        "def f(x):\n"
        "    'about f'\n"
        "    return 1 // x\n"
        "print(f.__name__, f.__doc__, f(1))\n"
        "try: f(0)\n"
        "except ZeroDivisionError: print('raised')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{INJECT_FOLDER}:{ROOT}", "TRACEPROF_DIR": str(tmp_path)},
    )
    assert done.stdout == "f about f 1\nraised\n"
    (events,) = tmp_path.glob("events.*.jsonl")
    assert events.read_text().count('"f"') == 2

"""scripts/bench_gpu and scripts/try_gpu: their commands are accepted today, without a GPU."""

import os
import subprocess
import sys

from tests.requirements import ROOT


def dry(name, *shell):
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [*shell, str(ROOT / "scripts" / name), "--dry"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_commands_of_bench_gpu_have_the_options_of_today():
    done = dry("bench_gpu", sys.executable)
    assert done.returncode == 0, done.stderr
    for words in ("--with cupti -o", "--with cupti --flops", "record --live", "--with torch"):
        assert words in done.stdout


def test_commands_of_try_gpu_have_the_changes_of_today():
    done = dry("try_gpu", "bash")
    assert done.returncode == 0, done.stderr
    assert "--change checkpoint,accumulate" in done.stdout


def test_a_change_that_does_not_exist_is_refused(tmp_path):
    script = (ROOT / "scripts" / "try_gpu").read_text().replace("bf16 gpt.py", "bf17 gpt.py")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "try_gpu").write_text(script)
    (tmp_path / "traceprof").symlink_to(ROOT / "traceprof")
    done = subprocess.run(
        ["bash", str(tmp_path / "scripts" / "try_gpu"), "--dry"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "unknown changes: ['bf17']" in done.stderr

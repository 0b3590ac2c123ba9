import sys
from pathlib import Path

import pytest

from tests.recording.conftest import record
from tests.requirements import require
from traceprof.errors import UsageError
from traceprof.recording.recorders.nsys.recorder import (
    nsys_options,
    profile_options,
    refusal_in,
    with_given,
)

OLD = dict.fromkeys(["--force-overwrite", "--output", "--trace", "--sample"], "")


def test_only_options_that_this_version_knows_are_used():
    chosen = profile_options(OLD, Path("/t/report"), "s1", with_gpu=True)
    assert chosen == [
        "--force-overwrite=true",
        "--output=/t/report",
        "--trace=cuda,nvtx",
        "--sample=none",
    ]
    names = ["--session-new", "--cuda-graph-trace", "--resolve-symbols", "--wait"]
    newer = OLD | dict.fromkeys(names, "")
    chosen = profile_options(newer, Path("/t/report"), "s1", with_gpu=False)
    assert chosen[1:] == [
        "--output=/t/report",
        "--session-new=s1",
        "--trace=nvtx",
        "--sample=none",
        "--cuda-graph-trace=node",
        "--resolve-symbols=false",
        "--wait=primary",
    ]


@pytest.mark.nsys
def test_the_installed_nsys_tells_its_options():
    options = nsys_options(require("nsys"), "profile")
    assert {"--output", "--trace", "--wait", "--session-new", "--capture-range"} <= options.keys()
    assert "true" in options["--nic-metrics"]
    assert "--type" in nsys_options(require("nsys"), "export")


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ("  --gpu-metrics-device=\n  --nic-metrics=\n Possible values are 'true' or 'false'.\n",
         ["--gpu-metrics-device=all", "--nic-metrics=true"]),
        ("  --gpu-metrics-devices=\n See --gpu-metrics-device.\n  --nic-metrics=\n"
         " One of 'none', 'lf', 'hf'.\n",
         ["--gpu-metrics-devices=all", "--nic-metrics=lf"]),
        ("  --output=\n", []),
    ],
)  # fmt: skip
def test_counters_are_sampled_as_the_version_at_hand_calls_it(tmp_path, described, expected):
    program = tmp_path / "nsys"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{described}END\n")
    program.chmod(0o755)
    known = nsys_options(str(program), "profile")
    chosen = profile_options(
        known, Path("/t/report"), "s1", with_gpu=True, with_counters=True, with_rdma=True
    )
    assert [option for option in chosen if "metrics" in option] == expected
    without = profile_options(known, Path("/t/report"), "s1", with_gpu=True)
    assert not any("metrics" in option for option in without)


@pytest.mark.nsys
@pytest.mark.parametrize(
    "given",
    [
        ("--stats=false", "--cuda-graph-trace=node", "--trace=cuda,nvtx", "--sample=none"),
        ("-tnvtx",),
    ],
    ids=" ".join,
)
def test_arguments_for_nsys_reach_it(tmp_path, given):
    """Those, too, that take the place of what traceprof itself would ask for."""
    require("nsys")
    options = ("--with", "nsys", "-v", *(f"--nsys-arg={one}" for one in given))
    recorded = record(tmp_path / "run.sqlite", [sys.executable, "-c", "pass"], *options)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert all(one in recorded.done.stderr for one in given)
    assert "recorded with torch" not in recorded.done.stderr
    assert "NVIDIA Nsight Systems" in recorded.trace.info.profiler


KNOWN = OLD | {"--cuda-graph-trace": "", "-s": "--sample", "-t": "--trace"}


def test_what_the_user_gives_takes_the_place_of_ours():
    ours = ["--trace=cuda,nvtx", "--sample=none", "--cuda-graph-trace=node"]
    for given, kept in (
        (["--sample=process-tree"], ["--trace=cuda,nvtx", "--cuda-graph-trace=node"]),
        (["--sample", "process-tree"], ["--trace=cuda,nvtx", "--cuda-graph-trace=node"]),
        (["-s", "none", "-tcuda"], ["--cuda-graph-trace=node"]),
        (["--force-overwrite=true"], ours),
    ):
        assert with_given(ours, given, KNOWN) == [*kept, *given]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--cuda-graphs-trace=node", "has no option --cuda-graphs-trace;"),
        ("-x", "has no option -x;"),
    ],
)
def test_what_cannot_be_given_is_said(given, said):
    with pytest.raises(UsageError, match=said):
        with_given([], [given], KNOWN)


def test_why_nsys_refuses_its_arguments_is_what_stands_before_its_usage():
    said = (
        "option '--sample' cannot be specified more than once\n\nusage: nsys profile [<args>]\nTry"
    )
    assert refusal_in(said) == "option '--sample' cannot be specified more than once"
    assert refusal_in("Generating\n") == ""


@pytest.mark.nsys
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--no-such-thing=1", "has no option --no-such-thing"),
        ("--sample=sometimes", "nsys rejects it ("),
    ],
)
def test_what_nsys_does_not_take_is_said_before_anything_runs(tmp_path, given, said):
    require("nsys")
    program = ["touch", str(tmp_path / "ran")]
    options = ("--with", "nsys", f"--nsys-arg={given}")
    recorded = record(tmp_path / "run.sqlite", program, *options)
    assert recorded.done.returncode == 2, recorded.done.stderr
    assert said in recorded.done.stderr
    assert not (tmp_path / "ran").exists()

"""Speculative decoding by hand: the page gives a lower bound of its tokens, and one phase."""

import json
import sys

import numpy as np
import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require
from traceprof.session.pace import on_pace
from traceprof.session.run import open_run

pytestmark = [pytest.mark.torch]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """What the program says, and the run."""
    require("torch")
    path = tmp_path_factory.mktemp("speculative") / "run.sqlite"
    command = [sys.executable, str(PROGRAMS / "speculative.py")]
    found = record(path, command, "--with", "torch", TRACEPROF_DISABLE="windows")
    assert found.done.returncode == 0, found.done.stderr
    return json.loads(found.done.stdout.partition("truth ")[2]), open_run([path])


def test_tokens_are_known_up_to_the_last_round(recorded):
    truth, run = recorded
    steps = run.result("steps").table
    assert len(steps) >= len(truth["generated"]) - 1  # the first may be a warm-up
    least = [n - last + 1 for n, last in truth["generated"]]
    least = [least[number] for number in steps["step"].tolist()]
    assert steps["generated_tokens_count"].tolist() == least
    assert steps["least_tokens_count"].tolist() == least


def test_the_verification_is_part_of_the_generation(recorded):
    truth, run = recorded
    assert "logprobs" not in run.result("phases").table["phase"].tolist()
    steps = run.result("steps").table
    starts, ends = np.array(truth["spans_ns"])[steps["step"]].T
    assert steps["generation_ns"].sum() == pytest.approx((ends - starts).sum(), rel=0.03)


def test_the_page_says_at_least(recorded):
    _, run = recorded
    notes = [note.text for note in on_pace(run.result("steps"))]
    (text,) = [text for text in notes if text.startswith("Generated")]
    assert text.startswith("Generated at least {rate:count} tokens/s (at least {phase:count} ")
    assert not {"tokens_per_s", "generation_tokens_per_s"} & set(run.result("steps").scalars)

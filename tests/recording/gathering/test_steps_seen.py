"""What is said where a recording has no steps, or not those that were asked for."""

import json

import pytest

from traceprof.recording.bounds import Bounds
from traceprof.recording.gathering.steps_seen import notes_on_steps

NOTHING = {"fetches": 0, "forward passes": 0, "backward passes": 0, "optimizer steps": 0}


def notes(tmp_path, *processes, steps=None, step_from=""):
    for number, counts in enumerate(processes):
        (tmp_path / f"seen.{number}.json").write_text(json.dumps(NOTHING | counts))
    return notes_on_steps(tmp_path, Bounds(steps), step_from)


def test_an_inference_loop_is_told_what_its_steps_may_be(tmp_path):
    assert notes(tmp_path, {"steps": 0, "forward passes": 70, "fetches": 8}) == [
        "no steps: 8 fetches, 70 forward passes were seen; say what a step is by --step-from "
        "every-forward (70) or loader (8), or --step-from range:NAME or traceprof.step() in the "
        "program"
    ]


def test_what_was_tried_is_not_advised_again(tmp_path):
    (note,) = notes(tmp_path, {"steps": 0, "forward passes": 70}, step_from="backward")
    assert "every-forward (70)" in note
    (note,) = notes(tmp_path, {"steps": 0, "forward passes": 0, "fetches": 3}, step_from="loader")
    assert "loader" not in note


@pytest.mark.parametrize(
    ("n_steps", "expected"),
    [(6, []), (5, ["--steps begins with step 5, and the program made 5 (from 0)"])],
)
def test_steps_that_never_came(tmp_path, n_steps, expected):
    assert notes(tmp_path, {"steps": n_steps, "backward passes": 6}, steps=(5, 9)) == expected


def test_the_process_that_trains_speaks_for_all(tmp_path):
    assert notes(tmp_path, {"steps": 0, "forward passes": 99}, {"steps": 3}) == []


def test_without_torch_nothing_is_said_here(tmp_path):
    assert notes(tmp_path) == []
    assert notes(tmp_path, {"steps": 0}) == []

"""What is said where a recording has no steps, or not those that were asked for."""

import json

import pytest

from traceprof.recording.finishing import notes_on_steps
from traceprof.recording.request import Bounds

NOTHING = {"fetches": 0, "forward passes": 0, "backward passes": 0, "optimizer steps": 0}


def notes(tmp_path, *processes, steps=None, step_from=""):
    for number, counts in enumerate(processes):
        (tmp_path / f"seen.{number}.json").write_text(json.dumps(NOTHING | counts))
    return notes_on_steps(tmp_path, Bounds(steps), step_from)


def test_an_inference_loop_is_told_what_its_steps_may_be(tmp_path):
    assert notes(tmp_path, {"steps": 0, "forward passes": 70, "fetches": 8}) == [
        "no training found in 8 fetches, 70 forward passes, so each batch is a step; to define "
        "other steps, use --step-from every-forward (70) or loader (8), or --step-from range:NAME "
        "or traceprof.step() in the program"
    ]
    (note,) = notes(tmp_path, {"steps": 0, "forward passes": 70})
    assert note.startswith("no training found in 70 forward passes, so each forward pass is a step")


def test_what_was_tried_is_not_advised_again(tmp_path):
    (note,) = notes(tmp_path, {"steps": 0, "forward passes": 70}, step_from="backward")
    assert "every-forward (70)" in note
    (note,) = notes(tmp_path, {"steps": 0, "forward passes": 0, "fetches": 3}, step_from="loader")
    assert "loader" not in note


@pytest.mark.parametrize(
    ("n_steps", "expected"),
    [
        (10, []),
        (9, ["--steps ends at 9, but the program ran 9 steps (from 0)"]),
        (6, ["--steps ends at 9, but the program ran 6 steps (from 0)"]),
        (5, ["--steps starts at 5, but the program ran 5 steps (from 0)"]),
    ],
)
def test_steps_that_never_came(tmp_path, n_steps, expected):
    seen = {"steps": n_steps, "backward passes": 6, "optimizer steps": 6}
    assert notes(tmp_path, seen, steps=(5, 9)) == expected


def test_the_process_that_trains_speaks_for_all(tmp_path):
    assert notes(tmp_path, {"steps": 0, "forward passes": 99}, {"steps": 3}) == []


def test_without_torch_nothing_is_said_here(tmp_path):
    assert notes(tmp_path) == []
    assert notes(tmp_path, {"steps": 0}) == []


def test_steps_that_are_backward_passes_are_said_to_be(tmp_path):
    seen = {"steps": 80, "backward passes": 80, "fetches": 20}
    assert notes(tmp_path, seen) == [
        "no torch optimizer found, so traceprof counts backward passes as steps; to define other "
        "steps, use --step-from loader (20), --step-from range:NAME or traceprof.step() in the "
        "program"
    ]
    (note,) = notes(tmp_path, {"steps": 20, "backward passes": 80})
    assert "as steps (80 passes in 20 steps); to define other steps, use --step-from range" in note
    assert notes(tmp_path, seen, step_from="loader") == []
    assert notes(tmp_path, seen | {"named": 1}) == []


@pytest.mark.parametrize(
    ("seen", "is_said"),
    [
        ({"steps": 20, "joined": 20, "changes": 40, "turns": {"1": 20, "2": 20}}, True),
        # a critic with batches of its own, five times as often as its generator
        ({"steps": 60, "joined": 0, "changes": 24, "turns": {"1": 12, "2": 60}}, True),
        # with batches that tell; two optimizers of one model; two models in turn
        ({"steps": 20, "joined": 0, "changes": 40, "turns": {"1": 20, "2": 20}}, False),
        ({"steps": 20, "joined": 0, "changes": 2, "turns": {"1": 8, "2": 12}}, False),
        ({"steps": 20, "joined": 0, "changes": 1, "turns": {"1": 20}}, False),
    ],
)
def test_turns_of_optimizers_that_may_be_steps_are_said(tmp_path, seen, is_said):
    found = notes(tmp_path, seen | {"backward passes": 60, "optimizer steps": 40})
    assert len(found) == is_said
    for note in found:
        assert f"in {seen['steps']} steps" in note
        assert "--step-from optimizer#1" in note

"""What `traceprof memory` says: of a training program whose memory is known, and of a real one."""

import pickle
import re

import numpy as np
import pytest

from tests.requirements import TRACES, require
from tests.snapshots.allocator import Allocator, backward, forward, frame, optimizer
from traceprof.model.table import Table
from traceprof.render.formatting import sentences
from traceprof.render.registry import Options, render
from traceprof.snapshots import MEMORY_NAME
from traceprof.snapshots.advice import advice_note
from traceprof.snapshots.kinds import _in_optimizer
from traceprof.snapshots.measured import memory
from traceprof.trying.changes import parse_changes

MB = 1_000_000
REAL = TRACES / "h100" / "memory-gpt.pickle"


def train(n_steps, leak=0, with_cpp=True):
    """Train: 8 MB of parameters from before, 2 MB of activations, gradients, state of 16 MB."""
    allocator = Allocator()
    allocator.is_recording = False
    allocator.alloc(8 * MB)
    allocator.is_recording = True
    state = None
    for _ in range(n_steps):
        activations = [allocator.alloc(1 * MB, forward(21)), allocator.alloc(1 * MB, forward(22))]
        short = allocator.alloc(MB // 2, forward(21))
        allocator.free(short)
        gradient = allocator.alloc(8 * MB, backward("AddmmBackward0") if with_cpp else None)
        for one in activations:
            allocator.free(one)
        if state is None:
            state = allocator.alloc(16 * MB, optimizer(31))
        allocator.step()
        allocator.free(gradient)
        if leak:
            allocator.alloc(leak, forward(40, "loss"))
        allocator.step("Optimizer.zero_grad#AdamW.zero_grad")
    return allocator


def rows(found, result, when=None):
    table = found.results[result].table.rows()
    return [row for row in table if when is None or row["when"] == when]


@pytest.mark.parametrize("with_cpp", [True, False])
def test_each_kind_is_told_by_its_stack_and_its_life(tmp_path, with_cpp):
    found = memory([train(3, with_cpp=with_cpp).write(tmp_path / "s.pickle")])
    (device,) = rows(found, MEMORY_NAME)
    assert device["start_bytes"] == 8 * MB
    assert device["peak_bytes"] == 34 * MB  # in the second step: all of it at once
    assert device["end_bytes"] == 24 * MB
    at_peak = {row["kind"]: row["held_bytes"] for row in rows(found, "kinds", "at the peak")}
    assert at_peak == {
        "gradients": 8 * MB,
        "optimizer state": 16 * MB,
        "activations": 2 * MB,
        "allocated before recording began": 8 * MB,
    }
    assert sum(row["held_ratio"] for row in rows(found, "kinds", "at the peak")) == pytest.approx(1)
    at_end = {row["kind"]: row["held_bytes"] for row in rows(found, "kinds", "at the end")}
    assert at_end == {"optimizer state": 16 * MB, "allocated before recording began": 8 * MB}


def test_lines_hold_what_they_made(tmp_path):
    found = memory([train(2).write(tmp_path / "s.pickle")])
    held = {
        (row["place"], row["operator"], row["module"]): row["held_bytes"]
        for row in rows(found, "holders", "at the peak")
    }
    assert held[("train.py:21 train", "", "linear")] == 1 * MB
    assert held[("", "AddmmBackward0", "")] == 8 * MB
    assert held[("train.py:31 train", "", "")] == 16 * MB
    assert sum(held.values()) == rows(found, MEMORY_NAME)[0]["peak_bytes"]


def test_memory_that_grows_with_each_step_is_told_with_its_line(tmp_path):
    found = memory([train(5, leak=3 * MB).write(tmp_path / "s.pickle")])
    assert [row["grown_bytes"] for row in rows(found, "steps")][1:] == [3 * MB] * 4
    (growth,) = rows(found, "growth")
    assert growth["place"] == "train.py:40 train"
    assert growth["per_step_bytes"] == 3 * MB
    assert "Memory grows by 3.00 MB per step" in render("text", found, Options(width=200))


def test_what_does_not_grow_is_not_said_to(tmp_path):
    found = memory([train(5).write(tmp_path / "s.pickle")])
    assert "growth" not in found.results
    assert "grows" not in render("text", found, Options(width=200))


def test_memory_that_ran_out_comes_first(tmp_path):
    allocator = train(1)
    for _ in range(4):  # pieces that are too small
        allocator.free(allocator.alloc(3 * MB))
    pieces = [allocator.alloc(3 * MB + 512 * i) for i in range(4)]
    for piece in pieces:
        allocator.free(piece)
    allocator.fail(10 * MB, left=1 * MB)
    found = memory([allocator.write(tmp_path / "s.pickle")])
    said = render("text", found, Options(width=200))
    assert "out of memory: 10.0 MB requested" in said
    assert "Free GPU memory: 1.00 MB" in said
    assert "Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True." in said
    assert {row["when"] for row in rows(found, "kinds")} >= {"when memory ran out"}


def test_room_in_one_piece_is_no_fragmentation(tmp_path):
    allocator = train(1)
    allocator.free(allocator.alloc(30 * MB))
    allocator.fail(10 * MB, left=1 * MB)
    said = render("text", memory([allocator.write(tmp_path / "s.pickle")]), Options(width=200))
    assert "out of memory" in said
    assert "ragmentation" not in said


def test_tensors_that_the_hooks_named_are_what_they_say(tmp_path):
    allocator = train(2)
    (address,) = [at for at, one in allocator.blocks.items() if one["requested_size"] == 8 * MB][:1]
    tensor = {"device": 0, "address": address + 64, "size": 64, "kind": "parameters", "name": "w"}
    path = allocator.write(tmp_path / "s.pickle", traceprof={"tensors": [tensor]})
    at_end = {row["kind"]: row["held_bytes"] for row in rows(memory([path]), "kinds", "at the end")}
    assert at_end == {"parameters": 8 * MB, "optimizer state": 16 * MB}


def test_a_snapshot_without_history_tells_what_is_there(tmp_path):
    allocator = Allocator()
    allocator.is_recording = False
    allocator.alloc(5 * MB)
    found = memory([allocator.write(tmp_path / "s.pickle")])
    said = render("text", found, Options(width=200))
    assert "5.00 MB allocated at the peak: 100.0% allocated before recording began" not in said
    assert "5.00 MB allocated at the end" in said
    assert "contains no allocation history" in said


def test_what_holds_next_to_nothing_is_not_in_the_answer(tmp_path):
    allocator = Allocator()
    allocator.is_recording = False
    allocator.alloc(50 * MB)
    allocator.is_recording = True
    allocator.alloc(1024)
    found = memory([allocator.write(tmp_path / "s.pickle")])
    answer = render("text", found, Options(width=200)).partition("note:")[0]
    assert "50.0 MB allocated at the peak: 100.0% allocated before recording began\n" in answer


def test_every_form_can_be_written(tmp_path):
    found = memory([train(2).write(tmp_path / "s.pickle")])
    page = render("html", found)
    assert page.count("<polygon") == 5
    assert '"peak_bytes": 34000000' in render("json", found).replace("34000000.0", "34000000")
    assert render("markdown", found).count("train.py:21 train") >= 1


def test_the_real_one_adds_up():
    """By torch's own words: what segments hold, what the events add up to, what a stack holds."""
    if not REAL.exists():
        require("traces")
    plain = pickle.loads(REAL.read_bytes())
    found = memory([REAL])
    (device,) = rows(found, MEMORY_NAME)
    segments = plain["segments"]
    assert device["reserved_bytes"] == sum(one["total_size"] for one in segments)
    assert device["end_bytes"] == sum(one["requested_size"] for one in segments)
    rounding = sum(one["allocated_size"] - one["requested_size"] for one in segments)
    assert device["rounding_bytes"] == rounding
    level = highest = device["start_bytes"]
    for event in plain["device_traces"][0]:
        sign = {"alloc": 1, "free_requested": -1}.get(event["action"], 0)
        level += sign * event["size"]
        highest = max(highest, level)
    assert level == device["end_bytes"]
    assert device["peak_bytes"] == highest
    for when in ("at the peak", "at the end"):
        whole = device["peak_bytes" if when == "at the peak" else "end_bytes"]
        assert sum(row["held_bytes"] for row in rows(found, "kinds", when)) == whole
        assert sum(row["held_bytes"] for row in rows(found, "holders", when)) == whole
        stacks = found.results["holders"].tables["stacks"].rows()
        assert sum(row["held_bytes"] for row in stacks if row["when"] == when) == whole
    # 55.5 M parameters in fp32: so much are their gradients, held from step to zero_grad.
    assert [row["end_bytes"] - device["end_bytes"] for row in rows(found, "steps")] == [
        pytest.approx(222 * MB, rel=0.01)
    ] * 2


@pytest.mark.torch
def test_torch_itself_says_the_same_of_the_real_one():
    if not REAL.exists():
        require("traces")
    require("torch")
    from torch.cuda import _memory_viz  # noqa: PLC0415

    plain = pickle.loads(REAL.read_bytes())
    (device,) = rows(memory([REAL]), MEMORY_NAME)
    said = _memory_viz.segsum(plain)
    assert f"total_reserved: {_memory_viz.Bytes(device['reserved_bytes'])}" in said
    told = sum(_memory_viz.calc_active(one) for one in plain["segments"])
    assert device["end_bytes"] + device["rounding_bytes"] == told


def test_events_in_a_span_of_an_optimizer_are_found_as_by_looking_at_each_span():
    chance = np.random.default_rng(5)
    for n_spans in (0, 1, 7):
        starts = chance.integers(0, 50, n_spans)
        spans = Table({"start_ns": starts, "end_ns": starts + chance.integers(-3, 20, n_spans)})
        at_ns = chance.integers(-1, 60, 80)
        one_by_one = np.zeros(80, bool)
        for start, end in zip(spans["start_ns"], spans["end_ns"], strict=True):
            one_by_one |= (at_ns >= start) & (at_ns <= end) & (at_ns >= 0)
        assert _in_optimizer(at_ns, spans).tolist() == one_by_one.tolist()


def test_a_clock_that_steps_back_and_steps_out_of_order_are_no_crash(tmp_path):
    allocator = train(4)
    plain = allocator.snapshot()
    times = [event["time_us"] for event in plain["device_traces"][0]]
    for event, at_us in zip(plain["device_traces"][0], reversed(times), strict=True):
        event["time_us"] = at_us
    plain["traceprof"] = {"tensors": [], "step_ends_us": [times[-1], times[0], times[5]]}
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(plain))
    assert len(rows(memory([tmp_path / "s.pickle"]), "steps")) == 3


def test_devices_of_two_snapshots_of_one_name_are_not_mixed(tmp_path):
    paths = []
    for name, size in (("a", 3 * MB), ("b", 5 * MB)):
        (tmp_path / name).mkdir()
        allocator = Allocator()
        allocator.alloc(size, forward(7))
        paths.append(allocator.write(tmp_path / name / "s.pickle"))
    said = [note.values["level"] for note in memory(paths).verdict if "level" in note.values]
    assert said == [3 * MB, 5 * MB]


def advice(found):
    return (
        {row["change"]: row for row in rows(found, "advice")} if "advice" in found.results else {}
    )


def with_blocks(n_blocks, logits=0):
    """Train one step of a model with blocks that repeat, 10 MB of activations each."""
    allocator = Allocator()
    blocks = [allocator.alloc(10 * MB, forward(21)) for _ in range(n_blocks)]
    loss = [allocator.alloc(logits, forward_of("cross_entropy_loss"))] if logits else []
    gradient = allocator.alloc(1 * MB, backward("AddmmBackward0"))
    for address in [*blocks, *loss]:
        allocator.free(address)
    allocator.step()
    allocator.free(gradient)
    return allocator


def forward_of(operator):
    """Return the frames of an operator of the forward pass, with those of C++."""
    return [{"filename": "??", "line": 0, "name": f"at::_ops::{operator}::call(int)"}, *forward(30)]


def test_checkpointing_leaves_one_of_the_blocks_that_repeat(tmp_path):
    found = memory([with_blocks(5).write(tmp_path / "s.pickle")])
    change = advice(found)["activation checkpointing"]
    assert change["saves_bytes"] == 40 * MB
    assert change["place"] == "train.py:21 train"
    assert "Saves up to 40.0 MB at the peak: activation checkpointing" in render("text", found)
    few = memory([with_blocks(2).write(tmp_path / "few.pickle")])
    assert "activation checkpointing" not in advice(few)


def test_a_loss_in_chunks_leaves_an_eighth_of_the_logits(tmp_path):
    found = memory([with_blocks(1, logits=80 * MB).write(tmp_path / "s.pickle")])
    assert advice(found)["loss in chunks"]["saves_bytes"] == 70 * MB
    without = memory([with_blocks(1).write(tmp_path / "without.pickle")])
    assert "loss in chunks" not in advice(without)


def test_a_saving_ends_where_another_moment_becomes_the_peak(tmp_path):
    allocator = with_blocks(5)  # a peak of 51 MB
    allocator.free(allocator.alloc(30 * MB, forward(99)))
    found = memory([allocator.write(tmp_path / "s.pickle")])
    assert advice(found)["activation checkpointing"]["saves_bytes"] == 21 * MB


@pytest.mark.parametrize("is_late", [True, False])
def test_gradients_that_outlive_the_step_are_freed_earlier(tmp_path, is_late):
    allocator = Allocator()
    gradient = None
    for _ in range(3):
        if gradient and not is_late:
            allocator.free(gradient)
        activations = allocator.alloc(20 * MB, forward(21))
        if gradient and is_late:
            allocator.free(gradient)
        gradient = allocator.alloc(8 * MB, backward("AddmmBackward0"))
        allocator.free(activations)
        allocator.step()
    late = advice(memory([allocator.write(tmp_path / "s.pickle")]))
    assert ("gradients freed earlier" in late) is False  # the peak is in the backward pass
    allocator = Allocator()
    for number in range(3):
        activations = allocator.alloc(20 * MB, forward(21))
        short = allocator.alloc(30 * MB, forward(22))  # the peak is in the forward pass
        allocator.free(short)
        if number and is_late:
            allocator.free(gradient)
        gradient = allocator.alloc(8 * MB, backward("AddmmBackward0"))
        allocator.free(activations)
        allocator.step()
        if not is_late:
            allocator.free(gradient)
    found = advice(memory([allocator.write(tmp_path / "t.pickle")]))
    assert ("gradients freed earlier" in found) is is_late
    if is_late:
        assert found["gradients freed earlier"]["saves_bytes"] == 8 * MB


def test_state_of_the_optimizer_in_8_bits(tmp_path):
    found = advice(memory([train(3).write(tmp_path / "s.pickle")]))
    assert found["8-bit optimizer"]["saves_bytes"] == 12 * MB


def test_what_would_have_let_the_failed_allocation_fit(tmp_path):
    allocator = Allocator()
    for _ in range(5):
        allocator.alloc(10 * MB, forward(21))
    allocator.alloc(1 * MB, backward("AddmmBackward0"))
    allocator.fail(30 * MB, left=2 * MB)
    found = memory([allocator.write(tmp_path / "s.pickle")])
    change = advice(found)["activation checkpointing"]
    assert (change["failure_saves_bytes"], change["is_enough"]) == (40 * MB, True)
    assert "40.0 MB, so that the allocation that failed fits: activation checkpointing" in render(
        "text", found, Options(width=200)
    )
    allocator.fail(60 * MB, left=2 * MB)
    found = advice(memory([allocator.write(tmp_path / "t.pickle")]))
    assert found["activation checkpointing"]["is_enough"] is False


@pytest.mark.parametrize(
    "generated",
    ["/tmp/torchinductor_me/ab/cabc.py", f"/cache/ab/c{'x7' * 25}.py"],
)
def test_a_compiled_model_is_told_by_the_line_of_the_program(tmp_path, generated):
    allocator = Allocator()
    frames = [{"filename": generated, "line": 99, "name": "call"}, *forward(21)[1:]]
    allocator.alloc(10 * MB, frames)
    found = memory([allocator.write(tmp_path / "s.pickle")])
    assert rows(found, "holders")[0]["place"] == "train.py:21 train"


def kinds_at(found, when):
    return {row["kind"]: row["held_bytes"] for row in rows(found, "kinds", when)}


def operator_of(name):
    return [frame("??", 0, f"at::_ops::{name}::call(at::Tensor const&)")]


@pytest.mark.parametrize("runs_out", [False, True])
def test_memory_of_a_forward_pass_without_a_backward_pass_is_of_activations(tmp_path, runs_out):
    allocator = Allocator()
    for line in (21, 22, 23):
        allocator.alloc(10 * MB, forward(line))
    batch = [frame("/home/me/train.py", 8, "train")]
    allocator.alloc(5 * MB, [*operator_of("_to_copy"), *batch])
    allocator.alloc(3 * MB, [*operator_of("mm"), *batch])
    if runs_out:
        allocator.fail(60 * MB, left=2 * MB)
    found = memory([allocator.write(tmp_path / "s.pickle")])
    when = "when memory ran out" if runs_out else "at the peak"
    assert kinds_at(found, when) == {"activations": 33 * MB, "unknown": 5 * MB}
    assert ("activation checkpointing" in advice(found)) is False  # three different lines


def test_a_leak_after_the_last_backward_pass_is_not_more_than_it_was(tmp_path):
    """Memory that one step leaves is in use in the backward pass of the next one."""
    found = memory([train(4, leak=3 * MB).write(tmp_path / "s.pickle")])
    assert kinds_at(found, "at the end")["activations"] == 12 * MB


def test_blocks_from_before_are_known_by_their_stacks(tmp_path):
    """The history was cut, or only blocks were recorded: a stack is all that is known."""
    allocator = Allocator()
    allocator.is_recording = False
    allocator.alloc(8 * MB, optimizer(31))
    allocator.alloc(4 * MB, forward(21))
    allocator.alloc(2 * MB, backward("AddmmBackward0"))
    allocator.alloc(1 * MB)
    allocator.alloc(6 * MB, [frame("/home/me/train.py", 8, "load")])
    known = {"optimizer state": 8 * MB, "activations": 4 * MB, "gradients": 2 * MB}
    found = memory([allocator.write(tmp_path / "s.pickle")])
    assert kinds_at(found, "at the end") == known | {"unknown": 7 * MB}
    allocator.is_recording = True
    allocator.free(allocator.alloc(MB, forward(22)))
    found = memory([allocator.write(tmp_path / "t.pickle")])
    assert kinds_at(found, "at the end") == known | {"allocated before recording began": 7 * MB}


@pytest.mark.parametrize(("has_times", "start"), [(True, 0), (False, 8 * MB)])
def test_a_history_that_begins_within_a_free_does_not_hold_the_block(tmp_path, has_times, start):
    """Older versions of torch, without times, record no request: there the block is held."""
    allocator = Allocator()
    allocator.is_recording = False
    address = allocator.alloc(8 * MB)
    allocator.is_recording = True
    allocator.free(address)
    del allocator.trace[0]  # the request
    allocator.alloc(4 * MB, forward(21))
    if not has_times:
        for event in allocator.trace:
            del event["time_us"]
    found = memory([allocator.write(tmp_path / "s.pickle")])
    assert rows(found, MEMORY_NAME)[0]["start_bytes"] == start


@pytest.mark.parametrize(("held", "is_said"), [(990 * MB, False), (90 * MB, True)])
def test_fragmentation_is_advised_only_if_much_memory_is_unused(tmp_path, held, is_said):
    allocator = Allocator()
    allocator.alloc(held, forward(21))
    for piece in [allocator.alloc(3 * MB, forward(22)) for _ in range(3)]:
        allocator.free(piece)
    allocator.fail(8 * MB, left=1 * MB)
    said = render("text", memory([allocator.write(tmp_path / "s.pickle")]), Options(width=200))
    assert ("ragmentation" in said) == is_said
    assert ("expandable segments" in said or "expandable_segments" in said) == is_said


def test_expandable_segments_lower_what_is_reserved_not_the_peak():
    row = {"change": "expandable segments", "place": "", "saves_bytes": 389 * MB, "fix": "Set it."}
    assert sentences([advice_note(row | {"is_enough": None})]) == [
        "Lowers reserved memory by up to 389 MB: expandable segments. Set it."
    ]


@pytest.mark.parametrize("name", ["activation checkpointing", "8-bit optimizer"])
def test_advice_names_the_command_that_measures_it(tmp_path, name):
    allocator = Allocator()
    allocator.alloc(16 * MB, optimizer(31))
    for _ in range(5):
        allocator.alloc(10 * MB, forward(21))
    allocator.alloc(1 * MB, backward("AddmmBackward0"))
    allocator.fail(30 * MB, left=2 * MB)
    fix = advice(memory([allocator.write(tmp_path / "s.pickle")]))[name]["fix"]
    (text,) = re.findall(r"`traceprof try (.*?) -- python train.py`", fix)
    assert text.split()[:3] == ["--goal", "memory", "--change"]
    assert parse_changes(text.split()[3:])

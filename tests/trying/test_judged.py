"""What is made of the runs of both sides: made-up series whose difference is known."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from traceprof.errors import UsageError
from traceprof.render.formatting import sentences
from traceprof.trying.changes import (
    CHANGES,
    LOSS_CURVE,
    OTHER_TRAINING,
    SAME_LOSSES,
    change_named,
    changes_to_try,
    parse_changes,
    predicted_ratio,
)
from traceprof.trying.experiment import find_savings
from traceprof.trying.judged import (
    ALIKE,
    FASTER,
    LESS,
    MEMORY,
    MORE,
    SLOWER,
    UNDECIDED,
    evaluate,
    losses_of,
)
from traceprof.trying.runs import DIVERGED, TriedRun

DOCS = Path(__file__).parents[2] / "docs" / "try.md"
WORKERS = parse_changes(["workers=4"])


def run(mean_ms, *, n_steps=40, seed=0, losses=None, **more):
    chance = np.random.default_rng(seed)
    steps = chance.normal(mean_ms, mean_ms / 50, n_steps) * 1e6
    return TriedRun(step_ns=steps, losses=losses or {}, **more)


def of(base_ms, new_ms):
    base = [run(one, seed=i, round=i) for i, one in enumerate(base_ms)]
    runs = [run(one, seed=9 + i, round=i) for i, one in enumerate(new_ms)]
    return evaluate(WORKERS, base, runs)


def test_a_saving_has_an_interval():
    found = of([100, 100, 100], [70, 70, 70])
    assert found.verdict == FASTER
    assert found.saving_ratio == pytest.approx(0.3, abs=0.01)
    assert -found.difference.high_ratio < 0.3 < -found.difference.low_ratio
    assert found.difference.base - found.difference.new == pytest.approx(
        found.saving_ratio * found.difference.base, rel=0.001
    )


def test_a_cost_is_slower_and_no_effect_is_no_difference():
    assert of([100, 100, 100], [120, 120, 120]).verdict == SLOWER
    assert of([100, 100, 100], [100, 100, 100]).verdict == ALIKE


@pytest.mark.parametrize("new_ms", [[50], [50, 50]])
def test_fewer_than_three_runs_of_each_have_no_verdict(new_ms):
    """One program took 181 ms and 152 ms per step in two runs: one run of each proves nothing."""
    found = of([100] * len(new_ms), new_ms)
    assert found.verdict == UNDECIDED
    assert found.needed_runs == 0


def test_the_scatter_of_runs_counts_and_not_that_of_steps():
    """Steps scatter by 2%, and the runs of the same program by 20%."""
    base_ms, new_ms = [181, 152, 170, 155], [158, 176, 150, 172]
    assert of(base_ms, new_ms).verdict == UNDECIDED
    assert of(base_ms, [one / 4 for one in new_ms]).verdict == FASTER


def test_runs_that_are_necessary_are_counted():
    """Changes of 0, 10, and -10%: 5% need t * 10% / sqrt(n), with t of 2.6 for 29 runs."""
    found = of([100] * 3, [100, 110.5, 90.5])
    assert found.verdict == UNDECIDED
    assert 25 < found.needed_runs < 35


def test_a_load_on_whole_rounds_does_not_hide_a_saving():
    """The machine is busy in the second round: both runs of the round take twice as long."""
    assert of([100, 200, 100], [80, 160, 80]).verdict == FASTER


def test_a_run_without_an_unchanged_run_of_its_round_is_not_compared():
    base = [run(100, seed=i, round=i) for i in range(3)]
    runs = [run(70, seed=9 + i, round=i) for i in range(3)]
    extra = run(700, round=3)
    assert evaluate(WORKERS, base, [*runs, extra]).difference.base_count == 3


def test_a_run_that_failed_is_reported_whatever_the_others_did():
    failed = TriedRun(failure=DIVERGED, reason="the loss is not finite from step 8 on", round=1)
    found = evaluate(WORKERS, [run(100, round=0)], [run(50, round=0), failed])
    assert found.verdict == DIVERGED
    assert math.isnan(found.saving_ratio)


def test_batches_of_another_size_are_compared_per_sample():
    base = [run(100, round=i, facts={"loaders": [{"batch": 8}]}) for i in range(3)]
    twice = [run(160, seed=i, round=i, facts={"loaders": [{"batch": 16}]}) for i in range(3)]
    found = evaluate(parse_changes(["batch_size=x2"]), base, twice)
    assert found.saving_ratio == pytest.approx(0.2, abs=0.01)


def test_code_names_the_optimizer_and_the_batch_size_of_the_program():
    facts = FACTS | {"optimizers": [{"kind": "SGD", "is_of_torch": True}]}
    fused, batch, unknown = parse_changes(["fused_optimizer", "batch_size=x2", "batch_size=32"])
    assert fused.lines_in(facts) == "torch.optim.SGD(…, fused=True)"
    assert batch.lines_in(facts) == "DataLoader(…, batch_size=16)"
    assert unknown.lines_in({}) == "DataLoader(…, batch_size=32)"
    assert batch.lines_in({}) == "DataLoader(…, batch_size=2 * batch_size)"


@pytest.mark.parametrize(
    ("bases", "new", "said"),
    [
        ([[1.0, 0.5, 0.25]], [1.0, 0.5, 0.25], "the same"),
        (
            [[1.0, 0.5, 0.25], [1.0, 0.5, 0.26]],
            [1.0, 0.5, 0.255],
            "no more than two unchanged runs do",
        ),
        ([[1.0, 0.5, 0.25]], [1.0, 0.4, 0.25], "differ from step 1, by up to 20.0%"),
    ],
)
def test_losses_are_held_beside_each_other(bases, new, said):
    base = [run(1, losses=dict(enumerate(own))) for own in bases]
    note = losses_of(base, [run(1, losses=dict(enumerate(new)))])
    assert said in next(iter(sentences([note])))


def test_without_losses_nothing_is_said_of_them():
    assert losses_of([run(1)], [run(1)]) is None


@pytest.mark.parametrize(
    ("change", "factor", "shift", "is_broken"),
    [
        ("checkpoint", 1.0, 0.0, False),
        ("checkpoint", 1.0005, 0.0, False),  # rounding
        ("checkpoint", 1.01, 0.0, True),
        ("bf16", 1.01, 0.0, False),
        ("bf16", 1.0, 0.3, True),
        ("accumulate=4", 2.0, 0.0, False),  # a different training run
        ("accumulate=4,bf16", 2.0, 0.0, False),
    ],
)
def test_what_must_stay_equal_is_checked(change, factor, shift, is_broken):
    """A curve from 2.0 to 1.2 whose steps scatter by 0.05: a shift of 0.3 is no noise."""
    chance = np.random.default_rng(3)
    curve = 2 - 0.02 * np.arange(40) + chance.normal(0, 0.05, 40)
    base = [run(100, seed=i, round=i, losses=dict(enumerate(curve))) for i in range(3)]
    losses = dict(enumerate(curve * factor + shift))
    runs = [run(50, seed=9 + i, round=i, losses=losses) for i in range(3)]
    found = evaluate(parse_changes([change]), base, runs)
    assert found.verdict == FASTER
    assert (found.broken is not None) == is_broken
    assert list(find_savings([found])) == ([] if is_broken else [found])


def test_losses_that_differ_between_unchanged_runs_are_noise():
    curves = [np.full(40, level) for level in (1.0, 1.02, 1.01)]
    base = [run(100, seed=i, round=i, losses=dict(enumerate(one))) for i, one in enumerate(curves)]
    runs = [run(90, seed=9 + i, round=i, losses=dict.fromkeys(range(40), 1.03)) for i in range(3)]
    assert evaluate(parse_changes(["checkpoint"]), base, runs).broken is None


FACTS = {
    "on_gpu": True,
    "modules": {"Conv2d": 3},
    "parameters": {"torch.float32": 1000},
    "optimizers": [{"kind": "AdamW", "foreach": None, "fused": None, "is_of_torch": True}],
    "loaders": [
        {"workers": 0, "is_pinned": False, "is_persistent": False, "prefetch": None, "batch": 8}
        | {"is_stream": False}
    ],
    "wrappers": [],
    "threads": 2,
    "cpus": 16,
    "is_autocast": False,
    "is_tf32": False,
    "is_benchmark": False,
}


def names(facts, predicted=()):
    return [one.text for one in changes_to_try(facts, dict(predicted))]


def test_what_applies_is_tried_and_what_the_trace_advises_first():
    found = names(FACTS, {"layout_conversion": 0.2, "input_bound": 0.6}.items())
    assert found[:2] == ["workers=8", "channels_last"]
    assert {"pin_memory", "bf16", "fused_optimizer", "compile"} <= set(found)
    assert not {"bucket_cap_mb=100", "batch_size", "threads=16"} & set(found)


def test_what_is_there_already_is_not_tried():
    own = FACTS["loaders"][0] | {"workers": 4, "is_pinned": True, "is_persistent": True}
    there = FACTS | {"loaders": [own | {"prefetch": 8}], "is_autocast": True, "is_benchmark": True}
    assert not {"workers=8", "pin_memory", "bf16", "tf32", "cudnn_benchmark"} & set(names(there))


def test_streams_are_not_given_workers():
    own = FACTS["loaders"][0] | {"is_stream": True}
    assert "workers=8" not in names(FACTS | {"loaders": [own]})


def test_on_a_cpu_what_is_of_gpus_is_left_out():
    found = names(FACTS | {"on_gpu": False})
    assert not {"pin_memory", "tf32", "compile", "cudnn_benchmark"} & set(found)
    assert "threads=16" in found


def test_a_prediction_is_that_of_the_rules_that_advise_it():
    (change,) = parse_changes(["channels_last"])
    assert predicted_ratio(change, {"layout_conversion": 0.2, "precision": 0.9}) == 0.2
    assert predicted_ratio(change, {}) is None


def test_words_are_read_as_they_are_written():
    found = parse_changes(["channels_last,workers=8", "env=NCCL_ALGO=Ring"])
    assert [one.text for one in found] == ["channels_last", "workers=8", "env=NCCL_ALGO=Ring"]
    assert found[2].change.environment(found[2].value) == {"NCCL_ALGO": "Ring"}


def test_a_value_of_the_environment_may_hold_commas():
    found = parse_changes(["allocator=expandable_segments:True,max_split_size_mb:128,bf16"])
    assert [one.value for one in found] == ["expandable_segments:True,max_split_size_mb:128", ""]
    (own,) = parse_changes(["env=NCCL_DEBUG_SUBSYS=INIT,GRAPH"])
    assert own.change.environment(own.value) == {"NCCL_DEBUG_SUBSYS": "INIT,GRAPH"}


@pytest.mark.parametrize("text", ["chanels_last", "batch_size", "env=X", "sdpa"])
def test_what_is_not_known_or_lacks_its_value_is_refused(text):
    with pytest.raises(UsageError):
        parse_changes([text])


def test_the_docs_list_every_change():
    text = DOCS.read_text("utf-8")
    for one in CHANGES:
        assert f"| `{one.name}` | {one.about} | {one.breaks} |" in text


def test_every_change_tells_all_of_itself():
    for one in CHANGES:
        assert one.about
        assert one.breaks
        assert one.lines
        assert one.equal in (SAME_LOSSES, LOSS_CURVE, OTHER_TRAINING)
        assert change_named(one.name) is one
        assert (
            one.needs_value
            or "{value}" not in one.lines
            or one.name == "compile"
            or (one.usual(FACTS))
        )


def test_the_program_keeps_its_own_environment(tmp_path):
    """What keeps our own libraries small is none of its business."""
    said = tmp_path / "said"
    program = (
        f"import os; open({str(said)!r}, 'w').write(str('OPENBLAS_NUM_THREADS' in os.environ))"
    )
    environment = {key: own for key, own in os.environ.items() if "OPENBLAS" not in key}
    subprocess.run(
        [sys.executable, "-m", "traceprof", "try", "--", sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert said.read_text() == "False"


def of_memory(base_bytes, new_bytes, changes=WORKERS, **more):
    base = [run(100, round=i, peak_bytes=one) for i, one in enumerate(base_bytes)]
    runs = [run(200, round=i, peak_bytes=one, **more) for i, one in enumerate(new_bytes)]
    return evaluate(changes, base, runs, goal=MEMORY)


def test_peak_memory_is_a_goal_with_the_verdict_of_time():
    found = of_memory([1000, 1010, 990], [600, 606, 594])
    assert (found.verdict, found.saves) == (LESS, True)
    assert found.saving_ratio == pytest.approx(0.4, abs=0.01)
    assert of_memory([1000, 1010, 990], [1300, 1310, 1290]).verdict == MORE
    assert of_memory([1000, 1010, 990], [1001, 1009, 990]).verdict == ALIKE


def test_peaks_that_are_equal_in_each_run_are_a_verdict():
    """The peak of the allocator of a GPU is the same in each run."""
    assert of_memory([1000] * 3, [900] * 3).verdict == LESS
    assert of_memory([1000] * 3, [1000] * 3).verdict == ALIKE


def test_memory_that_scatters_and_memory_of_two_runs_are_not_decided():
    assert of_memory([1000, 1300, 800], [900, 1100, 1000]).verdict == UNDECIDED
    assert of_memory([1000, 1000], [500, 500]).verdict == UNDECIDED


def test_unknown_memory_is_not_zero():
    found = of_memory([1000, 1000, 1000], [None, None, None])
    assert found.verdict == UNDECIDED
    assert found.difference is None


def test_the_peak_of_larger_batches_is_not_per_sample():
    facts = {"loaders": [{"batch": 16}]}
    found = of_memory([1000] * 3, [1900] * 3, parse_changes(["batch_size=x2"]), facts=facts)
    assert found.saving_ratio == pytest.approx(-0.9)


def test_for_memory_only_changes_that_can_lower_the_peak_are_tried():
    facts = {"parameters": {"torch.float32": 10}, "is_autocast": False, "on_gpu": True}
    facts["optimizers"] = [{"kind": "AdamW", "is_of_torch": True}]
    names = [one.change.name for one in changes_to_try(facts, {}, for_memory=True)]
    assert names == ["bf16", "set_to_none", "checkpoint", "optimizer_8bit"]
    on_cpu = {**facts, "on_gpu": False}
    names = [one.change.name for one in changes_to_try(on_cpu, {}, for_memory=True)]
    assert "optimizer_8bit" not in names

"""Runs against runs, of which it is known how they differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.comparison.generated import KERNELS, MS, Program, noise_of, of_steps
from traceprof.comparison import Comparison
from traceprof.comparison.comparing import compare
from traceprof.comparison.judging import evaluate_measures, parse_limit
from traceprof.comparison.sides import STEP, Side
from traceprof.errors import UsageError
from traceprof.model.activity import PARTS
from traceprof.model.summary import Summary
from traceprof.model.table import Table
from traceprof.render.formatting import sentences

GEMM, MULTIPLY, LAYOUT, FLASH = KERNELS


def one(base: Summary, new: Summary, *limits: str) -> Comparison:
    return compare([base], [new], [parse_limit(text) for text in limits])


def longer(kernel: str, ns: int) -> dict[str, int]:
    return {name: length + ns * (name == kernel) for name, length in KERNELS.items()}


def row(found: Comparison, result: str, key: str, value: str, table: str | None = None) -> Any:
    frame = found.results[result].to_frame(table)
    (kept,) = frame[(frame[key] == value).to_numpy()].to_dict("records")
    return kept


def exceeded(found: Comparison) -> list[bool]:
    return found.results["limits"].table.to_frame()["is_exceeded"].tolist()


def undecided(found: Comparison) -> list[bool]:
    return found.results["limits"].table.to_frame()["is_undecided"].tolist()


def adds_up(found: Comparison) -> None:
    result = found.results["difference"]
    for name in ("difference_ns", "base_ns", "new_ns"):
        whole = result.scalars[name]
        for table in ("causes", "parts", "kinds"):
            assert int(result.to_frame(table)[name].sum()) == whole
        causes = result.to_frame("causes").groupby("part")[name].sum()
        parts = result.to_frame("parts").set_index("part")[name]
        assert causes.to_dict() == {part: parts[part] for part in causes.index}
        assert list(parts.index) == list(PARTS)
    assert result.scalars["difference_ns"] == result.scalars["new_ns"] - result.scalars["base_ns"]


def test_six_percent_are_found_and_explained() -> None:
    base = Program(noise_ratio=0.03, seed=1).summary("base")
    new = Program(kernels=longer(FLASH, 6 * MS), noise_ratio=0.03, seed=2).summary("new")
    found = one(base, new, "5%")
    adds_up(found)
    said = sentences(found.verdict)
    assert said[0].startswith("new is ")
    assert "slower than base" in said[0]
    judged = row(found, "judged", "measure", "samples_per_s")
    assert judged["verdict"] == "worse"
    assert judged["low_ratio"] <= 1 / 1.06 - 1 <= judged["high_ratio"]
    cause = found.results["difference"].table.to_frame().iloc[0]
    assert (cause["part"], cause["kind"], cause["name"]) == ("compute", "kernel", FLASH)
    assert cause["state"] == "changed"
    assert cause["from_duration_ns"] == cause["difference_ns"]
    assert "kernel flash_fwd_kernel" in said[-1]
    assert exceeded(found) == [True]


def test_half_a_percent_under_three_percent_of_noise_is_not_called_a_change() -> None:
    base = Program(noise_ratio=0.03, seed=0).summary("base")
    kernels = longer(GEMM, MS // 2)
    new = Program(kernels=kernels, noise_ratio=0.03, seed=1).summary("new")
    found = one(base, new, "5%")
    assert exceeded(found) == [False]
    assert row(found, "judged", "measure", "step_period_ns")["verdict"] == "no difference shown"
    called = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        series = (1e8 * (1 + 0.03 * noise_of("independent", 40, random)) for _ in range(2))
        sides = [
            Side((of_steps(name, values * factor, batch=32),), STEP)
            for name, values, factor in zip(("a", "b"), series, (1, 1.005), strict=True)
        ]
        (judged, *_) = evaluate_measures(*sides).values()
        called += judged.verdict != "no difference shown"
    assert called <= 12


def test_without_a_change_verdicts_and_limits_raise_no_alarm_beyond_5_percent() -> None:
    # Of 500 pairs: test_statistics. Here the whole way, from steps to the limit.
    random = np.random.default_rng(11)
    alarms = fails = 0
    for _ in range(60):
        base, new = (
            of_steps(name, 1e8 * np.exp(0.05 * noise_of("neighbors", 40, random)), batch=32)
            for name in ("base", "new")
        )
        found = one(base, new, "5%")
        judged = row(found, "judged", "measure", "samples_per_s")
        alarms += judged["verdict"] != "no difference shown"
        fails += exceeded(found)[0]
    assert alarms <= 8
    assert fails <= 3


def test_the_same_run_does_not_differ_from_itself() -> None:
    run = Program(noise_ratio=0.03, seed=4).summary("run")
    found = one(run, run)
    adds_up(found)
    assert found.results["difference"].scalars["difference_ns"] == 0
    assert set(found.results["kernels"].table.to_frame()["state"]) == {"same"}
    assert "settings" not in found.results
    assert sentences(found.verdict)[0].startswith("The difference between run and run is not")


def test_each_ns_of_the_difference_has_its_place() -> None:
    base = Program(n_steps=7).summary("base")
    kernels = longer(GEMM, 3_000_001)
    new = Program(kernels=kernels, idle_ns=5 * MS, n_steps=11).summary("new")
    found = one(base, new)
    adds_up(found)
    scalars = found.results["difference"].scalars
    assert scalars["base_count"] == 7
    assert scalars["new_count"] == 11
    # The first step begins with its host, for which the device is idle.
    assert scalars["base_ns"] == 100 * MS
    assert scalars["new_ns"] == 104_000_001
    gemm = row(found, "difference", "name", GEMM, "causes")
    assert gemm["difference_ns"] in (3_000_000, 3_000_001, 3_000_002)


def test_kernels_that_are_new_or_gone_are_called_so() -> None:
    kernels = {name: length for name, length in KERNELS.items() if name != LAYOUT}
    kernels["void at::native::reduce_kernel<512, 1>(int)"] = 4 * MS
    found = one(Program().summary("base"), Program(kernels=kernels).summary("new"))
    adds_up(found)
    states = found.results["kernels"].table.to_frame().set_index("name")["state"].to_dict()
    assert states[LAYOUT] == "gone"
    assert states["void at::native::reduce_kernel<512, 1>(int)"] == "new"
    gone = row(found, "difference", "name", LAYOUT, "causes")
    assert (gone["new_ns"], gone["new_count"], gone["state"]) == (0, 0, "gone")
    assert gone["base_count"] == 1
    assert gone["from_count_ns"] == gone["difference_ns"]


def test_a_kernel_that_a_new_library_calls_otherwise_is_the_same() -> None:
    renamed = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
    kernels = {renamed if name == GEMM else name: ns for name, ns in KERNELS.items()}
    kernels[renamed] -= 10 * MS
    base = Program(settings={"cudnn": "9.1.0"}).summary("base")
    new = Program(kernels=kernels, settings={"cudnn": "9.5.1"}).summary("new")
    found = one(base, new)
    adds_up(found)
    cause = found.results["difference"].table.to_frame().iloc[0]
    assert (cause["name"], cause["base_name"], cause["state"]) == (renamed, GEMM, "renamed")
    assert cause["from_duration_ns"] == cause["difference_ns"]
    assert -10 * MS - 1 <= cause["difference_ns"] <= -10 * MS + 1
    kernel = row(found, "kernels", "name", renamed)
    assert (kernel["base_name"], kernel["state"]) == (GEMM, "renamed")
    assert row(found, "settings", "setting", "cudnn")["new"] == "9.5.1"
    assert not found.warnings


def test_what_one_side_alone_knows_explains_nothing() -> None:
    base, new = Program().summary("base"), Program(n_steps=20).summary("new")
    found = one(replace(base, workload="training"), new)
    assert row(found, "settings", "setting", "workload")["why"] == "not recorded on both sides"
    assert not found.warnings


def test_a_time_that_is_more_than_halved_or_doubled_is_said_without_doubt() -> None:
    slow, fast = (of_steps(name, np.linspace(1, 1.02, 20) * ns) for name, ns in
                  (("slow", 90e6), ("fast", 30e6)))  # fmt: skip
    assert "slow is slower than fast: a step takes 3.00× as long" in said_of(one(fast, slow))
    assert "fast is faster than slow: a step takes 66.7% less time" in said_of(one(slow, fast))


def test_a_recording_against_itself_is_told_so() -> None:
    base = Program().summary("base")
    assert "compared with itself" in " ".join(sentences(one(base, base).warnings))
    assert not one(base, Program(seed=2, noise_ratio=0.01).summary("new")).warnings


def test_causes_that_work_against_one_another_are_not_most_of_it() -> None:
    kernels = {**KERNELS, FLASH: KERNELS[FLASH] + 6 * MS, GEMM: KERNELS[GEMM] - 5 * MS}
    found = one(Program().summary("base"), Program(kernels=kernels).summary("new"))
    assert "Largest causes: " in said_of(found) and "Most of the" not in said_of(found)
    found = one(Program().summary("base"), Program(kernels=longer(FLASH, 6 * MS)).summary("new"))
    assert "Most of the difference: kernel flash_fwd_kernel" in said_of(found)


def said_of(found: Comparison) -> str:
    return " ".join(sentences(found.verdict))


def test_what_spoils_the_comparison_is_said_first() -> None:
    base = Program().summary("base")
    new = Program(format="kineto", batch=64, settings={"torch": "2.9"}).summary("new")
    new = replace(new, environment={**new.environment, "gpu": "NVIDIA B200"})
    found = one(base, new)
    settings = found.results["settings"].table.to_frame()
    assert settings["spoils"].tolist() == sorted(settings["spoils"], reverse=True)
    spoiling = settings.loc[settings["spoils"].astype(bool), "setting"].tolist()
    assert spoiling == ["profiler", "batch_count", "global_batch_count", "gpu"]
    assert len(found.warnings) == 4
    assert "gpu differs (NVIDIA H100, NVIDIA B200)" in sentences(found.warnings)[3]


def test_another_program_is_suspected_by_its_kernels() -> None:
    others = {f"void some::other_kernel_{i}<float>(float*)": 24 * MS for i in range(4)}
    found = one(Program().summary("base"), Program(kernels=others).summary("new"))
    assert any("both runs use the same program" in text for text in sentences(found.warnings))
    kernels = dict(list(KERNELS.items())[:3]) | {"void some::other_kernel(int)": 26 * MS}
    found = one(Program().summary("base"), Program(kernels=kernels).summary("new"))
    assert not found.warnings


def test_steps_that_differ_too_much_among_themselves_tell_nothing() -> None:
    random = np.random.default_rng(0)
    base, new = (of_steps(name, np.exp(random.normal(18, 2, size=6))) for name in ("a", "b"))
    found = one(base, new, "5%")
    said = sentences(found.verdict)[0]
    assert said.startswith("It is not clear whether b is faster or slower than a")
    assert "This comparison cannot detect a change of any size" in said
    assert "inf" not in said
    assert exceeded(found) == [False]
    assert undecided(found) == [True]


def test_a_limit_on_what_is_not_judged_goes_by_the_numbers_and_says_so() -> None:
    base, new = Program().summary("base"), Program(idle_ns=8 * MS).summary("new")
    found = one(base, new, "idle_ratio=50%", "utilization_ratio=5%", "step_period_ns=3%")
    assert exceeded(found) == [True, False, True]
    why = sentences(found.results["limits"].table.to_frame()["why"])
    assert why[0] == "no statistical test: the variation of this measure is not known"
    assert why[1:] == [why[0], "above the limit, and the difference is significant"][1:]
    with pytest.raises(UsageError, match="cannot have a limit"):
        one(base, new, "world_size=5%")
    with pytest.raises(UsageError, match=r"not recorded on both sides; available: .*idle_ratio"):
        one(base, new, "speed=5%")


@pytest.mark.parametrize(
    ("text", "measure", "ratio"),
    [("5%", "", 0.05), ("0.05", "", 0.05), ("a_ns = 2.5 %", "a_ns", 0.025), ("0%", "", 0.0)],
)
def test_limits_are_shares(text: str, measure: str, ratio: float) -> None:
    limit = parse_limit(text)
    assert limit.measure == measure
    assert limit.ratio == pytest.approx(ratio)


@pytest.mark.parametrize("text", ["", "5", "five", "a=", "-3%", "5%%"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="limit"):
        parse_limit(text)


def test_the_answer_is_of_what_there_are_enough_of() -> None:
    """Five steps have five lengths on the devices, though only four periods on the host."""
    base = Program(n_steps=6, batch=0).summary("base")
    new = Program(kernels=longer(GEMM, 10 * MS), n_steps=5, batch=0).summary("new")
    found = one(base, new)
    verdicts = {own["measure"]: own["verdict"] for own in found.results["judged"].table.rows()}
    assert verdicts == {"step_period_ns": "worse"}
    said = sentences(found.verdict)
    assert said[0].startswith("new is slower than base: a step takes ")
    assert "longer (95% interval" in said[0]
    assert "(means of 5 and 6 steps)" in said[1]


def test_few_steps_do_not_check_a_limit() -> None:
    base = Program(n_steps=4).summary("base")
    new = Program(kernels=longer(GEMM, 10 * MS), n_steps=4).summary("new")
    found = one(base, new, "5%")
    assert "are not enough to test the difference" in sentences(found.verdict)[0]
    assert row(found, "judged", "measure", "step_period_ns")["verdict"] == "not enough data"
    assert (exceeded(found), undecided(found)) == ([False], [True])
    why = sentences(found.results["limits"].table.to_frame()["why"])[0]
    assert why.startswith("no statistical test")


@pytest.mark.parametrize(
    ("noise_ratio", "change", "state"),
    [
        (0.0, 1.04, "within"),  # without noise, every change is known
        (0.0, 1.06, "exceeded"),
        (0.1, 1.0, "undecided"),  # the noise hides 5%
        (0.1, 0.99, "undecided"),
        (0.001, 0.9, "within"),
        (0.01, 1.12, "exceeded"),
    ],
)
def test_a_limit_passes_only_if_the_test_would_see_it(
    noise_ratio: float, change: float, state: str
) -> None:
    random = np.random.default_rng(3)
    base, new = (
        of_steps(name, 1e8 * times * np.exp(noise_ratio * noise_of("neighbors", 12, random)))
        for name, times in (("base", 1.0), ("new", change))
    )
    found = one(base, new, "5%")
    limit = found.results["limits"].table.row(0)
    assert (limit["is_exceeded"], limit["is_undecided"]) == (
        state == "exceeded",
        state == "undecided",
    )


def test_series_with_trends_that_do_not_overlap_differ() -> None:
    base = [77.5, 79.7, 79.1, 82.6, 84.6, 87.0, 86.2, 88.4, 87.5, 91.4, 90.4, 93.2, 98.5, 101.2]
    new = [116.3, 119.7, 113.2, 119.0, 115.2, 115.2, 121.7, 116.5, 115.9, 118.2, 112.0, 111.1]
    found = one(*(of_steps(n, 1e6 * np.array(s)) for n, s in (("a", base), ("b", new))), "5%")
    judged = row(found, "judged", "measure", "step_period_ns")
    assert judged["verdict"] == "worse"
    assert 0.2 < judged["low_ratio"] < judged["change_ratio"] < judged["high_ratio"] < 0.45
    assert exceeded(found) == [True]
    assert any("get longer or shorter" in s for s in sentences(found.results["judged"].notes))
    same = one(*(of_steps(name, 1e6 * np.array(base)) for name in ("a", "b")), "5%")
    assert (exceeded(same), undecided(same)) == ([False], [False])


def test_several_runs_of_each_are_the_unit() -> None:
    bases = [Program(noise_ratio=0.01, seed=seed).summary(f"b{seed}") for seed in range(3)]
    news = [
        Program(kernels=longer(GEMM, 8 * MS), noise_ratio=0.01, seed=seed).summary(f"n{seed}")
        for seed in range(5, 9)
    ]
    found = compare(bases, news)
    adds_up(found)
    judged = row(found, "judged", "measure", "step_period_ns")
    assert (judged["base_count"], judged["new_count"]) == (3, 4)
    assert judged["verdict"] == "worse"
    assert found.results["judged"].scalars["of_runs"]
    assert found.results["difference"].scalars["base_count"] == 3 * 41
    assert found.title == "n5, n6, n7, n8 compared with b0, b1, b2"
    with pytest.raises(UsageError, match="one run per side"):
        compare(bases, [])


def test_ranks_are_held_against_ranks() -> None:
    def run(name: str, slow: float) -> Summary:
        parts = []
        for rank, factor in enumerate((1.0, slow)):
            own = of_steps(name, np.full(8, 1e8 * factor)).table("steps")
            parts.append(own.assign(rank=rank))
        steps = Table.stacked(parts)
        return replace(of_steps(name, np.ones(8)), tables={"steps": steps})

    ranks = one(run("base", 1.0), run("new", 1.2)).results["ranks"].table.to_frame()
    assert ranks["rank"].tolist() == [0, 1]
    assert ranks["period_change_ratio"].tolist() == pytest.approx([0.0, 0.2], abs=1e-6)


def test_runs_that_are_known_by_their_measures_alone_are_told() -> None:
    def printed(name: str, rate: float) -> Summary:
        rows = {"measure": ["samples_per_s"], "value": [rate], "unit": ["1/s"], "scope": ["run"]}
        table = Table({**rows, "better": ["higher"]})
        return Summary(name, "table", tables={"measures": table})

    found = one(printed("base", 100.0), printed("new", 90.0), "5%")
    judged = row(found, "judged", "measure", "samples_per_s")
    assert judged["change_ratio"] == pytest.approx(-0.1)
    assert judged["verdict"] == "not enough data"
    assert (exceeded(found), undecided(found)) == ([False], [True])
    assert "difference" in found.missing
    several = compare(
        [printed("a", 100.0), printed("b", 101.0)], [printed("c", 90.0), printed("d", 91.0)]
    )
    assert row(several, "judged", "measure", "samples_per_s")["verdict"] == "worse"


def test_ranks_whose_host_runs_ahead_are_held_against_one_another_by_their_devices() -> None:
    def run(name: str, device_ms: int) -> Summary:
        parts = []
        for rank in (0, 1):
            own = of_steps(name, np.full(8, 1e7)).table("steps")  # the host takes 10 ms
            spans = np.full(len(own), float(device_ms * MS * (1 + rank)))
            parts.append(own.assign(rank=rank, duration_ns=spans, is_counted=own["step"] > 0))
        return replace(of_steps(name, np.ones(8)), tables={"steps": Table.stacked(parts)})

    ranks = one(run("base", 20), run("new", 25)).results["ranks"].table.to_frame()
    assert ranks["base_period_ns"].tolist() == [20 * MS, 40 * MS]
    assert ranks["new_period_ns"].tolist() == [25 * MS, 50 * MS]
    assert ranks["period_change_ratio"].tolist() == pytest.approx([0.25, 0.25])


def with_ranks(kept: Summary, *numbers: range) -> Summary:
    """Return the run with copies of its rank; each keeps the steps with the given numbers."""
    steps = kept.table("steps")
    ranks = [
        steps.take(np.isin(steps["step"], list(wanted))).assign(rank=np.full(len(wanted), rank))
        for rank, wanted in enumerate(numbers)
    ]
    return replace(kept, tables={**kept.tables, "steps": Table.stacked(ranks)})


def test_step_numbers_that_ranks_lack_are_counted_in_a_note() -> None:
    base = Program(noise_ratio=0.03, seed=1).summary("base")
    numbers = base.table("steps")["step"].tolist()
    assert not any("do not occur" in said for said in sentences(one(base, base).notes))
    first = numbers[0]
    both = range(first, first + 20), range(first + 5, first + 25)
    found = one(base, with_ranks(base, *both))
    (said,) = [said for said in sentences(found.notes) if "do not occur" in said]
    counts = {run: len(rows) for run, rows in found.results["steps"].to_frame().groupby("side")}
    assert said == (
        f"base: the statistical test and the list of steps omit 10 of {counts['new'] + 10} steps, "
        "because their numbers do not occur in all ranks. The means contain them."
    )

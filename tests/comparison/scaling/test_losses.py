"""The lost efficiency is split into what was planted, and adds up."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.comparison.scaling.sized_runs import MS, PARTS, sized
from traceprof.comparison.scaling.compared import scaling
from traceprof.comparison.scaling.points import LOSSES, OUTSIDE, shared_out, split_losses

BASE = {"compute": 90 * MS, "transfer": 4 * MS, "host": 6 * MS}
ALL = {
    "communication": 20 * MS,
    "stragglers": 7 * MS,
    "compute": 95 * MS,
    "transfer": 6 * MS,
    "memory": 3 * MS,
    "input": 11 * MS,
    "host": 8 * MS,
}
NAMES = {
    "communication": "exposed communication",
    "stragglers": "waiting for stragglers",
    "compute": "slower compute",
    "transfer": "exposed transfers",
    "memory": "device memory",
    "input": "waiting for input",
    "host": "other idle",
}


def losses_of(*runs: object) -> pd.DataFrame:
    return scaling(list(runs)).results["scaling"].to_frame("losses")  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_weak_scaling_loses_what_a_step_takes_longer(n: int) -> None:
    losses = losses_of(sized(1, batch=32, parts=BASE), sized(n, batch=32 * n, parts=ALL))
    found = losses.set_index("loss")["lost_ns"].to_dict()
    planted = {NAMES[name]: ns - BASE.get(name, 0) for name, ns in ALL.items()}
    assert {name: ns for name, ns in found.items() if name != OUTSIDE} == planted
    assert sum(found.values()) == 50 * MS
    assert losses["lost_ratio"].sum() == pytest.approx(1 - 100 / 150)


def test_strong_scaling_loses_against_the_base_on_as_many_samples() -> None:
    half = {"compute": 50 * MS, "communication": 15 * MS, "transfer": 2 * MS, "host": 3 * MS}
    found = scaling([sized(1, batch=64, parts=BASE), sized(2, batch=64, parts=half)])
    losses = found.results["scaling"].to_frame("losses").set_index("loss")
    assert losses["lost_ns"].to_dict() == {
        "exposed communication": 15 * MS,
        "slower compute": 5 * MS,
        "exposed transfers": 0,
        "other idle": 0,
    }
    table = found.results["scaling"].table.to_frame()
    assert table["scaling"].iloc[-1] == "strong"
    assert losses["lost_ratio"].sum() == pytest.approx(1 - table["efficiency_ratio"].iloc[-1])


def test_what_the_window_does_not_hold_is_told_apart() -> None:
    # 32 samples in 100 ms are 320 per s; 300 are 93.75% of that.
    runs = [sized(1, batch=32, parts=BASE), sized(2, 600, batch=64, parts=BASE)]
    losses = losses_of(*runs).set_index("loss")["lost_ns"]
    assert losses[OUTSIDE] == 6_250_000
    assert losses.drop(OUTSIDE).abs().sum() == 0


def test_a_run_whose_contents_are_not_known_is_not_split() -> None:
    found = scaling([sized(1, batch=32, parts=BASE), sized(2, 600, batch=64)])
    assert "losses" not in found.results["scaling"].tables


_NS = st.integers(0, 10**10)
_PARTS = st.dictionaries(st.sampled_from(LOSSES[:-1]), _NS, min_size=1)


@given(_PARTS, _PARTS, st.floats(0.001, 100), st.floats(0.001, 2))
def test_a_split_adds_up_to_the_ns(
    own: dict[str, int], base: dict[str, int], share: float, efficiency: float
) -> None:
    found = split_losses(own, base, share, efficiency)
    whole = sum(own.values())
    assert sum(one.actual_ns for one in found) == whole
    assert sum(one.lost_ns for one in found) == whole - round(efficiency * whole)
    known = [one for one in found if one.name != OUTSIDE]
    assert {one.name: one.actual_ns for one in known if one.actual_ns} == {
        name: ns for name, ns in own.items() if ns
    }
    assert sum(one.base_ns for one in known) == round(share * sum(base.values()))


@given(st.dictionaries(st.text(), _NS), st.integers(1, 5_000))
def test_shares_add_up(totals: dict[str, int], n: int) -> None:
    assert sum(shared_out(totals, n).values()) == sum(totals.values()) // n


def test_every_part_of_the_tests_is_a_loss() -> None:
    assert NAMES.keys() == PARTS.keys()
    assert set(NAMES.values()) < set(LOSSES)

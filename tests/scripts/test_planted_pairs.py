"""scripts/planted_pairs: the kinds of series are as named, and the table has a row for each."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import numpy as np
import pytest

from tests.requirements import ROOT


@pytest.fixture(scope="module")
def planted():
    loader = SourceFileLoader("planted_pairs", str(ROOT / "scripts" / "planted_pairs"))
    spec = spec_from_loader("planted_pairs", loader)
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_table_has_a_row_for_each_kind_and_length(planted):
    lines = list(planted.table(2))
    assert len(lines) == 2 + len(planted.KINDS) * len(planted.LENGTHS)
    assert {line.count("|") for line in lines} == {8}


def test_neighbors_are_correlated_as_named(planted):
    series = planted.neighbors(0.7, 20_000, np.random.default_rng(1))
    assert np.corrcoef(series[1:], series[:-1])[0, 1] == pytest.approx(0.7, abs=0.03)
    assert series.std() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("kind", ["a line of +30%, 2%", "+50% from the middle on, 2%"])
def test_a_drift_does_not_hide_a_difference(planted, kind):
    alarms, coverage, power, exceeded, _ = planted.shares(kind, 30, 100)
    assert alarms <= 0.05
    assert coverage >= 0.95
    assert power >= 0.9
    assert 0.3 <= exceeded <= 0.7


def test_correlated_noise_is_covered(planted):
    alarms, coverage, *_ = planted.shares("AR(0.7), 5%", 60, 200)
    assert alarms <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5
    assert coverage >= 0.93

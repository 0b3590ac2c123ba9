"""What is kept of an experiment is a run for each change, which comparisons understand."""

import pytest

from tests.trying.test_experiment import PLAN, tried
from traceprof.comparison.comparing import compare
from traceprof.store import Store
from traceprof.trying.kept import summaries_of


def test_runs_come_back_from_the_database_and_are_compared(monkeypatch, tmp_path):
    _, outcomes, found = tried(monkeypatch, {"bf16": 0.4, "fp16": "fails"})
    store = Store.at(tmp_path / "runs.sqlite")
    names = [store.add(one) for one in summaries_of(found, "mine", {"net": "gpt"})]
    assert names == ["mine-none", "mine-bf16"]
    base, new = map(store.get, names)
    assert new.labels == {"net": "gpt", "change": "bf16"}
    assert new.command == " ".join(PLAN.command)
    compared = compare([base], [new])
    (row,) = [
        row for row in compared.results["judged"].table.rows() if row["measure"] == "step_period_ns"
    ]
    assert row["verdict"] == "better"
    assert -row["change_ratio"] == pytest.approx(outcomes["bf16"].saving_ratio, abs=0.02)

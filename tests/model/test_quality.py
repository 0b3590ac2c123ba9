"""Which way metrics get better, by their names."""

import pytest

from traceprof.model.summary import better_of


@pytest.mark.parametrize(
    "name", ["top1", "val_acc", "acc1", "Acc@5", "mAP50", "eval/f1", "bbox/AP", "samples_per_s"]
)
def test_of_these_more_is_better(name: str) -> None:
    assert better_of(name) == "higher"


@pytest.mark.parametrize("name", ["val_loss", "eval_wer", "mape", "rmse", "ppl", "step_period_ns"])
def test_of_these_less_is_better(name: str) -> None:
    assert better_of(name) == "lower"


@pytest.mark.parametrize("name", ["power", "lr", "grad_norm", "answers", "maps", "accumulation"])
def test_words_within_words_tell_nothing(name: str) -> None:
    assert better_of(name) == ""

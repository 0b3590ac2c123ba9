from tests.builders import TraceBuilder, plain
from tests.measures.steps.test_phases import add
from traceprof.measures.steps.epochs import epochs_of_loaders, epochs_of_ranks
from traceprof.model.ranks import Ranks


def epochs_of(*passes):
    """Return the epochs of passes of ten words each; those after "begin" are over a loader."""
    builder = TraceBuilder()
    for number, words in enumerate(passes):
        kind, _, text = words.partition(" ")
        if kind == "begin":
            builder.phase("data.start", 1000 * number, 1000 * number + 5)
        add(builder, text, at=1000 * number + 10)
    return plain(epochs_of_loaders(builder.build()), "start_ns", "end_ns")


def test_each_pass_over_a_loader_that_trains_is_an_epoch() -> None:
    passes = ["begin d f b o d f b o x", "begin d f b o x"]
    assert epochs_of(*passes) == [(0, 1000), (1000, 1050)]


def test_the_last_pass_may_be_cut_off_with_the_recording() -> None:
    builder = TraceBuilder()
    for number in range(3):
        builder.phase("data.start", 1000 * number, 1000 * number + 5)
        add(builder, "d f b o d f b o", at=1000 * number + 10)
    found = epochs_of_ranks(Ranks.of(builder.build()))
    assert found["is_whole"].tolist() == [True, True, False]
    named = TraceBuilder().range("epoch 0", 0, 50).range("epoch 1", 50, 90).build()
    assert epochs_of_ranks(Ranks.of(named))["is_whole"].tolist() == [True, True]


def test_a_validation_is_of_the_epoch_before_it() -> None:
    passes = ["begin d f b o x", "begin d e d e x", "begin d f b o x", "begin d e x"]
    assert epochs_of(*passes) == [(0, 2000), (2000, 2050)]


def test_a_loader_that_only_validates_makes_no_epochs() -> None:
    assert epochs_of("hand f b o f b o", "begin d e d e x", "hand f b o f b o") == []

import pytest

from traceprof.facts.names.phases import phase_of


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("Forward", "forward"),
        ("## forward ##", "forward"),
        ("## copy_batch_to_gpu ##", "h2d"),
        ("forward_pass", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("loss.backward", "backward"),
        ("optimizer.step", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data"),
        ("load batch", "data"),
        ("copy to gpu", "h2d"),
        ("all_reduce", "communication"),
        ("validation", "eval"),
        ("validate", "eval"),
        ("attention", None),
    ],
)
def test_names_of_phases(name: str, phase: str | None) -> None:
    assert phase_of(name, "") == phase


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("Forward pass", "forward"),
        ("fwd", "forward"),
        ("loss.backward", "backward"),
        ("data loading", "data"),
        ("optimizer.step", "optimizer"),
        ("Optimizer Step", "optimizer"),
        ("zero_grad", "optimizer"),
        ("backward hooks of my own", None),
        ("forwarding", None),
    ],
)
def test_phases_by_the_names_that_people_write(name: str, phase: str | None) -> None:
    assert phase_of(name, "") == phase

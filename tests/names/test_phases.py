import pytest

from traceprof.names.ranges import phase_of


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


@pytest.mark.parametrize(
    "name",
    [
        "data copy",
        "data_transfer",
        "h2d",
        "H2D copy",
        "copy_h2d",
        "to device",
        "to_gpu",
        "batch to device",
        "move batch to cuda",
        "copy inputs",
        "host to device transfer",
    ],
)
def test_moving_a_batch_is_no_waiting_for_it(name: str) -> None:
    assert phase_of(name, "") == "h2d"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("data", "data"),
        ("dataloader", "data"),
        ("next batch", "data"),
        ("wait for batch", "data"),
        ("data loader wait", "data"),
        ("comm", "communication"),
        ("comm: grads", "communication"),
        ("communication", "communication"),
        ("eval step", "eval"),
        ("opt.zero_grad", "optimizer"),
        ("update weights", "optimizer"),
    ],
)
def test_more_names_of_phases(name: str, phase: str) -> None:
    assert phase_of(name, "") == phase


@pytest.mark.parametrize(
    "name",
    [
        "batch",  # a step
        "transfer",  # from where to where?
        "copy",
        "commit",
        "command buffer",
        "comment",
        "generate_data",
        "data parallel",
        "database",
        "metadata",
        "batch norm",
        "evaluate_function",
        "data_ptr",
        "device",
        "option",
        "aten::_to_copy",
    ],
)
def test_false_friends_are_no_phase(name: str) -> None:
    assert phase_of(name, "") is None

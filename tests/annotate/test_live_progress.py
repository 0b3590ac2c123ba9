"""How far a program is, from the lengths that its trainer, progress bar, and DataLoader state."""

import sys
import types

import pytest


class Pass:
    """The iterator of a DataLoader with 50 batches."""

    def __init__(self, n_batches, length=50):
        self._num_yielded = n_batches
        self._length = length

    def __len__(self):
        if self._length is None:
            raise TypeError
        return self._length


class Bar:
    def __init__(self, n, total, pos=0):
        self.n, self.total, self.pos = n, total, pos


@pytest.fixture
def module(runtime):
    return runtime("live_progress")


@pytest.fixture
def bars(monkeypatch):
    """Return the bars that tqdm shows now."""
    found = []
    tqdm = types.SimpleNamespace(_instances=found)
    monkeypatch.setitem(sys.modules, "tqdm.std", types.SimpleNamespace(tqdm=tqdm))
    return found


def test_a_program_that_states_no_length_has_no_progress(module, bars):
    assert module.ProgressReader().read(1, 1) == {}
    stream = Pass(7, length=None)
    module.note_pass(stream)
    bars.append(Bar(5, None))
    assert module.ProgressReader().read(1, 1) == {}


def test_a_pass_over_the_training_data_is_an_epoch(module):
    batches = Pass(7)
    module.note_pass(batches)
    assert module.ProgressReader().read(1, 10) == {"epoch": (7, 50, 7, 10, "DataLoader")}
    del batches
    assert module.ProgressReader().read(1, 10) == {}


def test_the_speed_is_that_of_the_last_half(module):
    batches, progress = Pass(0), module.ProgressReader()
    module.note_pass(batches)
    earlier = []
    for done in range(41):
        batches._num_yielded = done
        _, _, since, since_ns, _ = progress.read(done, 1000 + 10 * done)["epoch"]
        assert since_ns == 1000 + 10 * since
        earlier.append(since)
    assert all(since <= done / 2 for done, since in enumerate(earlier))
    assert earlier[-1] == 16  # marks at 2, 4, 8, 16, 32
    batches._num_yielded = 1  # the next epoch
    assert progress.read(50, 9000)["epoch"] == (1, 50, 1, 9000, "DataLoader")


def test_nothing_changes_while_no_step_ends(module):
    batches, progress = Pass(7), module.ProgressReader()
    module.note_pass(batches)
    before = progress.read(3, 10)
    evaluation = Pass(2)
    module.note_pass(evaluation)
    assert progress.read(3, 20) == before


def test_a_bar_of_epochs_has_done_a_part_of_the_current_one(module, bars):
    batches = Pass(25)
    module.note_pass(batches)
    bars += [Bar(25, 50, pos=-1), Bar(3, 10)]
    assert module.ProgressReader().read(1, 1)["run"] == (3.5, 10, 3.5, 1, "progress bar")
    bars.pop()  # a bar of the batches says nothing about the run
    assert set(module.ProgressReader().read(1, 1)) == {"epoch"}


def test_a_trainer_knows_its_last_step(module, bars):
    class CallbackHandler:
        def on_train_begin(self, args, state, control):
            return control

    class State:
        global_step, max_steps = 30, 400

    state = State()
    module._follow_trainer(types.SimpleNamespace(CallbackHandler=CallbackHandler))
    assert CallbackHandler().on_train_begin(None, state, "control") == "control"
    bars.append(Bar(1, 9))
    assert module.ProgressReader().read(1, 1)["run"] == (30, 400, 30, 1, "Trainer")


def test_the_last_logged_numbers_are_metrics(module):
    evaluation = {"eval_loss": 2.0, "step": 20}
    logged = {"loss": 1.5, "epoch": 0.1, "learning_rate": 0.01, "name": "x", "step": 20}

    history = [{"loss": 9.0, "step": 1}, logged, evaluation]
    state = types.SimpleNamespace(global_step=30, log_history=history)
    module._trainer_state = lambda: state
    assert module.read_metrics() == {"loss": (1.5, 20), "learning_rate": (0.01, 20)}
    state.log_history = [{"loss": float("nan"), "step": 1}]
    assert module.read_metrics() == {"loss": (None, 1)}


@pytest.mark.parametrize(
    ("n_epochs", "max_steps", "expected"),
    [
        (10, -1, (250, 500)),
        (None, 400, (240, 400)),
        (10, 400, (240, 400)),  # the steps end it first
        (-1, -1, None),
    ],
)
def test_lightning_ends_with_its_epochs_or_steps(module, n_epochs, max_steps, expected):
    class Trainer:
        training, global_step, num_training_batches = True, 240, 50

        def fit(self):
            batches = types.SimpleNamespace(total=types.SimpleNamespace(completed=250))
            loop = types.SimpleNamespace(batch_progress=batches)
            self.fit_loop = types.SimpleNamespace(epoch_loop=loop)
            self.max_epochs, self.max_steps = n_epochs, max_steps

    module._follow_lightning(types.SimpleNamespace(Trainer=Trainer))
    trainer = Trainer()
    trainer.fit()
    found = module.ProgressReader().read(1, 1).get("run")
    assert (found and found[:2]) == expected

"""Generation is recognized by the shapes of forward passes without gradients, and by calls."""

import types

import pytest


class Tensor:
    def __init__(self, *shape, dtype="int64"):
        self.shape, self.dtype = shape, dtype

    def dim(self):
        return len(self.shape)


TORCH = types.SimpleNamespace(
    Tensor=Tensor, int64="int64", int32="int32", is_grad_enabled=lambda: False
)


class Policy:
    pass


class RewardModel:
    pass


class ValueHead:
    pass


class Emitter:
    def __init__(self):
        self.past, self.marks = [], {}

    def add_past(self, start_ns, end_ns, name, payload=0):
        self.past.append(name)

    def mark(self, name, payload=0):
        self.marks[name] = payload

    def push(self, name, payload=0):
        self.past.append(name)

    def pop(self):
        pass


@pytest.fixture
def played(runtime, monkeypatch):
    """Return a function that plays forward passes, and returns their phases and the events."""
    session, rollouts = runtime("session"), runtime("hook_rollouts")
    emitter = Emitter()
    monkeypatch.setattr(session, "active", True)
    monkeypatch.setattr(session, "emitter", lambda: emitter)
    # A browser of another test may have left a loop in this thread.
    monkeypatch.setattr(rollouts.asyncio, "_get_running_loop", lambda: None)

    def play(passes, **kwargs):
        phases = []
        for module, *shape in passes:
            phases.append(rollouts.begin_pass(TORCH, module, (Tensor(*shape),), kwargs))
            rollouts.end_pass()
        rollouts.end_spans()
        return phases, emitter

    play.rollouts = rollouts
    return play


def test_sequences_that_grow_by_a_token_are_generated(played):
    policy = Policy()
    phases, emitter = played([(policy, 16, length) for length in range(3, 11)])
    assert phases == ["eval"] * 8
    assert emitter.past == ["generation"]
    assert emitter.marks == {
        "generated.sequences": 16,
        "generated.tokens": 128,
        "generation.running": 16,
    }


def test_single_tokens_after_a_prompt_are_generated(played):
    policy = Policy()
    _, emitter = played([(policy, 4, 7), *[(policy, 4, 1)] * 5])
    assert emitter.past == ["generation"]
    assert emitter.marks["generated.tokens"] == 24


def test_sequences_that_end_leave_the_batch(played):
    policy = Policy()
    _, emitter = played([(policy, 4, 5), (policy, 4, 6), (policy, 3, 7), (policy, 1, 8)])
    assert emitter.marks == {
        "generated.sequences": 4,
        "generated.tokens": 12,
        "generation.running": 1,
    }


@pytest.mark.parametrize(
    "lengths",
    [
        [64] * 12,  # an evaluation with batches of one length
        [57, 58, 58, 60, 61, 61],  # sorted by length
        [9, 8, 7, 6, 5],
        [1] * 12,  # one number per sample, as in a recommender
        [5, 6, 7],  # too few
    ],
)
def test_batches_of_an_evaluation_are_not_generated(played, lengths):
    policy = Policy()
    phases, emitter = played([(policy, 8, length) for length in lengths])
    assert phases == ["eval"] * len(lengths)
    assert emitter.past == [] and emitter.marks == {}


def test_numbers_that_are_no_tokens_are_not_generated(played):
    tensor = Tensor(8, 5, dtype="float32")
    assert played.rollouts.begin_pass(TORCH, Policy(), (tensor,), {}) == "eval"


def test_a_pass_over_the_generated_sequences_scores_them(played):
    policy = Policy()
    rollout = [(policy, 16, length) for length in range(1, 9)]
    scored = [(policy, 16, 8), (RewardModel(), 8, 9), (ValueHead(), 16, 8), (policy, 16, 40)]
    phases, _ = played([*rollout, *scored])
    assert phases[8:] == ["logprobs", "reward", "eval", "eval"]


def test_an_update_lasts_from_the_first_to_the_last_training_pass_after_a_rollout(played):
    rollouts, policy = played.rollouts, Policy()
    _, emitter = played([(policy, 2, length) for length in range(1, 6)])
    rollouts.begin_training()
    rollouts.end_training()
    rollouts.begin_training()
    rollouts.end_training()
    played([(policy, 2, 5)])
    assert emitter.past == ["generation", "update"]


def test_a_program_that_trains_before_it_generates_has_no_updates(played):
    rollouts, policy = played.rollouts, Policy()
    for _ in range(2):
        rollouts.begin_training()
        rollouts.begin_optimizer()
        rollouts.end_training()
        _, emitter = played([(policy, 2, length) for length in range(1, 6)])
    assert emitter.past == ["generation", "generation"]


def test_nested_calls_count_what_they_generate_once(played):
    rollouts, emitter = played.rollouts, played([])[1]
    module = types.SimpleNamespace(Model=type("Model", (), {}), Trainer=type("Trainer", (), {}))
    model = module.Model()
    module.Model.generate = lambda _self, **_inputs: Tensor(4, 30)
    module.Trainer._generate = lambda _self: (model.generate(input_ids=Tensor(4, 6)), "text")
    rollouts._wrap_call(TORCH, "Model", "generate", "generation", module)
    rollouts._wrap_call(TORCH, "Trainer", "_generate", "generation", module)
    module.Trainer()._generate()
    assert emitter.past == ["generation", "generation"]
    assert emitter.marks == {"generated.sequences": 4, "generated.tokens": 96}


def test_training_on_generated_sequences_is_recorded(played):
    rollouts, policy = played.rollouts, Policy()
    rollouts.begin_pass(TORCH, policy, (Tensor(2, 8),), {}, "forward")
    _, emitter = played([(policy, 4, length) for length in range(1, 9)])
    for shape in ((64, 128), (2, 8)):  # only the second one is of the rollout
        rollouts.begin_pass(TORCH, policy, (Tensor(*shape),), {}, "forward")
    assert emitter.past == ["generation", "rollout.used"]


def test_calls_of_libraries_count_what_they_generate(played):
    rollouts = played.rollouts
    model = types.SimpleNamespace(config=types.SimpleNamespace(is_encoder_decoder=False))
    prompt = {"input_ids": Tensor(4, 6)}
    assert rollouts.count_generated(TORCH, Tensor(4, 30), (model,), prompt) == (4, 96, 30)
    request = types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=[1, 2, 3])] * 2)
    assert rollouts.count_generated(TORCH, [request] * 5, (model,), {}) == (10, 30, 0)
    assert rollouts.count_generated(TORCH, object(), (model,), {}) == (0, 0, 0)


def test_timers_of_libraries_name_phases(played):
    rollouts, emitter = played.rollouts, played([])[1]
    torch = types.SimpleNamespace(is_grad_enabled=lambda: False)

    class Context:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return False

    class Other(Context):
        pass

    module = types.SimpleNamespace(
        ProfilingContext=Context, marked_timer=lambda _name, _raw: Other("no phase")
    )
    rollouts._wrap_timer(torch, "ProfilingContext", "name", module)
    rollouts._wrap_timer(torch, "marked_timer", "name", module)
    for name in ("GRPOTrainer._calculate_rewards", "GRPOTrainer.something"):
        with Context(name):
            pass
    assert emitter.past == ["reward"]
    with module.marked_timer("update_actor", {}) as timer:
        assert timer.name == "no phase"
    assert emitter.past == ["reward", "update"]

"""Generation is recognized by the shapes of forward passes without gradients, and by calls."""

import functools
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
        self.past, self.marks, self.spans = [], {}, []

    def add_past(self, start_ns, end_ns, name, payload=0):
        self.past.append(name)
        self.spans.append((start_ns, end_ns, name))

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


@pytest.fixture
def at(played, monkeypatch):
    """Return a function that plays passes and ends of blocks, each from and until given times.

    A module None is the end of a block without gradients at the first time.
    """
    rollouts = played.rollouts
    clock = []
    monkeypatch.setattr(rollouts, "time_ns", lambda: clock[-1])
    leave = rollouts._wrap_exit(TORCH, lambda *_: None)

    def play(*events):
        for module, shape, start, end in events:
            clock.append(start)
            if module is None:
                leave(None)
                continue
            rollouts.begin_pass(TORCH, module, (Tensor(*shape),), {})
            clock.append(end)
            rollouts.end_pass()
        return [span for span in played([])[1].spans if span[0] < span[1]]

    return play


def decoding(policy):
    """Return 8 passes of 10 ns over 2 sequences, one every 12 ns; the last ends at 94 ns."""
    return [(policy, (2, i + 1), 12 * i, 12 * i + 10) for i in range(8)]


def test_a_phase_of_passes_lasts_until_the_block_without_gradients_ends(at):
    policy = Policy()
    spans = at(
        *decoding(policy),
        (None, (), 97, 0),  # the last token is sampled
        (policy, (1, 8), 200, 220),
        (policy, (1, 8), 225, 245),  # the other half of the batch; a softmax between both
        (None, (), 255, 0),
    )
    assert spans == [
        (0, 97, "generation"),
        (220, 225, "logprobs"),
        (245, 255, "logprobs"),
    ]


def test_other_work_in_a_block_without_gradients_belongs_to_no_phase(at):
    policy, reward = Policy(), RewardModel()
    spans = at(
        *decoding(policy),
        (policy, (2, 8), 150, 170),
        (reward, (2, 8), 175, 195),  # another phase begins
        (None, (), 300, 0),  # longer than the pass itself
        (None, (), 301, 0),
    )
    assert spans == [(0, 94, "generation")]


def test_a_model_of_several_modules_decodes_until_its_last_module_has_run(at):
    head, policy, reward = object(), Policy(), object()
    passes = decoding(policy)
    for i in range(7, -1, -1):
        passes.insert(i + 1, (head, (2, 9, 64), 12 * i + 10, 12 * i + 11))
    assert at(*passes, (reward, (2, 64), 100, 150)) == [(0, 95, "generation")]


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


def test_the_lists_of_an_outer_call_count_more_exactly_than_the_padded_tensors_within(played):
    """TRL generates again after the tools' answers; it returns prompts, completions, and a mask."""
    rollouts, emitter = played.rollouts, played([])[1]
    module = types.SimpleNamespace(Model=type("Model", (), {}), Trainer=type("Trainer", (), {}))
    model = module.Model()
    module.Model.generate = lambda _self, **_inputs: Tensor(2, 30)
    answer = ([[1] * 6, [1] * 4], [[7] * 9, [7] * 5], [[1] * 9, [1, 1, 0, 0, 1]], "text")

    def generate_twice(_self):
        for _ in range(2):
            model.generate(input_ids=Tensor(2, 6))
        return answer

    module.Trainer._generate = generate_twice
    rollouts._wrap_call(TORCH, "Model", "generate", "generation", module)
    rollouts._wrap_call(TORCH, "Trainer", "_generate", "generation", module)
    module.Trainer()._generate()
    assert emitter.marks == {"generated.sequences": 2, "generated.tokens": 12}
    assert rollouts.local.finished == (2, 30)
    model.generate(input_ids=Tensor(2, 6))
    assert emitter.marks == {"generated.sequences": 2, "generated.tokens": 48}


def test_tokens_after_the_end_of_a_sequence_are_padding(runtime):
    torch, counts = pytest.importorskip("torch"), runtime("decoding")
    config = types.SimpleNamespace(eos_token_id=[1, 2])
    model = types.SimpleNamespace(generation_config=config)
    prompt = {"input_ids": torch.tensor([[5, 1], [5, 5]])}
    rows = [[5, 1, 7, 7, 2, 0, 0], [5, 5, 1, 1, 0, 0, 0]]
    assert counts.count_generated(torch, torch.tensor(rows), (model,), prompt) == (2, 4, 7)
    rows = [[5, 1, 7, 7, 7], [5, 5, 7, 7, 1]]  # none ends early
    assert counts.count_generated(torch, torch.tensor(rows), (model,), prompt) == (2, 6, 5)


def test_tokens_of_training_passes_are_counted(runtime):
    """Integers are tokens if they are named so, or if the output has a vector for each of them."""
    torch = pytest.importorskip("torch")
    count = functools.partial(runtime("decoding").count_trained, torch)
    model, embedding = torch.nn.Linear(1, 1), torch.nn.Embedding(3, 7)
    tokens, logits, scores = torch.ones(2, 5).long(), torch.ones(2, 5, 7), torch.ones(2, 7)
    assert count(model, (), {"input_ids": tokens}, scores) == 10
    assert count(model, (tokens,), {}, logits) == 10
    assert count(model, (tokens,), {}, (logits, torch.ones(()))) == 10
    assert count(model, (tokens,), {}, types.SimpleNamespace(logits=logits)) == 10
    assert count(model, (tokens,), {}, scores) == 0  # categories of two rows
    assert count(embedding, (tokens,), {}, logits) == 0
    assert count(model, (tokens.float(),), {}, logits) == 0
    assert count(model, (), {}, None) == 0
    assert count(model, (tokens,), {}, ()) == 0


def test_training_on_generated_sequences_is_recorded(played):
    rollouts, policy = played.rollouts, Policy()
    rollouts.begin_pass(TORCH, policy, (Tensor(2, 8),), {}, "forward")
    _, emitter = played([(policy, 4, length) for length in range(1, 9)])
    for shape in ((64, 128), (2, 8)):  # only the second one is of the rollout
        rollouts.begin_pass(TORCH, policy, (Tensor(*shape),), {}, "forward")
    assert emitter.past == ["generation", "rollout.used"]


def test_training_on_many_other_sequences_is_recorded(played):
    """A sample of 1 sequence; 4 passes over 8 others are more than 16 epochs over the sample."""
    rollouts, policy = played.rollouts, Policy()
    _, emitter = played([(policy, 1, length) for length in range(1, 9)])
    marked = []
    for _ in range(4):
        rollouts.begin_pass(TORCH, policy, (Tensor(8, 64),), {}, "forward")
        rollouts.end_training()
        marked.append(emitter.past.count("rollout.unused"))
    assert marked == [0, 0, 1, 1]
    played([(policy, 1, 8)])
    assert "update" not in emitter.past


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


def test_log_probabilities_within_a_training_pass_are_part_of_it(played):
    rollouts, emitter = played.rollouts, played([])[1]
    torch = types.SimpleNamespace(is_grad_enabled=lambda: True)
    trl = rollouts._begin_timed(torch, "GRPOTrainer._get_per_token_logps_and_entropies")
    assert trl is None and emitter.past == []
    assert rollouts._begin_timed(torch, "fwd_logprobs_values_reward") is emitter
    assert emitter.past == ["logprobs"]

"""A draft model proposes tokens, and a target model verifies them in one pass.

Each loop knows how many tokens it accepted. Only the lengths of the passes are recorded.
"""

import types

import numpy as np
import pytest

from tests.annotate.test_hook_rollouts import Emitter


class Tokens:
    def __init__(self, values):
        self.values, self.dtype, self.is_cuda = np.asarray(values), "int64", False
        self.shape = self.values.shape

    def dim(self):
        return self.values.ndim

    def __getitem__(self, place):
        return Tokens(self.values[place])


TORCH = types.SimpleNamespace(
    Tensor=Tokens,
    int64="int64",
    int32="int32",
    is_grad_enabled=lambda: False,
    equal=lambda one, other: np.array_equal(one.values, other.values),
)


class Draft:
    pass


class Target:
    pass


class RewardModel:
    pass


class Cache:
    pass


class Recording:
    """What the hooks record of passes."""

    def __init__(self, rollouts, emitter):
        self.rollouts, self.emitter, self.phases, self.marked = rollouts, emitter, [], []
        emitter.mark = lambda name, n: self.marked.append((name, n))

    def run(self, module, tokens, **kwargs):
        """Run a pass, and return what it read."""
        self.phases.append(self.rollouts.begin_pass(TORCH, module, (Tokens(tokens),), kwargs))
        self.rollouts.end_pass()
        return tokens

    def marks(self, name):
        return [n for marked, n in self.marked if marked == name]


@pytest.fixture
def recorded(runtime, monkeypatch):
    session, rollouts, emitter = runtime("session"), runtime("hook_rollouts"), Emitter()
    monkeypatch.setattr(session, "active", True)
    monkeypatch.setattr(session, "emitter", lambda: emitter)
    return Recording(rollouts, emitter)


def extended(tokens, n):
    """Return the sequences with ``n`` more tokens."""
    more = np.arange(tokens.shape[1], tokens.shape[1] + n) * np.ones((len(tokens), 1), int)
    return np.concatenate([tokens, more], axis=1)


def generate(recorded, draft, target, prompt, accepted, n_drafts=4):
    """Decode without a cache: after each round, ``accepted`` tokens are kept."""
    kept = prompt
    for n in accepted:
        tokens = kept
        for _ in range(n_drafts):
            tokens = extended(recorded.run(draft, tokens), 1)
        recorded.run(target, tokens)
        kept = extended(kept, n)
    return kept


@pytest.mark.parametrize("n_drafts", [1, 3, 4, 8])
@pytest.mark.parametrize("batch", [1, 4])
def test_accepted_tokens_are_counted_up_to_the_last_round(recorded, n_drafts, batch):
    draft, target = Draft(), Target()
    most = n_drafts + 1
    for prompt in (5, 9):
        accepted = (1, most, 2, 1, most)
        kept = generate(recorded, draft, target, np.ones((batch, prompt)), accepted, n_drafts)
        assert kept.shape[1] - prompt == sum(accepted)  # the truth
    recorded.rollouts.end_spans()
    # Of the last round, and of other sequences, at least one token is accepted.
    least = sum(accepted) - most + 1 + 5 * (batch - 1)
    assert recorded.marks("generated.least") == [least, least]
    assert recorded.marks("generated.tokens") == []
    assert recorded.emitter.past == ["generation", "generation"]
    assert set(recorded.phases) == {"eval"}


def test_models_with_caches_read_only_new_tokens(recorded):
    draft, target, prompt = Draft(), Target(), np.ones((1, 7))
    for accepted in ((2, 5, 1, 1), (3, 2)):
        recorded.run(target, prompt)
        recorded.run(draft, prompt)
        for n in accepted:
            for _ in range(3):
                recorded.run(draft, prompt[:, :1])
            recorded.run(target, prompt[:, :5])
            recorded.run(draft, prompt[:, : 2 if n == 5 else 1])
    recorded.run(RewardModel(), np.ones((3, 40)))
    recorded.rollouts.end_spans()
    assert recorded.marks("generated.least") == [4, 2]  # one token for each verification
    assert recorded.marks("generated.tokens") == []
    assert recorded.emitter.past == ["generation", "generation"]
    assert set(recorded.phases) == {"eval"}


def test_log_probabilities_of_another_model_verify_nothing(recorded):
    """Rollouts from prompts of other lengths, each scored by a reference model."""
    policy, reference = Draft(), Target()
    for length in (4, 6, 9, 7):
        tokens = np.random.default_rng(length).integers(0, 99, (2, length))
        for _ in range(8):
            tokens = extended(recorded.run(policy, tokens), 1)
        recorded.run(reference, tokens)
    recorded.rollouts.end_spans()
    assert recorded.marks("generated.tokens") == [16] * 4
    assert recorded.marks("generated.least") == []
    assert recorded.emitter.past == ["generation", "logprobs"] * 4


def test_the_sequences_of_a_verification_are_scored_by_the_pass_after_it(recorded):
    draft, target = Draft(), Target()
    for _ in range(2):
        kept = generate(recorded, draft, target, np.ones((1, 5)), (3, 5, 2))
        recorded.run(target, kept)
    recorded.rollouts.end_spans()
    assert [phase for phase in recorded.phases if phase != "eval"] == ["logprobs"] * 2
    assert recorded.marks("generated.least") == [9, 9]


def test_a_model_that_begins_its_own_sequences_after_another_counts_all_tokens(recorded):
    """A pass over the prompt by one model is not read by the other."""
    first, second = Draft(), Target()
    tokens = recorded.run(first, np.ones((2, 5)))
    for _ in range(6):
        tokens = extended(recorded.run(second, tokens), 1)
    recorded.rollouts.end_spans()
    assert recorded.marks("generated.tokens") == [12]


def test_a_reward_model_that_reads_each_piece_is_no_target(recorded):
    """A search that is guided by rewards: all pieces of 8 tokens are kept."""
    policy, reward = Draft(), RewardModel()
    generate(recorded, policy, reward, np.ones((1, 5)), (8, 8), n_drafts=8)
    recorded.rollouts.end_spans()
    assert recorded.marks("generated.least") == []
    assert recorded.phases.count("reward") == 2

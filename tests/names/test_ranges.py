import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.model.table import Names, Table, objects
from traceprof.names import ranges
from traceprof.names.ranges import (
    PHASES,
    are_matched,
    codes_containing,
    common_categories,
    phases_of_ranges,
    plain_categories,
    plain_name,
    plain_names,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::copy_, op_id = 990724", "aten::copy_"),
        ("aten::mul, seq = 45328, op_id = 990726", "aten::mul"),
        ("AddmmBackward0, seq = 12, op_id = 7", "AddmmBackward0"),
        ("aten::mm, op_id = 3, sizes = [[2, 3], [3, 4]]", "aten::mm"),
        ("aten::mm, seq = 3, op_id = 4, sizes = [[2, 3], [3]]", "aten::mm"),
        ("step 3, seq", "step 3, seq"),
        ("Forward", "Forward"),
    ],
)
def test_what_emit_nvtx_adds_to_a_name_is_dropped(name: str, expected: str) -> None:
    assert plain_name(name) == expected


def test_names_of_a_column_are_read_once_each() -> None:
    names = Names.of(["b, seq = 1", "a", "b, seq = 2"])
    plain = plain_names(names)
    assert (list(plain), plain.texts.tolist()) == (["b", "a", "b"], ["a", "b"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::mm, seq = 12, op_id = 33", "aten::mm"),
        ("ProfilerStep#12", "ProfilerStep"),
        ("step 12", "step"),
        ("train_step_5", "train_step"),
        ("Epoch [3/100]", "Epoch"),
        ("epoch 3 of 100 batch=7", "epoch batch"),
        ("batch: 12", "batch"),
        ("free 0x7f00deadbeef", "free"),
        ("forward #3", "forward"),
        ("#3", "#"),
        ("layer 3", "layer 3"),
        ("block_12", "block_12"),
        ("step2vec", "step2vec"),
        ("Lösung step 3", "Lösung step"),
        ("", ""),
    ],
)
def test_what_tells_one_time_from_the_next_is_dropped(name: str, expected: str) -> None:
    names, place = common_categories(objects([name, "other"]))
    assert (names[place[0]], len(names)) == (expected, 2)


def test_what_pyprof_writes_is_told_as_the_function() -> None:
    name = (
        "{'mod': 'torch.nn.functional', 'op': 'linear', 'args': [{'name': '', 'type': 'tensor'}]}"
    )
    assert plain_name(name) == "torch.nn.functional.linear"
    assert plain_categories(objects([name, "x"]))[0].tolist() == [
        "torch.nn.functional.linear",
        "x",
    ]
    assert plain_name("{'mod': 1}") == "{'mod': 1}"
    stack = "{'traceMarker': ['train.py:34', '/lib/torch/nn/modules/conv.py:435', '/lib/to"
    assert plain_name(stack) == "train.py:34"
    assert plain_categories(objects([stack, "x"]))[0].tolist() == ["train.py:34", "x"]


_DECORATED_NAMES = objects(
    [
        "aten::mm, op_id = 12",
        "aten::mm, op_id = 7",
        "aten::mm, seq = 41, op_id = 8, sizes = [[2, 3]]",
        "aten::mm, seq = 42, op_id = 9",
        "aten::mm",
        "step 12",
        "layer, op_id = 1 of 2",
        "opt_id = 12",
    ]
)


@pytest.mark.parametrize(
    "pattern",
    [r", (seq|op_id) = \d+", r"^aten::mm$", r"= \d+$", r"op_id = 1", r"\d\d$", r"[0-9]{2}", "mm"],
)
def test_names_that_differ_in_a_decoration_are_matched_as_each_by_itself(pattern: str) -> None:
    expected = [re.search(pattern, name) is not None for name in _DECORATED_NAMES]
    assert are_matched(_DECORATED_NAMES, re.compile(pattern)).tolist() == expected


def test_words_with_numbers_are_found_in_names_that_differ_in_them_alone() -> None:
    assert codes_containing(_DECORATED_NAMES, ["op_id = 12"]).tolist() == [0]
    assert codes_containing(_DECORATED_NAMES, ["OP_ID"]).tolist() == [0, 1, 2, 3, 6]


def test_a_name_is_decorated_where_its_plain_name_is_another() -> None:
    expected = [plain_name(name) != name for name in _DECORATED_NAMES]
    assert ranges._plain(_DECORATED_NAMES)[2].tolist() == expected


def test_the_flags_of_a_pattern_count_whatever_is_in_the_names() -> None:
    shouted = re.compile("ATEN::MM", re.IGNORECASE)
    for names in (_DECORATED_NAMES, objects([*_DECORATED_NAMES, "schön"])):
        expected = [shouted.search(name) is not None for name in names]
        assert any(expected)
        assert are_matched(names, shouted).tolist() == expected


_NAMES = st.lists(
    st.sampled_from(
        [
            "aten::linear, seq = 12, op_id = 4",
            "aten::linear, seq = 13",
            "aten::linear, op_id = ",
            "aten::mm, seq = 5, sizes = [[2, 3], [3]]",
            "lr, seq = 5 steps",
            "step 12",
            "Step #3",
            "forward",
            "{'mod': 'torch.nn.functional', 'op': 'linear', 'args': []}",
            "{'traceMarker': ['train.py:34', 'net.py:17']}",
            "naïve step 7",
            "layer_3.conv2d",
            "12",
            "",
        ]
    ),
    max_size=8,
)


@given(_NAMES)
def test_names_that_are_looked_at_together_are_read_as_each_by_itself(texts: list[str]) -> None:
    names, step = objects(texts), re.compile(r"step\b|seq", re.IGNORECASE)
    numbered = re.compile(r"(?:[Ss]tep #?|, seq = )(?P<number>\d+)")
    plain, place = ranges.plain_categories(names)
    assert plain[place].tolist() == [ranges.plain_name(text) for text in texts]
    assert ranges._plain(names)[2].tolist() == [ranges.plain_name(own) != own for own in texts]
    assert ranges.are_matched(names, step).tolist() == [bool(step.search(own)) for own in texts]
    found = [numbered.search(own) for own in texts]
    assert ranges.numbers_in(names, numbered).tolist() == [int(m[1]) if m else -1 for m in found]
    alone = [ranges.common_categories(objects([text]))[0][0] for text in texts]
    common, place = ranges.common_categories(names)
    assert common[place].tolist() == alone


@pytest.mark.parametrize(
    ("pattern", "does"),
    [
        (r"compile.{0,99}(jit|autotun)", False),
        (r", \d+, true", False),
        (r"seq = \d{3}", True),
        (r"\d\d", True),
        (r"op_id = [0-4]", True),
        (r"h2d", False),
        (r"(nll|l1)_?loss", False),
        (r"o[p1]_id", True),
        (r"= \d2", True),
        (r"\d3", True),
        (r"o{2}", True),
    ],
)
def test_patterns_that_tell_numbers_look_at_each_name(pattern: str, does: bool) -> None:
    assert (ranges._LOOKS_AT_NUMBERS.search(pattern) is not None) is does
    names = [f"loop, seq = {n}, op_id = {n}" for n in (1, 22, 333)]
    wanted = [re.search(pattern, name) is not None for name in names]
    assert ranges.are_matched(objects(names), re.compile(pattern)).tolist() == wanted


def test_what_is_told_of_the_names_of_one_rank_is_told_of_all_that_have_the_same() -> None:
    ranks = [Names.of(["step 1", "gemm", "step 1"]) for _ in range(2)]
    assert ranks[0].texts is ranks[1].texts
    assert plain_categories(ranks[0].texts)[0] is plain_categories(ranks[1].texts)[0]
    assert Names.of(["step 1", "other"]).texts is not ranks[0].texts
    joined = Names.joined(ranks)
    assert joined.texts is ranks[0].texts
    assert joined.tolist() == ["step 1", "gemm", "step 1"] * 2


def phases_of(*names: str) -> list[str]:
    table = Table({"name": Names.of(names), "domain": Names.repeated("", len(names))})
    return [PHASES[place] if place >= 0 else "" for place in phases_of_ranges(table).tolist()]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (  # verl
            ["gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights"],
            ["generation", "logprobs", "logprobs", "advantage", "update", "weight_sync"],
        ),
        (  # NeMo-RL
            ["generation", "policy_and_reference_logprobs", "policy_training"],
            ["generation", "logprobs", "update"],
        ),
        (  # SkyRL
            ["generate", "fwd_logprobs_values_reward", "train_critic_and_policy", "sync_weights"],
            ["generation", "logprobs", "update", "weight_sync"],
        ),
        (  # TRL
            ["GRPOTrainer.vLLM.generate", "GRPOTrainer._calculate_rewards", "wake_up"],
            ["generation", "reward", "sleep_wake"],
        ),
        (  # NVTX ranges of the workers of NeMo RL
            [
                "vllm_generation_worker/generate",
                "policy_worker/get_reference_policy_logprobs",
                "dtensor_policy_worker_v2/train",
                "vllm_internal_worker_extension/update_weights_via_ipc_zmq",
                "dtensor_policy_worker/offload_before_refit",
                "dtensor_policy_worker/prepare_refit_info",
            ],
            ["generation", "logprobs", "update", "weight_sync", "sleep_wake", ""],
        ),
        (  # TRL, OpenRLHF, slime, and SkyRL
            ["GRPOTrainer._get_per_token_logps_and_entropies", "GRPOTrainer._generate"],
            ["logprobs", "generation"],
        ),
        (
            ["generate_samples", "broadcast_to_vllm", "update_weights_implementation", "testing"],
            ["generation", "weight_sync", "weight_sync", "eval"],
        ),
        (["generate", "reward", "policy_critic_overlap_train"], ["generation", "reward", "update"]),
        # Methods of other classes and workers denote no phase.
        (["GANTrainer.train", "DataWorker.generate", "loader_worker/fetch"], ["", "", ""]),
        (["testing", "broadcast_to_vllm", "Trainer.compute_loss"], ["", "", ""]),
        (["rollout", "compute_reward", "env.step"], ["generation", "reward", "environment"]),
        # Without rollouts, the same words mean something else.
        (["gen", "disc", "update_weights", "ref", "offload"], ["", "", "optimizer", "", ""]),
        (["generate", "load_weights", "sample"], ["", "", ""]),
    ],
)
def test_names_of_post_training(names: list[str], expected: list[str]) -> None:
    assert phases_of(*names) == expected

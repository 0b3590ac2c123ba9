"""FLOPs and bytes of operators: by hand, and as torch's own counter counts them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import require
from traceprof.formats import ReadOptions, open_trace
from traceprof.measures.compute.counted import counted_operators
from traceprof.measures.compute.inputs import Work
from traceprof.measures.compute.operators import OPERATORS, work_of, work_of_convolutions

HALF = "c10::Half"
PROGRAM = Path(__file__).with_name("torch_program.py")


def of(name: str, dims: Any, types: Any = (), concrete: Any = ()) -> Work | None:
    """Return the work of an operator."""
    return work_of(name, json.dumps(dims), json.dumps(list(types)), json.dumps(list(concrete)))


def test_a_product_is_two_flops_for_each_multiply_add_and_moves_each_matrix_once() -> None:
    found = of("aten::mm", [[2, 3], [3, 5]], [HALF, HALF])
    n_bytes = 2 * (6 + 15 + 10)
    assert found == Work(2 * 2 * 3 * 5, 2 * 2 * 3 * 5, n_bytes, "fp16", shape="M=2 N=5 K=3")
    assert of("aten::addmm", [[5], [2, 3], [3, 5], [], []], ["float"] * 3) == Work(
        60, 60, 4 * (6 + 15 + 10), "fp32", shape="M=2 N=5 K=3"
    )


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ([[2, 3], [4, 5]], ["float", "float"]),  # sizes that do not fit
        ([[], []], ["float", "float"]),
        ([[2, 3]], ["float"]),
        ([[2, 3], [3, 5]], ["c10::complex<float>", "c10::complex<float>"]),
        ("nothing", []),
        ([[[2, 3]], [3, 5]], ["float", "float"]),
        ([[2, -3], [-3, 5]], ["float", "float"]),
    ],
)
def test_what_sizes_do_not_tell_is_not_known(dims: Any, types: Any) -> None:
    assert of("aten::mm", dims, types) is None


def test_flops_are_known_where_element_types_are_not_but_bytes_are_not() -> None:
    found = of("aten::mm", [[2, 3], [3, 5]])
    assert found is not None
    assert found.flops == 60
    assert found.precision == ""
    assert found.n_bytes != found.n_bytes  # NaN


def test_a_convolution_needs_its_stride() -> None:
    dims = [[32, 4, 1891], [64, 4, 1], [], [], [], [], [], [], []]
    concrete = ["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1"]
    found = of("aten::convolution", dims, ["float"] * 2, concrete)
    assert found is not None
    assert found.flops == 30_982_144  # of the recorded trace of an A100
    assert of("aten::convolution", dims, ["float"] * 2) is None


def test_a_convolution_without_stride_has_the_sizes_of_its_backward_pass() -> None:
    image, filters, half = [32, 64, 56, 56], [128, 64, 3, 3], [32, 128, 28, 28]
    small, other = [128, 64, 1, 1], [32, 64, 14, 14]
    flops = 2 * 32 * 128 * 28 * 28 * 64 * 9
    operators = [
        ("aten::cudnn_convolution_backward", [image, half, filters, [], []]),
        ("aten::cudnn_convolution", [image, filters, []]),
        ("aten::cudnn_convolution_backward_weight", [[], half, image]),
        ("aten::cudnn_convolution_backward_input", [[], half, filters]),
        # This one has no backward pass, and the name of the next is not of a convolution.
        ("aten::cudnn_convolution", [other, filters, []]),
        ("aten::mm", [image, filters]),
    ]

    def known(*more: tuple[str, Any]) -> list[int | None]:
        given = [(name, json.dumps(dims)) for name, dims in [*operators, *more]]
        return [work.flops if work else None for work in work_of_convolutions(given)][
            : len(operators)
        ]

    assert known() == [None, flops, flops, flops, None, None]
    # Another filter with the same input and output: the gradient of which weights is unknown.
    of_small = ("aten::cudnn_convolution_backward", [image, half, small])
    assert known(of_small) == [None, flops, None, flops, None, None]
    # The same input and filter with another stride: the output is unknown.
    of_stride = ("aten::cudnn_convolution_backward", [image, [32, 128, 19, 19], filters])
    assert known(of_stride) == [None, None, flops, flops, None, None]


def test_groups_of_a_convolution_count_once() -> None:
    concrete = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "8"]
    depthwise = of("aten::convolution", [[1, 8, 5, 5], [8, 1, 3, 3]], ["float"] * 2, concrete)
    assert depthwise is not None
    assert depthwise.flops == 2 * 8 * 9 * 9


SIZES = [[2, 4, 10, 16]] * 3


@pytest.mark.parametrize(("causal", "pairs"), [("False", 100), ("True", 55), ("", 100)])
def test_causal_attention_counts_what_is_seen(causal: str, pairs: int) -> None:
    found = of(
        "aten::_scaled_dot_product_flash_attention",
        [*SIZES, [], [], [], []],
        [HALF] * 3,
        ["", "", "", "0.", causal, "False", ""],
    )
    assert found is not None
    assert found.flops == 4 * 2 * 4 * pairs * 16


def test_few_heads_of_keys_save_bytes_and_no_flops() -> None:
    grouped = [[2, 4, 10, 16], [2, 1, 10, 16], [2, 1, 10, 16]]
    name = "aten::_scaled_dot_product_flash_attention"
    few, all_heads = (of(name, dims, [HALF] * 3) for dims in (grouped, SIZES))
    assert few is not None
    assert all_heads is not None
    assert few.flops == all_heads.flops
    assert few.n_bytes < all_heads.n_bytes


def test_sequences_of_other_lengths_are_seen_from_their_ends() -> None:
    dims = [[1, 2, 1, 8], [1, 2, 100, 8], [1, 2, 100, 8]]
    concrete = ["", "", "", "0.", "True", "False"]
    one_token = of("aten::_scaled_dot_product_flash_attention", dims, [HALF] * 3, concrete)
    assert one_token is not None
    assert one_token.flops == 4 * 2 * 100 * 8


def test_attention_computes_its_scores_again_in_the_backward_pass() -> None:
    found = of(
        "aten::_scaled_dot_product_flash_attention_backward",
        [SIZES[0], *SIZES, SIZES[0], [], [], [], [], [], [], [], [], []],
        [HALF] * 5,
        [*[""] * 10, "0.", "False"],
    )
    assert found is not None
    assert found.flops == 5 * 2 * 2 * 4 * 100 * 16
    assert found.model_flops == 4 * 2 * 2 * 4 * 100 * 16


def test_packed_sequences_do_not_tell_how_long_each_is() -> None:
    packed = [[100, 4, 16]] * 3
    assert of("flash_attn::_flash_attn_forward", packed, [HALF] * 3) is None


@pytest.mark.parametrize(
    ("dims", "products", "written"),
    [
        ([[100, 16], [8, 16, 32], [8]], 100 * 16 * 32, 100 * 32),  # forward
        ([[8, 32, 16], [16, 100], [8]], 32 * 16 * 100, 32 * 100),
        ([[16, 100], [100, 32], [8]], 16 * 100 * 32, 8 * 16 * 32),  # gradients of the weights
        ([[8, 20, 16], [8, 16, 32], []], 8 * 20 * 16 * 32, 8 * 20 * 32),
    ],
)
def test_experts_multiply_each_token_once(dims: Any, products: int, written: int) -> None:
    found = of("aten::_grouped_mm", dims, [HALF] * 2)
    assert found is not None
    assert found.flops == 2 * products
    read = sum(math.prod(sizes) for sizes in dims[:2])
    assert found.n_bytes == 2 * (read + written)


EXPERTS = [[100, 64], [8, 96, 64], [8, 64, 48], [100, 2], [100, 2]]
"""100 tokens of 64 values, each in 2 of 8 experts of 48 values, with a gate."""


@pytest.mark.parametrize(
    ("dims", "weights", "flops", "precision"),
    [
        (EXPERTS, HALF, 2 * 200 * 64 * (96 + 48), "fp16"),
        ([[100, 64], [8, 48, 64], *EXPERTS[2:]], HALF, 2 * 200 * 64 * (48 + 48), "fp16"),
        # Two 4-bit numbers in a byte: the sizes are half as large.
        ([[100, 64], [8, 96, 32], [8, 64, 24], *EXPERTS[3:]], "unsigned char",
         2 * 200 * 64 * (96 + 48), ""),
        (EXPERTS, "c10::Float8_e4m3fn", 2 * 200 * 64 * (96 + 48), "fp8"),
    ],
)  # fmt: skip
def test_fused_experts_multiply_each_token_with_each_of_its_experts(
    dims: Any, weights: str, flops: int, precision: str
) -> None:
    types = [HALF, weights, weights, "float", "int"]
    work = work_of("sglang::inplace_fused_experts", *map(json.dumps, (dims, types, [""] * 5)))
    assert work is not None
    assert (work.flops, work.precision) == (flops, precision)
    assert work.shape == "experts=8 M=200 N=48 K=64"
    assert math.isnan(work.n_bytes)  # how many experts had a token was not recorded


@pytest.mark.parametrize(
    "dims",
    [
        [*EXPERTS, [16]],  # a map of all experts to those of this rank
        [[100, 64], [8, 96, 64], [8, 64, 40], *EXPERTS[3:]],
        [[100, 64], [8, 96, 64], [4, 64, 48], *EXPERTS[3:]],
        [[100, 64], [8, 96, 128], [8, 64, 48], *EXPERTS[3:]],
    ],
)
def test_fused_experts_of_other_sizes_are_unknown(dims: Any) -> None:
    types = [HALF, HALF, HALF, "float", "int", "int"][: len(dims)]
    given = map(json.dumps, (dims, types, [""] * len(dims)))
    assert work_of("vllm::outplace_fused_experts", *given) is None


def test_scaled_products_of_experts_have_their_number_behind_the_scales() -> None:
    dims = [[16, 100], [100, 32], [16], [32], [8]]
    found = of("aten::_scaled_grouped_mm", dims, ["c10::Float8_e4m3fn"] * 2)
    assert found is not None
    assert found.n_bytes == 16 * 100 + 100 * 32 + 8 * 16 * 32
    assert of("aten::_scaled_grouped_mm", [[100, 16], [8, 17, 32]], [HALF] * 2) is None


@pytest.mark.parametrize(
    ("name", "dims", "n_bytes"),
    [
        ("aten::gelu", [[4, 8]], 2 * 32 * 2),
        ("aten::gelu_backward", [[4, 8], [4, 8]], 3 * 32 * 2),
        ("aten::add_", [[4, 8], [8], []], (32 + 8 + 32) * 2),
        ("aten::native_layer_norm", [[4, 8], [], [8], [8], []], (32 + 16 + 32) * 2),
        ("aten::sum", [[4, 8], []], 32 * 2),
    ],
)
def test_other_operators_have_bytes_alone(name: str, dims: Any, n_bytes: int) -> None:
    types = [HALF if sizes else "" for sizes in dims]
    assert of(name, dims, types) == Work(n_bytes=n_bytes)


def test_an_embedding_reads_and_writes_its_rows() -> None:
    found = of("aten::embedding", [[8192, 768], [16, 512]], [HALF, "long int"])
    assert found == Work(n_bytes=16 * 512 * (8 + 2 * 2 * 768))


@pytest.mark.torch
def test_places_of_arguments_are_those_of_torch() -> None:
    require("torch")
    told = subprocess.run(
        [sys.executable, "-c", _SCHEMAS, json.dumps(sorted(OPERATORS))],
        check=True,
        capture_output=True,
        text=True,
    )
    schemas = json.loads(told.stdout)
    known = {name: words for name, words in schemas.items() if "attention" in name}
    assert len(known) == 13
    for name, words in known.items():
        first = words.index("query")
        mask = words.index("custom_mask_type" if "custom_mask_type" in words else "is_causal")
        dims: list[Any] = [[] for _ in words]
        dims[first : first + 3] = [[1, 2, 2, 4]] * 3
        concrete = ["" for _ in words]
        concrete[mask] = "1" if words[mask] == "custom_mask_type" else "True"
        types = [HALF if sizes else "" for sizes in dims]
        seen, every = of(name, dims, types, concrete), of(name, dims, types)
        assert seen is not None, name
        assert every is not None
        assert seen.flops / every.flops == 3 / 4, name


_SCHEMAS = """
import json, sys, torch
found = {}
for name in json.loads(sys.argv[1]):
    space, _, own = name.partition("::")
    op = getattr(getattr(torch.ops, space), own, None)
    if space == "aten" and op is not None and "default" in op.overloads():
        found[name] = [argument.name for argument in op.default._schema.arguments]
print(json.dumps(found))
"""


@pytest.mark.torch
def test_flops_are_those_of_torchs_own_counter(tmp_path: Path) -> None:
    require("torch")
    subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], check=True, capture_output=True)
    truth = json.loads((tmp_path / "truth.json").read_text())
    tables = frozenset({"operator_inputs", "host_ops"})
    found = {}
    for name in truth:
        trace = open_trace(tmp_path / f"{name}.json", ReadOptions(tables=tables))
        found[name] = float(counted_operators(trace)["flop"].sum())
    assert found == pytest.approx(truth, rel=0.01)


CAUSAL_PLACES = {  # index of the flag in the forward pass, and whether the mask starts top left
    "aten::_scaled_dot_product_flash_attention": (4, "True", False),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (4, "True", True),
    "aten::_scaled_dot_product_efficient_attention": (6, "True", True),
    "aten::_scaled_dot_product_cudnn_attention": (6, "True", True),
    "aten::_flash_attention_forward": (8, "True", False),
    "aten::_efficient_attention_forward": (9, "1", True),
    "flash_attn::_flash_attn_forward": (5, "True", False),
}


@pytest.mark.parametrize("name", CAUSAL_PLACES)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 7), (3, 5), (5, 5), (7, 2)])
def test_a_causal_mask_hides_what_a_loop_over_queries_and_keys_does(
    name: str, n_queries: int, n_keys: int
) -> None:
    place, flag, is_top_left = CAUSAL_PLACES[name]
    is_heads_first = "scaled_dot" in name
    query, key = ([1, 2, n, 4] if is_heads_first else [1, n, 2, 4] for n in (n_queries, n_keys))
    concrete = [flag if index == place else "" for index in range(place + 1)]
    found = of(name, [query, key, key], [HALF] * 3, concrete)
    first_hidden = 1 if is_top_left else n_keys - n_queries + 1
    pairs = sum(
        key_number < query_number + first_hidden
        for query_number in range(n_queries)
        for key_number in range(n_keys)
    )
    assert found is not None
    assert found.flops == 2 * 2 * 2 * pairs * 4


@pytest.mark.parametrize(
    ("name", "dims", "concrete", "shape"),
    [
        ("aten::addmm", [[5], [2, 3], [3, 5]], [], "M=2 N=5 K=3"),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], [], "batch=7 M=2 N=5 K=3"),
        ("aten::_grouped_mm", [[100, 16], [8, 16, 32], [8]], [], "experts=8 M=100 N=32 K=16"),
        (
            "aten::convolution",
            [[2, 3, 8, 9], [4, 3, 3, 1], [], [], [], [], [], [], []],
            ["", "", "", "[2, 2]", "[1, 0]", "[1, 1]", "False", "[0, 0]", "1"],
            "N=2 C=3 image=8×9 filters=4 filter=3×1 stride=2",
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            [[2, 8, 10, 16], [2, 2, 30, 16], [2, 2, 30, 16]],
            ["", "", "", "0.", "True"],
            "B=2 H=8/2 S=10/30 D=16 causal",
        ),
        ("aten::relu", [[3, 4]], [], ""),
    ],
)
def test_the_sizes_of_an_operator_as_text(name: str, dims: Any, concrete: Any, shape: str) -> None:
    found = of(name, dims, [HALF] * 3, concrete)
    assert found is not None
    assert found.shape == shape


FLOAT = "float"


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "n_bytes"),
    [
        ("native_dropout", [[4, 8], [], []], [FLOAT], [], 32 * (4 + 4 + 1)),
        ("native_dropout_backward", [[4, 8], [4, 8]], [FLOAT, "bool"], [], 32 * (4 + 1 + 4)),
        ("masked_fill_", [[4, 8], [4, 8], []], [FLOAT, "bool"], [], 32 * (4 + 1 + 4)),
        ("eq", [[3, 4], [4]], [FLOAT] * 2, [], 4 * (12 + 4) + 12),
        ("isnan", [[3, 4]], [HALF], [], 12 * (2 + 1)),
        ("max", [[3, 4], [3, 4]], [FLOAT] * 2, [], 3 * 48),
        ("max", [[3, 4], [], []], [FLOAT, "Scalar", "Scalar"], ["", "1", "False"], 48),
        ("gather", [[4, 5], [], [4, 2]], [FLOAT, "Scalar", "long int"], ["", "1"], 8 * (8 + 8)),
        ("index_select", [[4, 5], [], [2]], [FLOAT, "", "long int"], ["", "1"], 16 + 2 * 8 * 4),
        ("mse_loss_backward", [[], [3, 4], [3, 4]], [FLOAT] * 3, [], 4 + 3 * 48),
        ("_fused_rms_norm", [[4, 8], [], [8], []], [HALF, "", HALF], [], 2 * (32 + 8 + 32)),
        ("native_group_norm", [[2, 8, 9], [8], []], [FLOAT] * 2, [], 4 * (144 + 8 + 144)),
        ("_adaptive_avg_pool2d", [[1, 2, 8, 8], []], [FLOAT], ["", "[2, 2]"], 4 * (128 + 8)),
        (
            "max_pool2d_with_indices_backward",
            [[1, 2, 4, 4], [1, 2, 8, 8], [], [], [], [], [], [1, 2, 4, 4]],
            [FLOAT, FLOAT, "", "", "", "", "", "long int"],
            [],
            32 * (4 + 8) + 128 * 4,
        ),
    ],
)
def test_what_memory_bound_operators_move_at_least(
    name: str, dims: Any, types: Any, concrete: Any, n_bytes: int
) -> None:
    found = of(f"aten::{name}", dims, types, concrete)
    assert found is not None
    assert (found.n_bytes, found.flops) == (n_bytes, 0)

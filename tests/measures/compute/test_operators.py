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
from traceprof.measures.compute.operators import OPERATORS, Work, work_of

HALF = "c10::Half"
PROGRAM = Path(__file__).with_name("torch_program.py")


def of(name: str, dims: Any, types: Any = (), concrete: Any = ()) -> Work | None:
    """Return the work of an operator."""
    return work_of(name, json.dumps(dims), json.dumps(list(types)), json.dumps(list(concrete)))


def test_a_product_is_two_flops_for_each_multiply_add_and_moves_each_matrix_once() -> None:
    found = of("aten::mm", [[2, 3], [3, 5]], [HALF, HALF])
    assert found == Work(2 * 2 * 3 * 5, 2 * 2 * 3 * 5, 2 * (6 + 15 + 10), "fp16")
    assert of("aten::addmm", [[5], [2, 3], [3, 5], [], []], ["float"] * 3) == Work(
        60, 60, 4 * (6 + 15 + 10), "fp32"
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
    assert of(name, dims, [HALF] * len(dims)) == Work(n_bytes=n_bytes)


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
    assert len(known) == 12
    for name, words in known.items():
        first = words.index("query")
        mask = words.index("custom_mask_type" if "custom_mask_type" in words else "is_causal")
        dims: list[Any] = [[] for _ in words]
        dims[first : first + 3] = [[1, 2, 2, 4]] * 3
        concrete = ["" for _ in words]
        concrete[mask] = "1" if words[mask] == "custom_mask_type" else "True"
        seen = of(name, dims, [HALF] * len(words), concrete)
        every = of(name, dims, [HALF] * len(words))
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

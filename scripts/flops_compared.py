"""Compare the FLOPs of operators: by hand, torch's own counter, TraceLens, and traceprof.

    python -m scripts.flops_compared                             print the table
    python -m scripts.flops_compared --write [--tracelens DIR]   write it into docs/hardware.md
    python -m scripts.flops_compared --reports DIR               compare with TraceLens' own reports

Without ``--tracelens`` (a checkout of AMD-AGI/TraceLens), its column keeps the values of the docs.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from traceprof.measures.compute.operators import work_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "hardware.md"
BEGIN, END = "<!-- flops compared -->", "<!-- end of flops compared -->"
HEAD = "| operator | inputs | by hand | torch | TraceLens | traceprof |"
BF16, FP8, INT8 = "c10::BFloat16", "c10::Float8_e4m3fn", "signed char"
UNKNOWN = "–"


class Case(NamedTuple):
    """An operator with its inputs: sizes of tensors (lists), lists of sizes, or other values.

    ``by_hand`` is an expression for the FLOPs; "" if the inputs do not determine them.
    """

    name: str
    inputs: list[Any]
    by_hand: str
    words: str
    type_name: str = BF16

    def recorded(self) -> tuple[str, str, str]:
        """Return sizes, types, and values as Kineto writes them."""
        dims, types, values = [], [], []
        for given in self.inputs:
            is_list = isinstance(given, list) and given and isinstance(given[0], list)
            is_tensor = isinstance(given, list)
            dims.append(given if is_tensor else [])
            types.append(
                "TensorList" if is_list else self.type_name if is_tensor else _type_of(given)
            )
            values.append("" if is_tensor or given is None else _text_of(given))
        return json.dumps(dims), json.dumps(types), json.dumps(values)


def _type_of(given: Any) -> str:
    return "" if given is None else "ScalarList" if isinstance(given, tuple) else "Scalar"


def _text_of(given: Any) -> str:
    return str(list(given) if isinstance(given, tuple) else given)


Q, K = [2, 8, 64, 32], [2, 2, 100, 32]
ROWS, KEYS = [2, 64, 8, 32], [2, 100, 2, 32]
PACKED, CU = [256, 8, 32], [5]
CONV = ((2, 2), (1, 1), (1, 1), False, (0, 0), 2)
NO_WINDOW = (-1, -1)
CASES = [
    Case("aten::mm", [[37, 51], [51, 23]], "2*37*51*23", "37×51 · 51×23"),
    Case("aten::addmm", [[23], [37, 51], [51, 23], 1, 1], "2*37*51*23", "with bias"),
    Case("aten::bmm", [[4, 17, 33], [4, 33, 9]], "2*4*17*33*9", "batch of 4"),
    Case("aten::baddbmm", [[4, 17, 9], [4, 17, 33], [4, 33, 9], 1, 1], "2*4*17*33*9", "batch of 4"),
    Case("aten::mv", [[6, 7], [7]], "2*6*7", "matrix and vector"),
    Case("aten::_scaled_mm", [[32, 64], [64, 48], [1], [1], None, None, 15, False],
         "2*32*64*48", "FP8", FP8),
    Case("aten::_int_mm", [[32, 64], [64, 48]], "2*32*64*48", "INT8", INT8),
    Case("aten::_grouped_mm", [[100, 16], [8, 16, 32], [8], None, None], "2*100*16*32",
         "8 experts, 100 tokens"),
    Case("fbgemm::f8f8bf16_rowwise", [[32, 64], [48, 64]], "2*32*64*48", "FP8, N×K weights", FP8),
    Case("tex_ts::te_gemm_ts",
         [[48, 64], None, 0, 0, 1, [32, 64], None, 0, 0, 0, [32, 48], *[None] * 10],
         "2*32*64*48", "TransformerEngine"),
    Case("aten::convolution", [[3, 8, 17, 19], [12, 4, 3, 3], None, *CONV],
         "2*3*12*4*3*3*9*10", "2 groups, stride 2"),
    Case("aten::convolution",
         [[2, 8, 9, 9], [8, 3, 4, 4], None, (2, 2), (1, 1), (1, 1), True, (1, 1), 2],
         "2*2*8*3*4*4*9*9", "transposed"),
    Case("aten::convolution_backward",
         [[3, 12, 9, 10], [3, 4, 17, 19], [12, 4, 3, 3], None, (2, 2), (1, 1), (1, 1), False,
          (0, 0), 1, (True, True, False)], "2*2*3*12*4*3*3*9*10", "both gradients"),
    Case("aten::_slow_conv2d_forward",
         [[3, 4, 17, 19], [12, 4, 3, 3], (3, 3), None, (2, 2), (1, 1)],
         "2*3*12*4*3*3*9*10", "stride 2"),
    Case("aten::convolution_overrideable", [[3, 8, 17, 19], [12, 4, 3, 3], None, *CONV],
         "2*3*12*4*3*3*9*10", "2 groups"),
    Case("aten::_convolution", [[3, 8, 17, 19], [12, 4, 3, 3], None, *CONV, *[False] * 4],
         "2*3*12*4*3*3*9*10", "2 groups"),
    Case("aten::cudnn_convolution",
         [[3, 8, 17, 19], [12, 4, 3, 3], (1, 1), (2, 2), (1, 1), 2, *[False] * 3],
         "2*3*12*4*3*3*9*10", "2 groups"),
    Case("aten::_scaled_dot_product_flash_attention", [Q, Q, Q, 0.0, False, False],
         "4*2*8*64*64*32", "64 tokens, 8 heads"),
    Case("aten::_scaled_dot_product_flash_attention", [Q, Q, Q, 0.0, True, False],
         "4*2*8*(64*65//2)*32", "causal"),
    Case("aten::_scaled_dot_product_flash_attention", [Q, K, K, 0.0, False, False],
         "4*2*8*64*100*32", "8 heads of queries, 2 of keys"),
    Case("aten::_scaled_dot_product_efficient_attention",
         [Q, [2, 8, 100, 32], [2, 8, 100, 32], None, False, 0.0, True],
         "4*2*8*(64*65//2)*32", "causal, 64 queries, 100 keys"),
    Case("aten::_scaled_dot_product_cudnn_attention", [Q, Q, Q, None, False, 0.0, False, False],
         "4*2*8*64*64*32", ""),
    Case("aten::_scaled_dot_product_flash_attention_backward",
         [Q, Q, Q, Q, Q, [2, 8, 64], None, None, 64, 64, 0.0, False, None, None],
         "10*2*8*64*64*32", "five products"),
    Case("aten::_scaled_dot_product_efficient_attention_backward",
         [Q, Q, Q, Q, None, Q, [2, 8, 64], None, None, 0.0, (True, True, True, False), False],
         "10*2*8*64*64*32", ""),
    Case("aten::_scaled_dot_product_cudnn_attention_backward",
         [Q, Q, Q, Q, Q, [2, 8, 64], None, None, None, None, None, 64, 64, 0.0, False],
         "10*2*8*64*64*32", ""),
    Case("aten::_flash_attention_forward",
         [PACKED, PACKED, PACKED, CU, CU, 64, 64, 0.0, False, False],
         "4*4*8*64*64*32", "4 packed sequences of 64"),
    Case("aten::_flash_attention_backward",
         [PACKED, PACKED, PACKED, PACKED, PACKED, [8, 256], CU, CU, 64, 64, 0.0, False, None, None],
         "10*4*8*64*64*32", "4 packed sequences of 64"),
    Case("aten::_efficient_attention_forward",
         [[1, *PACKED], [1, *PACKED], [1, *PACKED], None, CU, CU, 64, 64, 0.0, 0],
         "4*4*8*64*64*32", "4 packed sequences of 64"),
    Case("aten::_efficient_attention_backward",
         [[1, *PACKED]] * 4 + [None, [1, *PACKED], CU, CU, 64, 64, [1, 8, 256], 0.0, None, None, 0],
         "10*4*8*64*64*32", "4 packed sequences of 64"),
    Case("flash_attn::_flash_attn_forward", [ROWS, KEYS, KEYS, 0.0, 0.1, True, *NO_WINDOW],
         "4*2*8*(64*36+64*65//2)*32", "causal, 64 queries, 100 keys"),
    Case("flash_attn::_flash_attn_forward", [ROWS, ROWS, ROWS, 0.0, 0.1, True, 15, 0],
         "4*2*8*(16*17//2+48*16)*32", "causal, window of 16"),
    Case("flash_attn::_flash_attn_varlen_forward",
         [PACKED, PACKED, PACKED, CU, CU, 64, 64, 0.0, 0.1, True, *NO_WINDOW, 0.0, None, False],
         "4*4*8*(64*65//2)*32", "4 packed sequences of 64, causal"),
    Case("flash_attn::_flash_attn_varlen_forward",
         [PACKED, PACKED, PACKED, CU, CU, 100, 100, 0.0, 0.1, True, *NO_WINDOW, 0.0, None, False],
         "", "4 packed sequences, unequal"),
    Case("flash_attn::_flash_attn_varlen_backward",
         [PACKED, PACKED, PACKED, PACKED, PACKED, [8, 256], PACKED, PACKED, PACKED, CU, CU, 64, 64,
          0.0, 0.1, False, *NO_WINDOW], "10*4*8*64*64*32", "4 packed sequences of 64"),
    Case("flash_attn_3::fwd",
         [ROWS, ROWS, ROWS, *[None] * 20, 0.1, True, *NO_WINDOW],
         "4*2*8*(64*65//2)*32", "causal"),
    Case("aiter::mha_bwd", [ROWS, ROWS, ROWS, ROWS, ROWS, [2, 8, 64], 0.0, 0.1, False, *NO_WINDOW],
         "10*2*8*64*64*32", "five products"),
    Case("xformers::efficient_attention_forward_cutlass",
         [ROWS, ROWS, ROWS, None, None, None, None, None, 0.0, 1],
         "4*2*8*(64*65//2)*32", "causal"),
    Case("vllm::outplace_fused_experts",
         [[100, 64], [8, 96, 64], [8, 64, 48], [100, 2], [100, 2]],
         "2*200*64*(96+48)", "100 tokens, 2 of 8 experts, gated"),
    Case("vllm::rocm_aiter_fused_moe",
         [[100, 64], [8, 96, 64], [8, 64, 48], [100, 2], [100, 2]],
         "2*200*64*(96+48)", "100 tokens, 2 of 8 experts, gated"),
    Case("aten::_cudnn_rnn", [[5, 3, 16], [[128, 16], [128, 32], [128], [128]], 4],
         "2*5*3*(128*16+128*32)", "LSTM, 5×3 rows"),
]  # fmt: skip
"""Operators of torch's own counter come first; a test checks that none of them is missing."""


def by_hand(case: Case) -> int | None:
    """Return the value of the expression; None if the inputs do not determine the FLOPs."""
    return int(eval(case.by_hand)) if case.by_hand else None


def by_traceprof(case: Case) -> int | None:
    """Return the FLOPs that traceprof counts."""
    work = work_of(case.name, *case.recorded())
    return work.flops if work is not None and work.flops else None


def by_torch(case: Case) -> int | None:
    """Return the FLOPs of torch's counter; None if it does not know the operator."""
    import torch
    from torch.utils.flop_counter import flop_registry

    space, _, name = case.name.partition("::")
    packet = getattr(getattr(torch.ops, space), name, None)
    if packet not in flop_registry:
        return None
    inputs = [_tensor(torch, given) if isinstance(given, list) else given for given in case.inputs]
    out = None
    if "conv" in name:
        meta = [given.to("meta") if hasattr(given, "to") else given for given in inputs]
        wanted = torch.ops.aten.convolution_backward if "backward" in name else torch.conv2d
        options = meta if "backward" in name else _conv2d_options(name, meta)
        is_transposed = "backward" not in name and len(meta) > 6 and meta[6] is True
        if is_transposed:
            options = [*meta[:5], meta[7], meta[8], meta[5]]
            wanted = torch.conv_transpose2d
        out = wanted(*options)
    arguments = packet.default._schema.arguments[: len(inputs)]
    positional = [given for given, own in zip(inputs, arguments, strict=True) if not own.kwarg_only]
    try:
        return int(flop_registry[packet](*positional, out_val=out))
    except TypeError:  # its formula of _slow_conv2d_forward takes other arguments (torch 2.13)
        return None


def _conv2d_options(name: str, inputs: list[Any]) -> list[Any]:
    """Return the inputs of torch.conv2d for the inputs of an operator of this name."""
    x, w = inputs[:2]
    if name == "cudnn_convolution":
        padding, stride, dilation, groups = inputs[2:6]
        return [x, w, None, stride, padding, dilation, groups]
    if name == "_slow_conv2d_forward":
        return [x, w, None, inputs[4], inputs[5]]
    return [x, w, None, *inputs[3:6], inputs[8]]


def _tensor(torch: Any, sizes: list[int]) -> Any:
    if sizes == CU:
        return torch.arange(0, 5 * 64, 64, dtype=torch.int32)
    return torch.empty(sizes, dtype=torch.bfloat16)


_PSEUDO = {"vllm::rocm_aiter_fused_moe": "pseudo_op::moe_aiter_fused_1stage"}
"""Operators that TraceLens counts under another name."""


def by_tracelens(case: Case) -> int | None:
    """Return the FLOPs of TraceLens; None if it has no formula or its formula fails."""
    from TraceLens.PerfModel.extensions import get_pseudo_op_mappings
    from TraceLens.PerfModel.torch_op_mapping import op_to_perf_model_class_map

    models = {**op_to_perf_model_class_map, **get_pseudo_op_mappings()}
    model = models.get(_PSEUDO.get(case.name, case.name))
    dims, types, values = map(json.loads, case.recorded())
    strides = [_strides(sizes) for sizes in dims]
    keys = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")
    event = {
        "name": case.name,
        "args": dict(zip(keys, (dims, types, values, strides), strict=True)),
    }
    try:
        return int(model(event).flops()) if model else None
    except Exception:  # noqa: BLE001 (code of others)
        return None


def _strides(sizes: list[Any]) -> list[int]:
    if any(isinstance(size, list) for size in sizes):
        return []
    return [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]


def rows_of_page() -> list[list[str]]:
    """Return the cells of the table in docs/hardware.md, without its head."""
    table = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def text_of(value: int | None) -> str:
    """Return a number as the table has it."""
    return UNKNOWN if value is None else f"{value:,}"


def table(tracelens: bool) -> Iterator[str]:
    """Yield the lines of the table."""
    former = {(row[0], row[1]): row[4] for row in rows_of_page()}
    yield from (HEAD, "| --- | --- | ---: | ---: | ---: | ---: |")
    for case in CASES:
        name, words = f"`{case.name}`", case.words or "64 tokens, 8 heads"
        other = text_of(by_tracelens(case)) if tracelens else former.get((name, words), "")
        counts = [text_of(count(case)) for count in (by_hand, by_torch)]
        yield f"| {' | '.join([name, words, *counts, other, text_of(by_traceprof(case))])} |"


def compare_reports(folder: Path) -> Iterator[str]:
    """Yield how many rows of the reports of TraceLens' tests have the same FLOPs, by sheet."""
    csv.field_size_limit(1 << 30)
    found: dict[str, Counter[str]] = {}
    for path in sorted(folder.rglob("*.csv")):
        if path.name not in ("GEMM.csv", "SDPA_fwd.csv", "CONV_fwd.csv", "CONV_bwd.csv"):
            continue
        for row in csv.DictReader(path.read_text("utf-8").splitlines()):
            if not row.get("GFLOPS_first"):
                continue
            keys = ("Input Dims_first", "Input type_first", "Concrete Inputs_first")
            work = work_of(row["name"], *(json.dumps(ast.literal_eval(row[key])) for key in keys))
            theirs = float(row["GFLOPS_first"]) * 1e9
            state = "unknown" if work is None or not work.flops else ""
            if work is not None and work.flops:
                state = "equal" if abs(theirs - work.flops) <= 1 else "different"
                causes = [row.get(f"param: {key}") for key in ("bias", "causal")]
                state += " (bias or causal mask)" if state != "equal" and "True" in causes else ""
            found.setdefault(path.stem, Counter())[state] += 1
    for sheet, counts in found.items():
        yield f"{sheet}: {', '.join(f'{n} {state}' for state, n in counts.most_common())}"


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tracelens", type=Path)
    parser.add_argument("--reports", type=Path)
    asked = parser.parse_args()
    if asked.reports:
        print("\n".join(compare_reports(asked.reports)))
        return
    if asked.tracelens:
        sys.path.insert(0, str(asked.tracelens))
    lines = "\n".join(table(bool(asked.tracelens)))
    if not asked.write:
        print(lines)
        return
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{lines}\n\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()

"""Tables with a row per number of GPUs are compared row by row."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from traceprof.comparison import Comparison
from traceprof.comparison.comparing import compare, failed_limits
from traceprof.comparison.judging import parse_limit
from traceprof.errors import UndecidedError, UsageError
from traceprof.logs import read_table
from traceprof.model.summary import Summary

BASE = {1: 355.0, 2: 700.0, 4: 1380.0, 8: 2713.0}


def table(folder: Path, name: str, rows: str, heading: str = "gpus,images_per_s") -> list[Summary]:
    path = folder / f"{name}.csv"
    path.write_text(f"{heading}\n{rows}")
    return list(read_table(path))


def scaled(folder: Path, name: str, factors: dict[int, float]) -> list[Summary]:
    lines = (f"{gpus},{BASE[gpus] * factor:.4f}\n" for gpus, factor in factors.items())
    return table(folder, name, "".join(lines))


def said(found: Comparison) -> str:
    return " ".join(note.text for note in found.verdict)


def test_rows_are_matched_by_their_sizes(tmp_path: Path) -> None:
    base = scaled(tmp_path, "base", dict.fromkeys(BASE, 1.0))
    # In another order, and on one size that the base does not have.
    new = table(tmp_path, "new", "".join(f"{g},{BASE[g] * 1.1}\n" for g in (8, 1, 4)) + "16,5e3\n")
    found = compare(base, new)
    rows = found.results["rows"].table.to_frame()
    assert rows["row"].tolist() == ["devices 1", "devices 4", "devices 8"]
    assert rows["base"].tolist() == [355, 1380, 2713]
    assert rows["change_ratio"].tolist() == pytest.approx([0.1] * 3)
    efficiencies = rows["new_efficiency_ratio"].tolist()
    assert math.isnan(efficiencies[0])
    assert efficiencies[1:] == pytest.approx([1380 / 4 / 355, 2713 / 8 / 355])
    judged = found.results["judged"].table.row(0)
    assert judged["change_ratio"] == pytest.approx(0.1)
    assert (judged["low_ratio"], judged["high_ratio"]) == pytest.approx((0.1, 0.1))
    assert judged["verdict"] == "better"
    assert "without a counterpart" in said(found)
    assert "devices_count" not in found.results["measures"].table["measure"].tolist()


def test_the_interval_is_that_of_the_changes_not_of_the_sizes(tmp_path: Path) -> None:
    base = scaled(tmp_path, "base", dict.fromkeys(BASE, 1.0))
    new = scaled(tmp_path, "new", {1: 1.02, 2: 1.03, 4: 1.03, 8: 1.02})
    judged = compare(base, new).results["judged"].table.row(0)
    # Mean 0.02469 and error 0.002817 of the logarithms; t of three degrees of freedom is 3.182.
    assert judged["low_ratio"] == pytest.approx(math.expm1(0.024683 - 3.182 * 0.002816), rel=1e-3)
    assert judged["high_ratio"] == pytest.approx(math.expm1(0.024683 + 3.182 * 0.002816), rel=1e-3)


def test_one_slow_size_is_named_and_leaves_the_limit_undecided(tmp_path: Path) -> None:
    base = scaled(tmp_path, "base", dict.fromkeys(BASE, 1.0))
    new = scaled(tmp_path, "new", {1: 1.07, 2: 1.06, 4: 1.05, 8: 0.8})
    found = compare(base, new, [parse_limit("5%")])
    row = found.results["rows"].table.rows()[-1]
    assert (row["row"], row["change_ratio"]) == ("devices 8", pytest.approx(-0.2))
    with pytest.raises(UndecidedError):
        failed_limits(found)


def test_labels_and_texts_are_parts_of_the_key(tmp_path: Path) -> None:
    heading = "model,gpus,images_per_s"
    base = table(tmp_path, "base", "resnet,1,100\nresnet,8,760\nvgg,1,50\nvgg,8,390\n", heading)
    new = table(tmp_path, "new", "vgg,8,195\nvgg,1,25\nresnet,8,1520\nresnet,1,200\n", heading)
    rows = compare(base, new).results["rows"].table.to_frame()
    assert rows["change_ratio"].tolist() == pytest.approx([1, 1, -0.5, -0.5])
    assert rows["base_efficiency_ratio"].tolist()[1::2] == pytest.approx([0.95, 0.975])


def test_repeats_of_a_row_are_repeats(tmp_path: Path) -> None:
    base = table(tmp_path, "base", "4,100\n4,102\n4,98\n")
    new = table(tmp_path, "new", "4,110\n4,112\n4,108\n")
    assert "rows" not in compare(base, new).results


def test_tables_without_a_common_size_are_refused(tmp_path: Path) -> None:
    base = table(tmp_path, "base", "1,100\n2,200\n")
    new = table(tmp_path, "new", "4,400\n8,800\n")
    with pytest.raises(UsageError, match="1, 2 in the base, 4, 8 in the new table"):
        compare(base, new)

"""Lines as they come out of files, terminals and launchers."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.errors import TraceError
from traceprof.logs.lines import LONGEST, LogClock, RawLines, clean, cleaned, seconds_of


def lines_of(folder: Path, data: bytes) -> list[str]:
    path = folder / "a.log"
    path.write_bytes(data)
    return list(RawLines(path))


def test_returns_and_backspaces_end_what_is_drawn_over(tmp_path: Path) -> None:
    assert lines_of(tmp_path, b"1/3\r2/3\r3/3\r\nnext\n5%\x08\x08\x0810%") == [
        *("1/3", "2/3", "3/3", "next", "5%", "10%"),
    ]


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    assert lines_of(tmp_path, b"a\nb") == ["a", "b"]


def test_a_line_without_end_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    data = b"x" * (3 * (1 << 20)) + b"\nafter\n"
    path = tmp_path / "a.log"
    path.write_bytes(data)
    lines = RawLines(path)
    found = list(lines)
    assert [len(found[0]), found[1:]] == [LONGEST, ["after"]]
    assert lines.cut_count == 1


def test_packed_and_utf16(tmp_path: Path) -> None:
    assert lines_of(tmp_path, gzip.compress(b"a\nb\n")) == ["a", "b"]
    assert lines_of(tmp_path, "a\nü\n".encode("utf-16")) == ["a", "ü"]


def test_a_packed_file_that_ends_too_early_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    packed = gzip.compress(b"".join(b"line %d\n" % (i * i) for i in range(200_000)))
    path.write_bytes(packed[: len(packed) // 2])
    lines = RawLines(path)
    assert next(iter(lines)) == "line 0"
    assert sum(1 for _ in lines) > 1000
    assert lines.damage


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        list(RawLines(tmp_path / "none"))


@given(st.binary(max_size=2000))
def test_any_bytes_are_lines(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "a"
    path.write_bytes(data)
    for line in cleaned(RawLines(path)):
        assert "\n" not in line.text and "\x1b" not in line.text


@pytest.mark.parametrize(
    ("raw", "rank", "node"),
    [
        ("[1,3]<stdout>:step 1", 3, ""),
        ("[2]<stderr>:step 1", 2, ""),
        ("Fri Sep 11 07:06:58 2020[0]<stdout>:step 1", 0, ""),
        ("[rank5]:step 1", 5, ""),
        ("[default7]: step 1", 7, ""),
        ("12: step 1", 12, ""),
        ("worker-3: step 1", None, "worker-3"),
        ("10.0.0.7: step 1", None, "10.0.0.7"),
        ("example_1      | step 1", None, "example_1"),
        ("(pretraining, pid=4112) step 1", None, ""),
        ("(RayTrainWorker pid=4112, ip=10.0.0.8) step 1", None, "10.0.0.8"),
        ("job-demo/0 step 1", None, "job-demo/0"),
        ("job-demo/0 [default2]:step 1", 2, "job-demo/0"),
        ("Mar  7 22:33:45 gpu01 train[4321]: step 1", None, "gpu01"),
        ("2024-01-01T00:00:00.123456789Z stdout F step 1", None, ""),
        ("stdout: > step 1", None, ""),
        ("\x1b[36m(a pid=1)\x1b[0m \x1b[1mstep\x1b[0m 1", None, ""),
        ("[32mstep 1", None, ""),
    ],
)
def test_prefixes(raw: str, rank: int | None, node: str) -> None:
    line = clean(raw)
    assert (line.text.strip(), line.rank, line.node) == ("step 1", rank, node)


@pytest.mark.parametrize(
    "text", ["Epoch: [0][1/2]", " 48/4851 [>...] - ETA: 3s", "[2024-04-06 02:59:36] iteration 1",
             "| epoch 010 | loss 1", "{'loss': 1}", "step: 5 loss: 2", "Test: Acc@1 5"]
)  # fmt: skip
def test_what_is_no_prefix_stays(text: str) -> None:
    assert clean(text).text == text


def test_a_tag_at_the_end_tells_of_the_next_redraw() -> None:
    found = list(cleaned(["48/99 - loss: 1[1,4]<stdout>:   ", "56/99 - loss: 2"]))
    assert [(line.text, line.rank) for line in found] == [
        ("48/99 - loss: 1", None),
        ("56/99 - loss: 2", 4),
    ]


@pytest.mark.parametrize(
    "stamp",
    ["2023-03-22 09:31:34,250", "[2023-03-22T09:31:34.250Z]", "Wed, 22 Mar 2023 09:31:34.250",
     "Wed Mar 22 09:31:34.250 2023", "2023/03/22 09:31:34.25"],
)  # fmt: skip
def test_time_stamps(stamp: str) -> None:
    clock = LogClock()
    assert clock.read("2023-03-22 09:31:04") == 0
    assert clock.read(f"{stamp} x") == pytest.approx(30.25)


def test_stamps_without_a_year_take_that_of_the_others_and_pass_new_year() -> None:
    clock = LogClock()
    clock.read("2024-12-31 23:59:00")
    assert clock.read("12/31 23:59:30 - mmengine") == 30
    assert clock.read("I1231 23:59:45.500000 17 torch/x.py:5] a") == 45.5
    assert clock.read("01/01 00:00:10 - mmengine") == 70


def test_no_stamp() -> None:
    assert LogClock().read("step 13/40 99:99:99") is None
    assert LogClock().read("2023-13-45 09:31:04") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1:42:42", 6162), ("00:08", 8), ("1 day, 2:03:04", 93_784), ("12.5", 12.5),
     ("2 days, 0:00:01", 172_801)],
)  # fmt: skip
def test_lengths(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_no_length() -> None:
    assert seconds_of("soon") is None

"""Every file of the corpus gives the right numbers, or is refused in one line."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import traceprof
from tests.corpus.brute_force import kernel_ns
from tests.corpus.expected import DIFFERENT, REFUSED
from tests.requirements import unpack
from traceprof.errors import TraceprofError
from traceprof.formats import open_trace, outline

ARCHIVE = Path(__file__).with_name("inputs.tar.xz")
BESIDE = ("-wal", "-journal", ".md")
WITH_DAMAGED_ROWS = {
    "bothnull": 1,
    "bytes-overflow": 5,
    "endbefore": 1,
    "endmax": 1,
    "endnull": 1,
    "neg-bytes": 1,
    "p62": 10,
    "startnull": 1,
    "wide": 1,
    "widest": 1,
}


def names() -> list[str]:
    with tarfile.open(ARCHIVE) as archive:
        return sorted(Path(name).name for name in archive.getnames() if Path(name).suffix)


INPUTS = [name for name in names() if not name.endswith(BESIDE)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    with tarfile.open(ARCHIVE) as archive:
        unpack(archive, folder)
    return folder


def answered(path: Path) -> tuple[int, str]:
    """Return the ns of kernels, and all that the table of what is suspicious says."""
    run = traceprof.open(path)
    table = run.breakdown().table.to_frame()
    suspicions = run.quality().tables["suspicions"].to_frame()
    told = [str(message) for message in suspicions.get("message", [])]
    return int(table["compute_ns"].sum()) if len(table) else 0, "; ".join(told)


@pytest.mark.parametrize("name", [name for name in INPUTS if name not in REFUSED])
def test_numbers_are_those_of_the_rows_that_can_be(corpus: Path, name: str) -> None:
    busy_ns, suspicions = answered(corpus / name)
    if name in DIFFERENT:
        expected_ns, words = DIFFERENT[name]
        assert busy_ns == expected_ns
        assert words in suspicions
    else:
        assert busy_ns == kernel_ns(corpus / name)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_read_is_refused_in_one_line(corpus: Path, name: str) -> None:
    with pytest.raises(TraceprofError) as raised:
        answered(corpus / name)
    message = str(raised.value)
    assert REFUSED[name] in message
    assert "\n" not in message
    assert 2 <= raised.value.exit_code <= 4


@pytest.mark.parametrize(("name", "n_rows"), WITH_DAMAGED_ROWS.items())
def test_damaged_rows_are_counted_wherever_a_file_is_looked_at(
    corpus: Path, name: str, n_rows: int
) -> None:
    path = corpus / f"{name}.sqlite"
    begin = "1 row of" if n_rows == 1 else f"{n_rows} rows of"
    trace, seen = open_trace(path), outline(path)
    assert len(trace.info.warnings) == 1
    assert trace.info.warnings[0].startswith(begin)
    assert seen.trace.info.warnings == trace.info.warnings
    assert (seen.trace.span, seen.n_rows["kernels"]) == (trace.span, len(trace.kernels.to_frame()))
    assert begin in answered(path)[1]

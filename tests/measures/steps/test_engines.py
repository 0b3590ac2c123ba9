"""The batches of inference servers, from the names of their steps."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.measures.steps.from_ranges import batch_of_engine
from traceprof.model.ranks import Ranks
from traceprof.render.formatting import note_text
from traceprof.session.answer import page
from traceprof.session.run import run_of

MS = 1_000_000


@pytest.mark.parametrize(
    ("name", "tokens", "sequences"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", 888, 1),
        ("execute_context_2(17)_generation_3(3)", 20, 5),
        ("execute_8192_context_9(sq8155sk8430sqsq7sqsk7)_generation_37(sq37sk3)", 8192, 46),
        ("step[DECODE bs=32]", 32, 32),
        ("step[EXTEND bs=15 toks=15360]", 15360, 15),
        ("step 32", 0, 0),
        ("execute_model", 0, 0),
    ],
)
def test_the_name_of_a_step_has_its_batch(name: str, tokens: int, sequences: int) -> None:
    assert batch_of_engine(name) == (tokens, sequences)


def test_tokens_of_an_engine_are_counted_once_and_have_a_rate() -> None:
    builder = TraceBuilder()
    for i in range(5):
        at = 10 * MS * i
        builder.range("execute_200_context_1(sq190sk190)_generation_10(sq10sk80)", at, at + 9 * MS)
        builder.range("step[DECODE bs=8]", at + MS, at + 8 * MS)
        builder.kernel("paged_attention", at, at + 10 * MS, launched_ns=(at, at + 10))
    trace = builder.build()
    steps = run("steps", trace)
    assert {*steps.table["processed_tokens_count"].tolist()} == {200}
    assert {*steps.table["sequences_count"].tolist()} == {11}
    assert steps.scalars["processed_tokens_per_s"] == pytest.approx(20_000)
    texts = [note_text(note) for note in page(run_of(Ranks.of(trace))).verdict.pace]
    assert "100 steps/s, 20,000 tokens/s" in texts[0]


def test_steps_of_training_process_no_tokens_of_an_engine() -> None:
    builder = TraceBuilder()
    for i in range(5):
        builder.step(10 * MS * i, 10 * MS * (i + 1), i).kernel("k", 10 * MS * i, 10 * MS * i + MS)
    steps = run("steps", builder.build())
    assert "processed_tokens_count" not in steps.table
    assert "processed_tokens_per_s" not in steps.scalars

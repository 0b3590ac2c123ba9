from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.generate_nsys import Job, generate
from traceprof.render.registry import Options, render
from traceprof.session.answer import answer, page
from traceprof.session.options import Opening
from traceprof.session.run import open_run
from traceprof.workers import choice

STRAGGLER = 2
Told = Callable[..., str]


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks, one of them slow, with operators and samples."""
    out = tmp_path_factory.mktemp("generated") / "run"
    generate(out, 600, Job(4, STRAGGLER), samples_per_s=20)
    return out


@pytest.fixture
def told() -> Iterator[Told]:
    """What a page and some tables say of a run, as JSON and as text."""

    def tell(path: Path, names: tuple[str, ...] = (), **opening: object) -> str:
        run = open_run([path], Opening(is_cached=False, **opening))  # type: ignore[arg-type]
        documents = [page(run), *(answer(run, [name], strict=True) for name in names)]
        forms = ("json", "text")
        return "".join(render(form, one, Options()) for one in documents for form in forms)

    yield tell
    choice.dismiss()

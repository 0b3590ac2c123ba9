"""Every test of reading SQLite is made with both decoders of pages."""

from __future__ import annotations

import pytest

from tests.requirements import require
from traceprof.formats.sqlite.pages import compiled


@pytest.fixture(autouse=True, params=["compiled", "vectors"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Decode by C, or by numpy alone."""
    if request.param == "compiled":
        require("compiled")
    else:
        monkeypatch.setattr(compiled, "is_there", lambda: False)
    return str(request.param)

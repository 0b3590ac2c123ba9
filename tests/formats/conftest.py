"""With what is compiled, and without."""

from __future__ import annotations

import pytest

from tests.requirements import require
from traceprof.formats import compiled


@pytest.fixture(params=["compiled", "python"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Decode by C, or by Python alone."""
    if request.param == "compiled":
        require("compiled")
    else:
        monkeypatch.setattr(compiled, "loaded", lambda: None)
    return str(request.param)

"""With what is compiled, and without."""

from __future__ import annotations

import pytest

from tests.requirements import require
from traceprof.formats.compiled import library


@pytest.fixture(params=["compiled", "python"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Decode by C, or by Python alone."""
    if request.param == "compiled":
        require("compiled")
    else:
        monkeypatch.setattr(library, "is_there", lambda: False)
    return str(request.param)

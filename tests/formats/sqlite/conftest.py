"""Every test of reading SQLite is made with both decoders of pages."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _both(decoder: str) -> None:
    """Decode by C, and by numpy alone."""

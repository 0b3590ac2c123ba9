"""Every test of reading SQLite is made with pages decoded by C, and with SQLite's own rows."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _both(decoder: str) -> None:
    """Decode by C, and not at all."""

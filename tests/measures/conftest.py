"""While a measure is tested, whoever computes with packed numbers fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.checked_numbers import checked_numbers


@pytest.fixture(autouse=True)
def _nobody_computes_with_packed_numbers(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.name == "test_wide_numbers.py":  # checks where it wants, and compares without
        yield
        return
    with checked_numbers():
        yield

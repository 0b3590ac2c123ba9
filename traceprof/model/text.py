"""Text from elsewhere, as files can hold it."""

from __future__ import annotations

__all__ = ["storable"]


def storable(text: str) -> str:
    """Return ``text`` as UTF-8 can hold it: bytes of an argument or a path that cannot are "�"."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")

"""Memory snapshots of PyTorch: what held a GPU's memory, at the peak and when it ran out."""

from typing import Final

MEMORY_NAME: Final = "device-memory"
"""The result of which a chart is drawn."""

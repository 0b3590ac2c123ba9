"""PyTorch memory snapshots: what held GPU memory at the peak and when it ran out."""

from typing import Final

MEMORY_NAME: Final = "device-memory"
"""The name of the result from which the chart is drawn."""

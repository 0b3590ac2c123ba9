"""Recording under NVIDIA Nsight Systems."""

from __future__ import annotations

"""Nsys exports of a generated training job: see `scripts/generate_nsys.py`."""

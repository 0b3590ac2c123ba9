"""Find when and why devices were idle, and what the host did during that time."""

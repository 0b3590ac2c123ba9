"""When and why devices were idle, and what the host did meanwhile."""

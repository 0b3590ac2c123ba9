"""The training loop: steps, phases, layers, and kernels and memory by phase."""

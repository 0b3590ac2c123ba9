"""The training loop: steps, phases, layers."""

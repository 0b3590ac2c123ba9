"""Collectives: each once, matched over ranks, by size and caller, and the clocks they tell."""

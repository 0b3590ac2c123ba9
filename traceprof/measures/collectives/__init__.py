"""Collectives: each once, matched over ranks, by size and caller, waited in, clocks told by them."""

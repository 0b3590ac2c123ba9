"""Collectives: what the host asked for, its kernels, who shares it, whose code called it."""

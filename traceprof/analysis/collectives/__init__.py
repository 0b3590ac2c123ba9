"""Collectives: what they cost, one by one, by size, by whose code called them, by step."""

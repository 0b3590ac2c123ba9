"""Collectives: found once, matched across ranks, grouped by size and caller; clock alignment."""

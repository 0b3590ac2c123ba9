"""Recorders: run a program under a profiler and leave one SQLite trace."""

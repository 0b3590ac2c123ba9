"""A database of runs: what they ran in and gave is kept, and small, when the traces are gone.

A run is named by its name, by its number, or by how its name begins.
"""

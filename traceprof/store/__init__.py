"""The database of experiments: what is kept of runs."""

"""Runs: finding the files of all ranks, telling the ranks apart, opening them as one trace."""

"""Ranks against one another: matching, waiting, clocks, pipelines."""

"""Ranks against one another: waiting, clocks, pipelines."""

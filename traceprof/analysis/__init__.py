"""Analyses: pure functions of a Trace."""

"""Summarize a run: its traces become a `Summary` of a few hundred kB."""

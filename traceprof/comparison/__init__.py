"""Runs against runs: functions of what was kept of them, never of their traces."""

"""Measure the activity of the host: launches, phases, ranges, operators, layers."""

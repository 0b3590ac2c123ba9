"""Copies between host and devices: routes, peaks, speeds."""

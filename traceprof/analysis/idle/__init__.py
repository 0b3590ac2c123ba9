"""Devices without work: why, and when."""

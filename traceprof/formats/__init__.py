"""Formats: files become Traces, and Traces files."""

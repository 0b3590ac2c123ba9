"""Serve the live viewer: timelines of traces of any size, and tables of a chosen window."""

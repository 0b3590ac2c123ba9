"""Copies, links and their counters, and messages between ranks."""

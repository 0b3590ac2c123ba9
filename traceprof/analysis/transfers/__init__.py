"""Copies between host and devices, and inside devices: bytes, bandwidth, links."""

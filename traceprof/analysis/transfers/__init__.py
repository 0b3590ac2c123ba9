"""Copies between host and devices and between devices: bytes, rates, and the links' peaks."""

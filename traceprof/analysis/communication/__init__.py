"""Collectives, copies between devices, the network: bytes and bandwidth."""
